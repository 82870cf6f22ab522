"""What the environment of this process says of the job's nodes, for ``--auto-config``.

A module per family of places: each reads the variables that a launcher or a cluster sets. Nothing
is asked of the machine or the network, except where a module says so.
"""
