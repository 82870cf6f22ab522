"""How nodes agree: the group's rules, the master around them, the client.

Nothing in this package depends on processes, log files or the command line.
"""
