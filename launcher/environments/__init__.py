"""Settings of the job from the environment of this process, for ``--auto-config``.

Each module reads the variables of one family of launchers or clusters; invalid or contradictory
values raise ``UsageError``. Nothing is read from the machine or the network, except where a module
documents it.
"""
