"""Summaries of a job's events: where the time went, and what the person on call asks.

Folds over records, without clock or I/O; only ``recorder`` reads the clocks.
"""
