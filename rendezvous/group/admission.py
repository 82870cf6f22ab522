"""Which nodes can join a job, and why a node is refused."""

import functools
import math
import typing
from typing import Any

from msgspec.structs import replace

from ..policy.matches import BadRule
from ..policy.rules import Rule
from ..protocol.bounds import Called
from ..protocol.lease_messages import SuccessionSpec
from ..protocol.messages import PROTOCOL_VERSION, Attend, HangSpec, JobSpec, NodeSpec, PolicySpec

_PARTS = {"policy": PolicySpec(), "hang": HangSpec(timeout_s=math.inf, start_s=math.inf)}
"""Options of a job that are compared one by one, and their defaults if they are not sent."""
_APART = ("job_id", "checks", "succession", *_PARTS)


def refusal(
    attend: Attend, job: JobSpec | None, succession: SuccessionSpec | None = None
) -> str | None:
    """Return a one-line reason why a node cannot join the job; None if it can.

    ``job`` are the options that earlier nodes agreed on, None for the first node; ``succession`` is
    None if this host has only one endpoint.
    """
    if attend.protocol != PROTOCOL_VERSION:
        return (
            f"protocol {attend.protocol} (ft-run {attend.version}) is not that of the master, "
            f"{PROTOCOL_VERSION}; install the same version of ft-run on all nodes."
        )
    sentence = _nonsense(attend)
    if sentence is not None:
        return sentence
    differences = succession_differences(attend.job.succession, succession, "this job")
    if differences:
        return options_differ(differences)
    # Only the first node's rules are parsed: the rules of later nodes must be equal. So a node that
    # does not belong to the job cannot make the master parse its rules.
    return _bad_rule(attend.job) if job is None else difference(attend.job, job)


def _nonsense(attend: Attend) -> str | None:
    job, node = attend.job, attend.node
    if not 1 <= job.min_nodes <= job.max_nodes or job.node_unit < 1:
        return (
            f"--nnodes {job.min_nodes}:{job.max_nodes} with --node-unit {job.node_unit} is "
            "invalid; expected 1 <= MIN <= MAX and a unit >= 1."
        )
    if job.min_nodes % job.node_unit:
        return (
            f"the minimum of --nnodes ({job.min_nodes}) is not a multiple of --node-unit "
            f"({job.node_unit})."
        )
    if not node.node_id or not node.incarnation or node.local_world_size < 1:
        return "no identity or no number of workers; only ft-run agents can join."
    if node.wanted_rank is not None and not 0 <= node.wanted_rank < job.max_nodes:
        return (
            f"--node-rank {node.wanted_rank} is not below the number of nodes ({job.max_nodes}); "
            f"expected 0 to {job.max_nodes - 1}."
        )
    return None


def _bad_rule(job: JobSpec) -> str | None:
    try:
        for rule in job.policy.rules if job.policy is not None else ():
            Rule.parse(rule)
    except BadRule as bad:
        return f"invalid rule of --on-failure: {bad}."
    return None


def difference(given: JobSpec, agreed: JobSpec) -> str | None:
    """Return a line on how a node's options differ from the job's; None if they agree."""
    if given.job_id != agreed.job_id:
        return (
            f"--rdzv-id {given.job_id!r} is not the job of this master ({agreed.job_id!r}); use "
            "the same id or another endpoint."
        )
    found = _differing(given, agreed)
    for part, default in _PARTS.items():
        found += _differing(getattr(given, part) or default, getattr(agreed, part) or default)
    if given.checks is not None and agreed.checks is not None:
        found += _differing(given.checks, agreed.checks)
    elif given.checks != agreed.checks:
        found.append(("--network-check", given.checks is not None, agreed.checks is not None))
    return options_differ(_words(found, "this job")) if found else None


def succession_differences(
    given: SuccessionSpec | None,
    other: SuccessionSpec | None,
    whose: str,
    *,
    both_lead: bool = False,
) -> list[str]:
    """Return the differences between two lists of hosts, each with both values.

    ``given`` and ``other`` are None for a single endpoint; ``whose`` names the owner of ``other``.
    Only if both hosts can lead are their leases compared: other nodes ignore the lease.
    """
    if given is not None and other is not None:
        if not both_lead:
            given = replace(given, lease_s=other.lease_s)
        return _words(_differing(given, other), whose)
    if given == other:
        return []
    mine, theirs = (spec.endpoints if spec is not None else "no list" for spec in (given, other))
    return _words([("--rdzv-endpoint", mine, theirs)], whose)


def options_differ(differences: list[str]) -> str:
    """Return the error for a node, from the results of ``succession_differences``."""
    return f"the node's options differ: {', '.join(differences)}."


@functools.cache
def _options(kind: Any) -> tuple[tuple[str, str], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((name, _option(name, hint)) for name, hint in hints.items() if name not in _APART)


def _option(name: str, hint: object) -> str:
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Called):
            return mark.words
    flag = f"--{name.removesuffix('_s').replace('_', '-')}"
    return f"{flag} in seconds" if name.endswith("_s") else flag


def _words(found: list[tuple[str, object, object]], whose: str) -> list[str]:
    return [
        f"{option} is {_shown(mine)} ({whose}: {_shown(theirs)})" for option, mine, theirs in found
    ]


def _differing(given: object, agreed: object) -> list[tuple[str, object, object]]:
    kind: Any = type(agreed)
    both = (
        (option, getattr(given, name), getattr(agreed, name)) for name, option in _options(kind)
    )
    return [(option, mine, theirs) for option, mine, theirs in both if mine != theirs]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(repr, value)) or "empty"
    if value is None:
        return "not given"
    if isinstance(value, float):
        return "never" if value == math.inf else f"{value:g}"
    return {True: "set", False: "not set"}[value] if isinstance(value, bool) else str(value)


def endpoint_taken(holder: NodeSpec) -> str:
    """Return the error for a node of a different job without an ID at this job's endpoint."""
    return (
        f"another job without --rdzv-id, of one node ({holder.host}), is running at this endpoint; "
        "use a different --rdzv-endpoint for each job, or the same --rdzv-id for a spare of that "
        "job."
    )


def identity_taken(attend: Attend, holder: NodeSpec) -> str:
    """Return the error for a node whose identity or rank a live node already has."""
    node = attend.node
    if node.wanted_rank is not None and node.wanted_rank == holder.wanted_rank:
        return (
            f"--node-rank {node.wanted_rank} is already used by another node; give each node its "
            "own rank, or none."
        )
    return (
        f"node id {node.node_id!r} is already used by another node; agents that share an address "
        "but not /tmp need different host names."
    )
