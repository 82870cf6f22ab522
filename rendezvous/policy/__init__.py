"""What follows from a failure: rules, budget, blame, root cause. Pure."""
