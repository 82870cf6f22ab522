"""The command line: parses arguments and ``PET_*`` variables into validated options.

It starts and opens nothing, and does not inspect the machine.
"""
