"""Shared work: its messages, and the rules of the master and of a node. No I/O, no clock.

Neither the group nor a node's agent knows these messages: they pass them on as ``RoomMessage``.
"""
