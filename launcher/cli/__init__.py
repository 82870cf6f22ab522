"""The command line: parses arguments and ``PET_*`` variables into validated options.

It does not start or open anything, nor inspect the machine, except whether the script exists.
Invalid input raises a ``UsageError`` that names the problem, the value and what is expected.
``--help``, ``--version`` and ``--dry-run`` print their output and raise ``SystemExit`` with 0.
"""
