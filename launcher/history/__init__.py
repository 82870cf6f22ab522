"""Summaries of a job's events: where the time went, and answers for the person on call.

Folds over records: no I/O, no clock, except in ``recorder``.
"""
