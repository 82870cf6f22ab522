"""The failure policy: rules, restart budget, blame, root cause. No I/O, no clock."""
