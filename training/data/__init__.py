"""Which samples each step of training has, on each rank: a function of the step alone."""
