"""Where workers' output goes: the log folder, and the relay that tees it."""
