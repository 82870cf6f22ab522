"""This node's part in the checks before training: the check workers and the output of results.

``checks`` has the measurements and the verdict.
"""
