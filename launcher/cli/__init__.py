"""The command line: arguments and ``PET_*`` variables in, checked options out.

Nothing is started, opened or asked of the machine here.
"""
