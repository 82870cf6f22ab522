"""The command line: parses arguments and ``PET_*`` variables into validated options.

It starts nothing, and does not inspect the machine except whether the script exists; it reads the
files of ``--config`` and ``--hostfile``.
Invalid input raises a ``UsageError`` that names the problem, the value and what is expected.
``--help``, ``--version`` and ``--dry-run`` print their output and raise ``SystemExit`` with 0.
"""
