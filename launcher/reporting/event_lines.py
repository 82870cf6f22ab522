"""The text of the event lines, each with round and node."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ... import events as ev
from ...rendezvous.protocol import notes
from ...rendezvous.protocol.messages import Outcome

_PIDS_SHOWN = 8


def line(event: ev.Event) -> str:
    """Return the line for an event; control characters in it are as they came."""
    return _LINES[type(event)](event)


def note_line(note: notes.MasterNote) -> str:
    """Return what a master notes in words."""
    return _NOTES[type(note)](note)


def level(event: ev.Event) -> int:
    """Return how much an event matters, as a level of ``logging``."""
    match event:
        case ev.Remark():
            return _SEVERITIES[event.severity]
        case ev.MasterNoted():
            if event.is_apart:
                return logging.INFO
            return logging.WARNING if type(event.note) is notes.NodeRefused else logging.DEBUG
        case ev.MasterKept():
            return logging.ERROR if event.is_excluded else logging.INFO
        case ev.PreloadChanged():
            if event.is_repeated:
                return logging.DEBUG
            return _PRELOAD_LEVELS.get(event.state, logging.INFO)
        case ev.JobEnded():
            return logging.INFO if event.verdict.exit_code == 0 else logging.ERROR
    return _LEVELS.get(type(event), logging.INFO)


_SEVERITIES: Final = {
    ev.Severity.INFO: logging.INFO,
    ev.Severity.WARNING: logging.WARNING,
    ev.Severity.ERROR: logging.ERROR,
}
_PRELOAD_LEVELS: Final = {
    ev.PreloadState.LOADING: logging.DEBUG,
    ev.PreloadState.FAILED: logging.WARNING,
}
_LEVELS: Final[Mapping[type, int]] = {
    ev.MasterNotHosted: logging.DEBUG,
    ev.ChecksProgressed: logging.DEBUG,
    ev.ForeignAddressAdvertised: logging.WARNING,
    ev.MasterSignalled: logging.WARNING,
    ev.MasterUnreachable: logging.WARNING,
    ev.NodeSignalled: logging.WARNING,
    ev.NodeGoneSoon: logging.WARNING,
    ev.DrainOrdered: logging.WARNING,
    ev.NodeLeaves: logging.WARNING,
    ev.NoticeUnknown: logging.WARNING,
    ev.WorkersFenced: logging.WARNING,
    ev.EndpointsAreOne: logging.WARNING,
    ev.FenceLate: logging.WARNING,
    ev.KilledOnRequest: logging.WARNING,
    ev.WorkersKilled: logging.WARNING,
    ev.HangDismissed: logging.WARNING,
    ev.TimerExpired: logging.WARNING,
    ev.RestartBegun: logging.WARNING,
    ev.LogFileEnded: logging.WARNING,
    ev.RelayLost: logging.WARNING,
    ev.RelayReplaced: logging.WARNING,
    ev.RelayFull: logging.WARNING,
    ev.OutputUnshown: logging.WARNING,
    ev.NodeJudged: logging.WARNING,
    ev.NodePassedWithRemark: logging.WARNING,
    ev.CheckpointFailed: logging.WARNING,
    ev.BreakpointUnsaved: logging.WARNING,
    ev.WorkerFailed: logging.ERROR,
}
"""The levels of events that are more or less than information."""


def nodes_wanted(min_nodes: int, max_nodes: int) -> str:
    """Return ``4`` or ``2:5``, as ``--nnodes`` has it."""
    return str(min_nodes) if min_nodes == max_nodes else f"{min_nodes}:{max_nodes}"


def _at(event: Any) -> str:
    return f"round={event.round} node={event.node_rank}"


def _hello(event: ev.NodeStarted) -> str:
    return (
        f"job={event.job_id} node={event.node_id} nproc_per_node={event.workers} "
        f"({event.source}), {event.master}"
    )


def _started(event: ev.WorkersStarted) -> str:
    last = event.first_rank + len(event.pids) - 1
    ranks = f"{event.first_rank}-{last}" if len(event.pids) > 1 else str(last)
    more = ",…" if len(event.pids) > _PIDS_SHOWN else ""
    return (
        f"{_at(event)} started ranks={ranks} of {event.world_size} on {event.nodes} node(s) "
        f"pids={_pids(event.pids, ',')}{more} store={event.store_addr}:{event.store_port}"
        + (f" in process {event.store_pid}" if event.store_pid is not None else "")
    )


def _pids(pids: Sequence[int], between: str) -> str:
    return between.join(map(str, pids[:_PIDS_SHOWN]))


def _waits(event: ev.NodeWaits) -> str:
    if event.is_spare:
        return f"this node is a spare: a round runs without it ({event.joined} nodes in all)"
    if event.backoff_s:
        why = "--restart-backoff" if event.is_backoff_given else "restarts in a row are spaced"
        if event.has_successors:
            why = "workers of an earlier leader may be alive, or restarts in a row are spaced"
        return f"the next round is formed in {event.backoff_s:.0f} s ({why})"
    wanted = nodes_wanted(event.min_nodes, event.max_nodes)
    missing = f"; missing: {', '.join(event.missing)}" if event.missing else ""
    return (
        f"waiting for nodes: {event.joined} of {wanted} are here{missing} "
        f"(gives up in {event.timeout_s:.0f} s)"
    )


def _stopped(event: ev.WorkersStopped) -> str:
    if event.is_stale:
        return f"{_at(event)} killing {event.workers} worker(s) at once: {event.reason}"
    return f"{_at(event)} stopping {event.workers} worker(s): {event.reason}"


def _killed(event: ev.WorkersKilled) -> str:
    option = "--shutdown-timeout " if event.is_option else ""
    what = f"{event.workers} worker(s)"
    if event.leftovers:
        what = f"{event.leftovers} process(es) that the workers left running"
    return f"{_at(event)} {what} still alive after {option}{event.timeout_s:g} s: sending SIGKILL"


def _recorded(event: ev.CollectivesRecorded) -> str:
    named = [",".join(map(str, ranks)) for ranks in (event.written, event.late)]
    said = f"wrote the last collectives of rank(s) {named[0]}: {event.files}*"
    late = f"rank(s) {named[1]} did not answer in time"
    both = "; ".join((said,) * bool(event.written) + (late,) * bool(event.late))
    return f"{_at(event)} NCCL's flight recorder: {both}"


def _restart(event: ev.RestartBegun) -> str:
    count = f"{event.restarts_used}/{event.max_restarts}"
    if event.is_free:
        count = f"without a count ({count} used)"
    decision = event.decision or "default rule"
    return f"{_at(event)} restart {count}: {event.cause.summary()} ({decision})"


def _succeeded(event: ev.WorkersSucceeded) -> str:
    others = "; waiting for the other nodes" if event.nodes > 1 else ""
    return f"{_at(event)} all {event.workers} worker(s) of this node finished{others}"


def _signalled(event: ev.NodeSignalled) -> str:
    if event.is_check:
        return f"check: received {event.signal}: ending"
    stopping = f"stopping {event.workers} worker(s) and " if event.workers else ""
    return f"received {event.signal}: {stopping}leaving the job"


def _node_leaves(event: ev.NodeLeaves) -> str:
    left = f"all ranks have left the state of step {event.step}: " if event.step >= 0 else ""
    stopping = f"stopping {event.workers} worker(s) and " if event.workers else ""
    return f"{left}{stopping}leaving the job ({event.reason})"


_WORKERS_ALONE: Final = {
    ev.WorkersAlone.NONE: "",
    ev.WorkersAlone.RUN: "workers keep running; ",
    ev.WorkersAlone.DONE: "workers finished; ",
    ev.WorkersAlone.FAILED: "worker failed; the restart waits for the master; ",
    ev.WorkersAlone.STOPPED: "workers stopped; the next round waits for the master; ",
}


def _unreachable(event: ev.MasterUnreachable) -> str:
    why = f" at {event.endpoint} ({event.reason})"
    if event.hosts:
        needed = len(event.hosts) // 2 + 1
        why = f"; {'; '.join(event.hosts)}; {needed} of {len(event.hosts)} elect the leader"
    tries = "reconnecting" if event.is_again else "trying again"
    return (
        f"no connection to the master{why}: {_WORKERS_ALONE[event.workers]}{tries}, gives up in"
        f" {_minutes(event.limit_s)}"
    )


def _minutes(seconds: float) -> str:
    """Return ``9 min 40 s``."""
    minutes, rest = divmod(round(seconds), 60)
    parts = (f"{minutes} min" if minutes else "", f"{rest} s" if rest or not minutes else "")
    return " ".join(filter(None, parts))


def _endpoints_are_one(event: ev.EndpointsAreOne) -> str:
    so = "they count as one host"
    if len(event.endpoints) > event.of // 2:
        so += ", which the job needs, as with one endpoint"
    return f"master: {', '.join(event.endpoints)} are all this process: {so}"


def _master_signalled(event: ev.MasterSignalled) -> str:
    left = "no node is here"
    if event.has_nodes:
        left = "the workers run on and their agents wait for a new master"
    return f"master: received {event.signal}: ending; {left}"


def _kept(event: ev.MasterKept) -> str:
    if event.is_excluded:
        return "this node is excluded; it goes on hosting the master"
    return "hosting the master until the other nodes run again without this one"


def _preload(event: ev.PreloadChanged) -> str:
    named = ", ".join(event.modules)
    match event.state:
        case ev.PreloadState.LOADING:
            return f"preload: importing {named}"
        case ev.PreloadState.READY:
            return f"preload: imported {named} in {event.text}"
        case ev.PreloadState.STALE:
            return f"preload: {event.text} has changed on disk; importing again"
        case ev.PreloadState.FAILED:
            which = "check workers" if event.is_of_checks else "workers"
            return f"preload: {event.text}; {which} start the ordinary way"


def _relay_lost(event: ev.RelayLost) -> str:
    return (
        f"The relay of the workers' output (pid {event.pid}) is gone with {event.streams} streams "
        "open; workers that write to them get a broken pipe."
    )


def _ended(event: ev.JobEnded) -> str:
    word = "succeeded" if event.verdict.outcome is Outcome.SUCCEEDED else "FAILED"
    return f"job {word}: {event.verdict.sentence}"


_NOTES: Final[Mapping[type, Callable[[Any], str]]] = {
    notes.NodeJoined: lambda n: f"node {n.node_id} joined from {n.address}",
    notes.NodeReconnected: lambda n: f"node {n.node_id} is connected again",
    notes.NodeDisconnected: lambda n: f"node {n.node_id} lost its connection",
    notes.NodeLeaves: lambda n: f"node {n.node_id} leaves: {n.reason}",
    notes.NodeGivesNotice: lambda n: (
        f"node {n.node_id} will be gone soon ({n.reason}): all ranks leave the state of one step"
        f" within {n.limit_s:.0f} s"
    ),
    notes.NodeLost: lambda n: f"node {n.node_id} is lost: {n.reason}",
    notes.NodeExcluded: lambda n: f"node {n.node_id} is excluded",
    notes.NodeFailedChecks: lambda n: f"node {n.node_id} is sent away: {n.sentence}",
    notes.NodeRefused: lambda n: f"{n.node} refused: {n.sentence.removesuffix('.')}",
    notes.NodeRenamed: lambda n: f"node {n.node_id} is another host that is called {n.host}",
    notes.OptionsReplaced: lambda n: f"node {n.node_id} comes from this job: its options hold",
    notes.RoundFormed: lambda n: (
        f"round={n.round} formed nodes={n.nodes} world_size={n.world_size} "
        f"restarts={n.restarts}/{n.max_restarts} ({n.reason})"
    ),
    notes.TakeoverBegun: lambda n: (
        f"round={n.round} was formed by an earlier master; taking it over"
    ),
    notes.RoundTakenOver: lambda n: (
        f"round={n.round} taken over nodes={n.nodes}/{n.of_nodes} "
        f"restarts={n.restarts} ({n.finding})"
    ),
    notes.VerdictGiven: lambda n: f"verdict: {n.sentence}",
    notes.JobForgotten: lambda _: "no node is left of a job that has not begun",
    notes.AllSilent: lambda n: (
        f"nothing is heard of any node: the round is kept for {n.kept_s:g} s"
    ),
    notes.NodesHeardAgain: lambda _: "nodes are heard of again",
    notes.ChecksBegun: lambda n: f"checking {n.nodes} of {n.of_nodes} nodes",
    notes.ChecksGivenUp: lambda _: "the checks are given up",
    notes.ChecksConcluded: lambda n: f"checks: {n.sentence}",
}
_LINES: Final[Mapping[type, Callable[[Any], str]]] = {
    ev.Remark: lambda e: e.sentence,
    ev.NodeStarted: _hello,
    ev.NodeRenamed: lambda e: (
        f"another host is called {e.proposed.rpartition('/')[0]} as well: this node is {e.given}"
    ),
    ev.ForeignAddressAdvertised: lambda e: (
        f"--local-addr: {e.address} is not an address of this host; workers of other nodes "
        "will use it all the same (right for a translated address only)"
    ),
    ev.MasterListening: lambda e: f"master: listening at {e.endpoint} (port {e.port})",
    ev.WireOpen: lambda e: (
        f"master: {e.endpoint} is open to all that reach it, since the job has no token "
        "(ft-run token, --token-file)"
    ),
    ev.MasterNoted: lambda e: f"master: {note_line(e.note)}",
    ev.MasterSignalled: _master_signalled,
    ev.MasterMoved: lambda e: (
        f"the port of the endpoint is free now: master hosted here, {e.address}"
    ),
    ev.MasterNotHosted: lambda e: f"cannot host the master: {e.reason}",
    ev.MasterKept: _kept,
    ev.MasterConnected: lambda e: "connected to the master" + (" again" if e.is_again else ""),
    ev.MasterUnreachable: _unreachable,
    ev.MasterAwaitedToLeave: lambda e: (
        f"the master is away: trying for {e.limit_s:.0f} s to tell it that this node leaves"
    ),
    ev.NodeWaits: _waits,
    ev.NodeSignalled: _signalled,
    ev.NodeGoneSoon: lambda e: (
        f"this node will be gone in {e.seconds:.0f} s ({e.reason}): all ranks leave the state of"
        f" one step first, within {e.limit_s:.0f} s"
    ),
    ev.DrainOrdered: lambda e: (
        f"{e.reason}: all ranks leave the state of one step first, within {e.limit_s:.0f} s"
    ),
    ev.NodeLeaves: _node_leaves,
    ev.NoticeUnknown: lambda e: (
        f"--preemption-notice {e.source}: {e.reason}; the node runs on without notices"
    ),
    ev.WorkersFenced: lambda e: (
        f"no leader for {e.limit_s:g} s: the workers here are killed, as others may start without"
        " this node"
    ),
    ev.FenceLate: lambda e: (
        f"the workers here were killed up to {e.late_s:.1f} s too late, as this host is too busy:"
        " workers without this node may have run meanwhile"
    ),
    ev.HostLeads: lambda e: (
        f"master: this host leads, term {e.term}" if e.term else "master: this host no longer leads"
    ),
    ev.EndpointsAreOne: _endpoints_are_one,
    ev.JobOver: lambda e: f"master: the job is over, exit status {e.exit_code}",
    ev.KilledOnRequest: lambda _: "a second Ctrl-C: killing what is left",
    ev.WorkersStarted: _started,
    ev.WorkerFailed: lambda e: f"{_at(e)} {e.failure.summary()}",
    ev.WorkersStopped: _stopped,
    ev.WorkersKilled: _killed,
    ev.HangDismissed: lambda e: f"{_at(e)} {e.sentence}",
    ev.StacksKept: lambda e: f"{_at(e)} where all ranks were: {e.path}",
    ev.CollectivesRecorded: _recorded,
    ev.TimerExpired: lambda e: f"{_at(e)} ending process {e.pid}: its timer {e.scope!r} expired",
    ev.WorkersSucceeded: _succeeded,
    ev.LeftoversEnded: lambda e: (
        f"ending {len(e.pids)} process(es) that the workers left running "
        f"(pid {_pids(e.pids, ', ')})"
    ),
    ev.RestartBegun: _restart,
    ev.RegroupBegun: lambda e: f"{_at(e)} regroup with {e.nodes} node(s): {e.reason}",
    ev.PreloadChanged: _preload,
    ev.PreloadAwaited: lambda e: f"{_at(e)} waits for the preload",
    ev.LogFileEnded: lambda e: f"The log file {e.path} ends here, the workers run on: {e.reason}.",
    ev.RelayLost: _relay_lost,
    ev.RelayReplaced: lambda e: f"Another relay carries the workers' output now (pid {e.pid}).",
    ev.RelayFull: lambda _: "The relay has no file descriptor left: raise the limit (ulimit -n).",
    ev.OutputUnshown: lambda e: (
        f"{e.bytes} bytes of the workers' output are not shown: nothing read them."
    ),
    ev.CheckpointWritten: lambda e: (
        f"The checkpoint of step {e.step} is complete: {e.path} ({e.bytes / 1e6:.1f} MB in "
        f"{e.seconds:.1f} s)."
    ),
    ev.CheckpointFailed: lambda e: (
        f"The checkpoint of step {e.step} was not written: {e.reason}"
        f"{f'; the newest complete one is of step {e.newest}' if e.newest >= 0 else ''}."
    ),
    ev.BreakpointUnsaved: lambda e: (
        f"The snapshot of step {e.step} is lost, no checkpoint of it was written: {e.reason}."
    ),
    ev.ChecksProgressed: lambda e: f"{'check' if e.is_alone else 'checks'}: {e.progress}",
    ev.NodeJudged: lambda e: f"checks: {e.node} {e.standing}: {e.reasons}",
    ev.NodePassedWithRemark: lambda e: f"checks: this node passed, but {e.sentence}",
    ev.ChecksEnded: lambda e: f"checks: {e.conclusion}",
    ev.LogsKept: lambda e: f"logs of this node: {e.path}",
    ev.JobEnded: _ended,
}
