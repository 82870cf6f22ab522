"""Events: every one has a text and a severity."""

import string

import pytest
from ft_run.events.event import Event, LogMessage, Severity
from ft_run.events.master import EndpointsAreOne, MasterSignalled, NodeLost, NodeRefused
from ft_run.events.node import (
    JobEnded,
    MasterConnected,
    MasterUnreachable,
    NodeSignalled,
    NodeWaits,
    ThisNodeLeaves,
    ThisNodeRenamed,
    WorkersAlone,
)
from ft_run.events.preload import PreloadChanged, PreloadSource, PreloadState
from ft_run.events.schema import event_classes
from ft_run.events.workers import (
    RestartBegun,
    WorkersStarted,
    WorkersStopped,
)
from ft_run.rendezvous.protocol.failure import Failure, node_lost
from ft_run.rendezvous.protocol.messages import Outcome, Verdict, Waiting

LOST: Failure = node_lost(1, "h1", "default", "its connection was closed")
CASES: list[tuple[Event, int, str]] = [
    (LogMessage("x", Severity.ERROR), Severity.ERROR, "x"),
    (
        ThisNodeRenamed("vm/0", "vm/1"),
        Severity.INFO,
        "duplicate host name vm: this node is vm/1",
    ),
    (
        NodeRefused("node vm/1 at 10.0.0.1", "no."),
        Severity.WARNING,
        "master: node vm/1 at 10.0.0.1 refused: no",
    ),
    (
        MasterSignalled("SIGTERM", has_nodes=False),
        Severity.WARNING,
        "master: received SIGTERM, exiting; no nodes are connected",
    ),
    (MasterConnected(is_again=True), Severity.INFO, "reconnected to the master"),
    (
        MasterUnreachable("timeout", "m:1", WorkersAlone.RUNNING, 600.0, is_again=True),
        Severity.WARNING,
        "no connection to the master at m:1 (timeout): workers keep running; reconnecting, "
        "gives up in 10 min",
    ),
    (
        MasterUnreachable(
            "timeout",
            "a, b, c",
            WorkersAlone.NONE,
            55.0,
            False,
            ("a:1: no leader yet", "b:1: no answer", "c:1: no answer"),
        ),
        Severity.WARNING,
        "no connection to the master; a:1: no leader yet; b:1: no answer; c:1: no answer; 2 of 3 "
        "needed to elect a leader: trying again, gives up in 55 s",
    ),
    (
        EndpointsAreOne(("a:1", "b:1"), 3),
        Severity.WARNING,
        (
            "master: a:1, b:1 are all this process and count as one host, and the job does not "
            "survive its loss"
        ),
    ),
    (
        EndpointsAreOne(("a:1", "b:1"), 5),
        Severity.WARNING,
        "master: a:1, b:1 are all this process and count as one host",
    ),
    (
        NodeWaits(Waiting(1, 2, 3, ("host-7",), 600.0, False), False),
        Severity.INFO,
        "waiting for nodes: 1 of 2:3 connected; missing: host-7 (gives up in 10 min)",
    ),
    (NodeSignalled("SIGTERM", 0), Severity.WARNING, "received SIGTERM: leaving the job"),
    (
        NodeSignalled("SIGINT", 2),
        Severity.WARNING,
        "received SIGINT: stopping 2 worker(s) and leaving the job",
    ),
    (
        ThisNodeLeaves("notice of gcp", 2, 7),
        Severity.WARNING,
        "all ranks saved the snapshot of step 7: stopping 2 worker(s) and leaving the job "
        "(notice of gcp)",
    ),
    (
        ThisNodeLeaves("SIGTERM", 0, -1),
        Severity.WARNING,
        "leaving the job (SIGTERM)",
    ),
    (
        WorkersStarted(1, 2, 8, (5, 6), 16, 2, "h", 9, None),
        Severity.INFO,
        "round=1 node_rank=2 started ranks=8-9 of 16 on 2 node(s) pids=5,6 store=h:9",
    ),
    (
        WorkersStopped(1, 2, 4, "why", is_stale=False),
        Severity.INFO,
        "round=1 node_rank=2 stopping 4 worker(s): why",
    ),
    (
        WorkersStopped(1, 2, 4, "why", is_stale=True),
        Severity.INFO,
        "round=1 node_rank=2 killing 4 worker(s) at once: why",
    ),
    (
        RestartBegun(1, 2, LOST, "", False, 1, 3),
        Severity.WARNING,
        "round=1 node_rank=2 restart 1/3: node 1 (h1) was lost: its connection was closed "
        "(default rule)",
    ),
    (
        RestartBegun(1, 2, LOST, "oom=restart-free", True, 0, 3),
        Severity.WARNING,
        "round=1 node_rank=2 restart (not counted, 0/3 used): node 1 (h1) was lost: its connection "
        "was closed (oom=restart-free)",
    ),
    (
        PreloadChanged(PreloadState.FAILED, ("torch",), "no torch", is_of_checks=True),
        Severity.WARNING,
        "preload: no torch; falling back to normal check worker start",
    ),
    (
        PreloadChanged(
            PreloadState.READY,
            ("numpy", "torch", "torch._dynamo"),
            "9.1 s (222 MiB)",
            source=PreloadSource.WORKERS,
        ),
        Severity.INFO,
        "preload: imported 3 module(s) of numpy, torch, which the workers use, in 9.1 s (222 MiB);"
        " the next workers are forked",
    ),
    (
        PreloadChanged(
            PreloadState.READY,
            ("torch", "torch._dynamo"),
            "2.0 s (210 MiB)",
            source=PreloadSource.TUNE_FILE,
        ),
        Severity.INFO,
        "preload: imported 2 module(s) of torch in 2.0 s (210 MiB)",
    ),
    (
        JobEnded(Verdict(Outcome.SUCCEEDED, 0, "done", 0, 1, None, (), 0)),
        Severity.INFO,
        "job succeeded: done",
    ),
    (
        JobEnded(Verdict(Outcome.WORKERS_FAILED, 1, "lost", 0, 1, LOST, (LOST,), 1)),
        Severity.ERROR,
        "job FAILED: lost",
    ),
]


@pytest.mark.parametrize(("event", "severity", "text"), CASES, ids=lambda it: type(it).__name__)
def test_the_text_and_the_severity_of_an_event(event: Event, severity: Severity, text: str) -> None:
    assert str(event) == text
    assert event.severity is severity


def test_every_event_has_a_text() -> None:
    for kind in event_classes():
        assert bool(kind.line) != (kind.__str__ is not Event.__str__), kind
        for _, name, _, _ in string.Formatter().parse(kind.line):
            assert name is None or hasattr(kind, name), f"{kind.__name__} has no {name}"


def test_what_fields_hold_is_no_template() -> None:
    assert str(NodeLost("{reason}", "{0} %s")) == "master: node {reason} is lost: {0} %s"
