"""The group's rules: a state machine without I/O, clock or logging.

Its input is events and the time; its output is commands.
"""
