"""``--auto-tune`` and ``--tune-file``: values to try, whether they are faster, and those kept."""
