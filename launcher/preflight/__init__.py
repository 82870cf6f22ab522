"""This node's part in the checks before training: the check workers and what is shown of them.

What they measure and what follows from it is in ``checks``.
"""
