"""The report of a job that has run, or still runs: from event files to a page, a trace or text.

It only reads files; it starts nothing, and connects to nothing.
"""
