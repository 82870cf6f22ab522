"""Shared work: its messages, and the rules of the master and of a node. No I/O, no clock.

The group and a node's agent do not know these messages: they pass them on as ``RoomMessage``.
"""
