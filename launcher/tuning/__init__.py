"""``--auto-tune on``: which values to try, and whether one is faster. Pure: no clock, no I/O."""
