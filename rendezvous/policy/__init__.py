"""The failure policy: rules, restart budget, blame, root cause. Pure."""
