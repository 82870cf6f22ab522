"""The lines of ``ft-run status`` above the table: the questions of the person on call.

Is it training? How much would be lost? How often was it restarted, and why? Which nodes are
missing? Is it slower than it was, and is it the data? The status is the result of ``status_dict``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ...events.node import nodes_wanted
from ..history.steps import counted, is_late, rate
from .live_status import duration

Status: TypeAlias = Mapping[str, Any]

_BETWEEN_ROUNDS = ("waiting for nodes", "checking nodes")
"""Phases of a group without a running round; values of ``GroupPhase``, which is not imported here,
because the master may have another version."""
_COMPLETE_SHOWN = 3
"""Maximum number of lines for complete names of other work; more names share one line."""
_SLOWER: float = 1.1
_WAIT_SHOWN = 0.01
_NAMES_SHOWN = 6


def status_lines(status: Status) -> list[str]:
    """Return the lines."""
    if not _leads(status):
        return ["this host is not the leader, and no leader answers", _led(status)]
    lines = [*_job(status)]
    lines[-1] += f" · master up {duration(status['uptime_s'])}"
    lines += filter(None, (_training(status), _saves(status), _restarts(status), _nodes(status)))
    lines += _progress(status.get("work") or ())
    advice = (status.get("summary") or {}).get("advice") or ()
    lines += [f"advice: {one['text']}" for one in advice]
    if status["last_stop"] and not any(status["last_stop"] in line for line in lines):
        lines.append(f"last stop: {status['last_stop']}")
    if status.get("hosts"):
        lines.append(_led(status))
    return lines


def _leads(status: Status) -> bool:
    return not status.get("hosts") or status["lease_s"] > 0


def _led(status: Status) -> str:
    """Return the text about the leader, if several hosts may lead."""
    others = ", ".join(host for host in status["hosts"] if host != status["leader"])
    if not status["leader"]:
        return f"no leader · hosts: {others}"
    left = f", lease {status['lease_s']:.1f} s" if status["lease_s"] else ""
    return f"leader {status['leader']}, term {status['term']}{left} · other hosts: {others}"


def _job(status: Status) -> Iterator[str]:
    wanted = nodes_wanted(status["min_nodes"], status["max_nodes"])
    restarts = f"restarts {status['restarts']}/{status['max_restarts']}"
    if not status["job_id"]:
        yield f"no node has joined yet · {status['phase']}"
        return
    yield f"job {status['job_id']} · {status['phase']}"
    if status["round"] < 0 or status["phase"] in _BETWEEN_ROUNDS:
        here = f"nodes {len(status['nodes'])} of {wanted} connected"
        if status["round"] >= 0:
            here = f"round {status['round']} is over · {here} · {restarts}"
        yield here
    else:
        yield (
            f"round {status['round']} up {duration(status['round_uptime_s'])} · "
            f"nodes {status['world_nodes']} of {wanted} · {restarts}"
        )


def furthest_worker(status: Status) -> Mapping[str, Any] | None:
    """Return the worker of the job with the most steps; None if none has shown progress."""
    return furthest(worker for node in status["nodes"] for worker in node["workers"])


def furthest(workers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the worker with the most steps; None if none has shown progress."""
    # Ranks that train together differ by one step, and some may do none by design.
    return max(workers, key=lambda worker: (worker["steps"], -worker["idle_s"]), default=None)


def pace(worker: Mapping[str, Any]) -> str:
    """Return the rate of a worker, or the time since its last step if that is long."""
    if is_late(worker["steps_per_s"], worker["idle_s"]):
        return f"none for {duration(worker['idle_s'])}"
    return rate(worker["steps_per_s"])


def _training(status: Status) -> str:
    worker = furthest_worker(status)
    if worker is None:
        is_unknown = status["phase"] == "running" and status["nodes"]
        return "training: no step reported so far (--watch-workers)" if is_unknown else ""
    step, idle_s = worker["steps"], worker["idle_s"]
    if is_late(worker["steps_per_s"], idle_s):
        return f"training: no step for {duration(idle_s)}, step {step}"
    parts = [f"training: step {step}, {idle_s:.1f} s ago"]
    if worker["steps_per_s"]:
        parts.append(f"{rate(worker['steps_per_s'])} steps/s{_slowdown(status, worker)}")
    wait = _part(status, "training").get("data_wait")
    if wait is not None:
        parts.append(f"waits for data {wait:.0%} of the time")
    return " · ".join(parts)


