"""The commands of ft-run, one module each.

Every command returns an exit code; errors that a user can cause are raised as ``FtRunError``.
"""
