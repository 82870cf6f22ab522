"""This node's part in the checks before training: check workers and output of results.

The package ``checks`` contains the measurements and the verdict.
"""
