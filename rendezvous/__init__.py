"""How nodes agree: the group's rules (pure), the master around them, the client.

Nothing here knows of processes, log files or the command line.
"""
