"""One node: connects to the master, runs its workers, reports, and exits with the verdict.

The node executes the master's orders and makes no decisions for the group.
"""
