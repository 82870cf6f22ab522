"""Flags of launchers that are based on torchrun: the equivalent of ft-run, or an error.

A flag is accepted if ours means the same; otherwise the error names ours. Sources: dlrover-run
(2026-08) and NVRx's ft_launcher (2026-08).
"""

from collections.abc import Mapping
from typing import Final

from ...errors import UsageError
from ..flags.values import BadValue, either, refuse

_NO_VALUE: Final = ("null", "none", "")
"""Values of ft_launcher that disable a time limit."""

_NOTHING: Final = "{ignored}"

TAKEN: Final[Mapping[str, str]] = {
    "--training-port": "--worker-port={}",
    "--numa-affinity": "--numa-binding=node",
    "--auto-tunning": "--auto-tune=on",
    "--workers-stop-timeout": "--shutdown-timeout={}",
    "--ft-rank-heartbeat-timeout": "--hang-timeout={}",
    "--ft-initial-rank-heartbeat-timeout": "--hang-timeout-start={}",
    # Nothing polls here, as with --monitor-interval.
    "--ft-workload-check-interval": _NOTHING,
    "--ft-node-health-check-interval": _NOTHING,
    "--ft-restart-check-interval": _NOTHING,
}
"""Our flag for each of theirs; ``{}`` is the value. Without ``{}``, theirs is a switch."""

CHOICES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "--precheck": {
        "0": (),
        "1": ("--network-check",),
        "2": ("--network-check", "--check-level=full"),
    },
    "--ft-restart-policy": {"any-failed": ()},
    "--ft-rdzv-impl": {"barrier": ()},
    "--ft-enable-nic-healthcheck": {"false": (), "true": ("--network-check",)},
}

_CHECKS = "--network-check, or ft-run check before the job"
_HANG = "--hang-timeout SECONDS or --hang-timeout auto"
_CHECKPOINTER = "ft_run.training.Checkpointer in the script (docs/guide/checkpoints.md)"

REFUSED: Final[Mapping[str, str]] = {
    # dlrover-run
    "--ucp-device-type": _CHECKPOINTER,
    "--comm-perf-test": "--network-check --check-level full",
    "--membind-policy": "--numa-binding node, which binds CPUs; their memory comes from near them",
    # ft_launcher
    "--term-timeout": "--shutdown-timeout SECONDS, which holds for every stop",
    "--ft-cfg-path": "flags or PET_* variables (docs/guide/migrating.md)",
    "--ft-ignore-missing-cfg": "to leave it out: there is no such file",
    "--ft-safety-factor": "--hang-timeout auto, which is ten times the longest step",
    "--ft-rank-section-timeouts": _HANG,
    "--ft-rank-out-of-section-timeout": _HANG,
    "--ft-skip-section-response": _HANG,
    "--ft-rank-termination-signal": "--shutdown-timeout SECONDS, between SIGTERM and SIGKILL",
    "--ft-log-level": "LOGLEVEL=DEBUG in the environment",
    "--ft-node-health-check-endpoint": _CHECKS,
    "--ft-enable-nic-monitor": _CHECKS,
    "--ft-pci-topo-file": _CHECKS,
    "--ft-link-down-path-template": _CHECKS,
    "--ft-link-state-path-template": _CHECKS,
    "--ft-enable-dist-storage-healthcheck": _CHECKS,
    "--ft-storage-health-check-path": _CHECKS,
    "--ft-gpu-memory-reclaim-timeout": _CHECKS,
    "--ft-gpu-memory-tolerance-mb": _CHECKS,
    "--ft-gpu-memory-poll-interval": _CHECKS,
    "--ft-numa-bind-strict": "--numa-binding node",
    "--ft-check-remaining-processes": "to leave it out: no process of a round is left, always",
    "--ft-install-exception-hook": "to leave it out: exceptions are captured, always",
    "--ft-max-no-progress-cycles": "--max-no-progress N, which counts restarts, not cycles",
    "--ft-min-progress-iterations": "--max-no-progress N: any new step is progress",
    "--ft-checkpoint-iteration-file": "ft_run.training.progress(step) in the script",
    "--ft-per-cycle-applog-prefix": "--log-dir DIR --tee 3, with a directory for each restart",
    "--ft-enable-log-server": "--log-dir DIR: log files are each node's own",
    "--ft-segment": "--node-unit N, and --segment LABEL where nodes have no NVLink domain",
}
"""The replacement for each flag, for the error."""


def ours(word: str, following: list[str]) -> list[str] | None:
    """Return our flags for another launcher's ``--flag`` or ``--flag=value``; None for other flags.

    ``following`` has the arguments after it, the next one last; a value is removed from there.
    """
    given, equals, value = word.partition("=")
    name = given.replace("_", "-")
    if name in REFUSED:
        raise UsageError(f"{given} is a flag of another launcher; expected {REFUSED[name]}.")
    if name not in TAKEN and name not in CHOICES:
        return None
    pattern = TAKEN.get(name, _NOTHING)
    if "{" not in pattern:  # a switch
        return [pattern]
    if not equals:
        if not following:
            raise UsageError(f"{given} needs a value; expected {given} VALUE.")
        value = following.pop()
    if name in CHOICES:
        found = CHOICES[name].get(value.lower())
        if found is None:
            raise refuse(given, value, BadValue(either(tuple(CHOICES[name]))))
        return list(found)
    if pattern == _NOTHING:
        return []
    if name.startswith("--ft-") and value.lower() in _NO_VALUE:
        return []
    return [pattern.format(value)]
