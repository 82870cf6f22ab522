"""This node's part in the checks before training: the check workers and the output of results.

The package ``checks`` contains the measurements and the verdict.
"""
