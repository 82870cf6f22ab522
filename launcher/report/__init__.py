"""The report of a job that has run, or still runs: from event files to a page, a trace or a text.

It reads files only; it starts nothing, and connects to nothing.
"""
