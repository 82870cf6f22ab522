"""The group's rules: one state machine without I/O, clock or logging.

Events and the time go in, commands come out.
"""
