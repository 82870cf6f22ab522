"""What the environment of this process sets for the job's nodes, for ``--auto-config``.

One module for each family of environments, which reads the variables that a launcher or a cluster
sets. Nothing is read from the machine or the network, except where a module documents it.
"""
