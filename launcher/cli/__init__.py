"""The command line: parses arguments and ``PET_*`` variables into validated options.

It does not start or open anything, nor inspect the machine.
"""