def _slowdown(status: Status, worker: Mapping[str, Any]) -> str:
    best = _part(status, "training").get("best_hour_steps_per_s")
    if not best or best < _SLOWER * worker["steps_per_s"]:
        return ""
    return f", {rate(best)} in the best hour"


def _saves(status: Status) -> str:
    saves, parts = _part(status, "saves"), []
    if status["checkpoint_step"]:
        age = duration(status["checkpoint_age_s"])
        parts.append(f"last checkpoint: step {status['checkpoint_step']}, {age} ago")
    elif saves.get("checkpoint"):  # from a node that has left
        age = _age(status, saves["checkpoint"]["at_s"])
        parts.append(f"last checkpoint: step {saves['checkpoint']['step']}, {age} ago")
    if saves.get("snapshot_step", -1) >= 0:
        at_s = saves.get("snapshot_at_s")
        age = f", reported {_age(status, at_s)} ago" if at_s is not None else ""
        parts.append(f"snapshot: step {saves['snapshot_step']}{age}")
    if saves.get("replica_lag") is not None:
        parts.append(f"replica {saves['replica_lag']} steps behind")
    if failed := saves.get("failed"):
        parts.append(f"{failed} failed since: {saves['reason']}")
    return " · ".join(parts)


def _restarts(status: Status) -> str:
    restarts = _part(status, "restarts")
    if not restarts.get("count"):
        return ""
    last = restarts["last"][-1]
    age, cause = _age(status, last["at_s"]), last["cause"]["summary"]
    return f"{counted(restarts['by_kind'])} · last {age} ago: {cause}"


def _nodes(status: Status) -> str:
    nodes, parts = _part(status, "nodes"), []
    lost = nodes.get("lost") or ()
    spares = sum(is_spare(node, status) and node["attached"] for node in status["nodes"])
    if spares:
        parts.append(f"{spares} spare{'s' * (spares > 1)}")
    away = [node["node_id"] for node in status["nodes"] if not node["attached"]]
    for what, names in (
        ("missing", [name for name in nodes.get("missing") or () if name not in lost]),
        ("disconnected", away),
        ("lost", lost),
        ("excluded", nodes.get("excluded") or ()),
    ):
        if names:
            more = f" and {len(names) - _NAMES_SHOWN} more" * (len(names) > _NAMES_SHOWN)
            parts.append(f"{what}: {', '.join(names[:_NAMES_SHOWN])}{more}")
    return "nodes: " + " · ".join(parts) if parts else ""


def _progress(works: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each name of other work, but one for many that are complete."""
    lines, complete = [], []
    for work in works:
        done, size, unit = work["done"], work["size"], work["unit"]
        line = f"{work['what']} {work['name']}: {done} of {size} {unit}".lstrip()
        if done >= size:
            complete.append(work["what"])
            line += ", complete"
        else:
            line += f" ({100 * done // size} %)"
            if work["per_s"]:
                line += f", {rate(work['per_s'])} {unit}/s, {duration(work['left_s'])} left"
        lines.append(line)
    if len(complete) > _COMPLETE_SHOWN:
        lines = [line for line in lines if not line.endswith("complete")]
        lines += [f"{what}: {count} names complete" for what, count in Counter(complete).items()]
    return lines


def ranks(node: Mapping[str, Any]) -> str:
    """Return the ranks of a node: ``8-15``."""
    first, size = node["rank_offset"], node["local_world_size"]
    return "-" if first < 0 else f"{first}-{first + size - 1}" if size > 1 else str(first)


def data_waits(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each node how much of the time it waits for data; empty if none does.

    Each rank waits for all others in each step, so the longest wait of a rank counts.
    """
    waits = [
        max((worker.get("data_wait", 0.0) for worker in node["workers"]), default=-1.0)
        for node in nodes
    ]
    are_shown = max(waits, default=0.0) >= _WAIT_SHOWN
    return ["-" if wait < 0 else f"{wait:.0%}" for wait in waits] if are_shown else []


def is_spare(node: Mapping[str, Any], status: Status) -> bool:
    """Return whether a node is a spare: ready, outside of a formed round."""
    return bool(node["node_rank"] < 0 and node["phase"] == "ready" and status["round"] >= 0)


def _part(status: Status, name: str) -> Mapping[str, Any]:
    """Return a part of the summary; empty if the master has none, or is older."""
    summary = status.get("summary") or {}
    part: Mapping[str, Any] = summary.get(name) or {}
    return part


def _age(status: Status, at_s: float) -> str:
    return duration(max(0.0, (status.get("time_s") or at_s) - at_s))
