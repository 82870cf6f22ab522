"""The exit codes of ``ft-run``: stable, for Slurm scripts and Kubernetes policies.

Plain integers rather than an enum, so that importing them costs nothing and they are usable
wherever the operating system wants a number.
"""

from typing import Final

SUCCESS: Final = 0
"""The job succeeded."""

WORKERS_FAILED: Final = 1
"""Workers failed and no restarts are left (as torchrun), or a worker survived SIGKILL."""

USAGE: Final = 2
"""Usage error: the command line, a variable, or a file that it names is invalid."""

POLICY_ENDED_JOB: Final = 3
"""The failure policy ended the job: a retry would fail again."""

CHECKS_WARNED: Final = 10
"""``ft-run check --strict``: the node passed with warnings."""

CHECKS_FAILED: Final = 20
"""Checks failed or left too few nodes; a retry may succeed."""

NODE_EXCLUDED: Final = 30
"""This node was excluded, by the failure policy or by the checks."""

RENDEZVOUS_FAILED: Final = 40
"""Rendezvous failed: no master, or too few nodes in time."""

REFUSED: Final = 41
"""The master refused this node: options, version, job ID, identity or token differ."""

SIGNAL_BASE: Final = 128
"""128 + n: ended by signal n after an orderly stop."""
