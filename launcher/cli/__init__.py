"""The command line: words, ``PET_*`` variables and flags in, checked options out.

Nothing is started, opened or asked of the machine here.
"""
