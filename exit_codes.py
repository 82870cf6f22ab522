"""The exit statuses of ``ft-run``: stable, for Slurm scripts and Kubernetes policies.

Plain integers rather than an enum, so that importing them costs nothing and they are usable
wherever the operating system wants a number.
"""

from typing import Final

SUCCESS: Final = 0
"""The job succeeded."""

WORKERS_FAILED: Final = 1
"""Workers failed and the restart budget is spent (as torchrun), or one survived SIGKILL."""

USAGE: Final = 2
"""The command line, the environment or a file it names is wrong."""

POLICY_ENDED_JOB: Final = 3
"""The failure policy ended the job: trying again would not help."""

CHECKS_WARNED: Final = 10
"""``ft-run check --strict``: the node has passed, with a warning."""

CHECKS_FAILED: Final = 20
"""Checks failed; worth retrying."""

NODE_EXCLUDED: Final = 30
"""This node is unhealthy and was excluded."""

RENDEZVOUS_FAILED: Final = 40
"""No master, or not enough nodes in time."""

REFUSED: Final = 41
"""The master refused this node: configuration, version, job id, identity or token."""

SIGNAL_BASE: Final = 128
"""128 + n: ended by signal n after an orderly stop."""
