"""The words of the event lines: every event has some, and a level."""

import logging
import typing

import pytest
from ft_run import events as ev
from ft_run.launcher.reporting.event_lines import _LINES, _NOTES, level, line
from ft_run.rendezvous.protocol import notes
from ft_run.rendezvous.protocol.failure import Failure, node_lost
from ft_run.rendezvous.protocol.messages import Outcome, Verdict

LOST: Failure = node_lost(1, "h1", "default", "its connection was closed")
CASES: list[tuple[ev.Event, int, str]] = [
    (ev.Remark("a key is ignored"), logging.INFO, "a key is ignored"),
    (ev.Remark("x", ev.Severity.ERROR), logging.ERROR, "x"),
    (
        ev.NodeRenamed("vm/0", "vm/1"),
        logging.INFO,
        "another host is called vm as well: this node is vm/1",
    ),
    (
        ev.NodeStarted("j", "vm/0", 2, "given as a number", "standalone"),
        logging.INFO,
        "job=j node=vm/0 nproc_per_node=2 (given as a number), standalone",
    ),
    (ev.MasterListening("h:1", 2), logging.INFO, "master: listening at h:1 (port 2)"),
    (
        ev.MasterNoted(notes.NodeDisconnected("vm/1"), is_apart=False),
        logging.DEBUG,
        "master: node vm/1 lost its connection",
    ),
    (
        ev.MasterNoted(notes.NodeDisconnected("vm/1"), is_apart=True),
        logging.INFO,
        "master: node vm/1 lost its connection",
    ),
    (
        ev.MasterNoted(notes.NodeRefused("node vm/1 at 10.0.0.1", "no.", "no."), is_apart=False),
        logging.WARNING,
        "master: node vm/1 at 10.0.0.1 refused: no",
    ),
    (
        ev.MasterSignalled("SIGTERM", has_nodes=False),
        logging.WARNING,
        "master: received SIGTERM: ending; no node is here",
    ),
    (ev.MasterConnected(is_again=True), logging.INFO, "connected to the master again"),
    (
        ev.MasterUnreachable("timeout", "m:1", ev.WorkersAlone.RUN, 600.0, is_again=True),
        logging.WARNING,
        "no connection to the master at m:1 (timeout): workers keep running; reconnecting, "
        "gives up in 10 min",
    ),
    (
        ev.MasterUnreachable("timeout", "m:1", ev.WorkersAlone.FAILED, 578.2, is_again=True),
        logging.WARNING,
        "no connection to the master at m:1 (timeout): worker failed; the restart waits for the "
        "master; reconnecting, gives up in 9 min 38 s",
    ),
    (
        ev.MasterUnreachable(
            "timeout",
            "a, b, c",
            ev.WorkersAlone.NONE,
            55.0,
            False,
            ("a:1: no leader yet", "b:1: no answer", "c:1: no answer"),
        ),
        logging.WARNING,
        "no connection to the master; a:1: no leader yet; b:1: no answer; c:1: no answer; 2 of 3 "
        "elect the leader: trying again, gives up in 55 s",
    ),
    (
        ev.EndpointsAreOne(("a:1", "b:1"), 3),
        logging.WARNING,
        "master: a:1, b:1 are all this process: they count as one host, which the job needs, as "
        "with one endpoint",
    ),
    (
        ev.EndpointsAreOne(("a:1", "b:1"), 5),
        logging.WARNING,
        "master: a:1, b:1 are all this process: they count as one host",
    ),
    (
        ev.NodeWaits(1, 2, 3, ("host-7",), 600.0, False, 0.0, False),
        logging.INFO,
        "waiting for nodes: 1 of 2:3 are here; missing: host-7 (gives up in 600 s)",
    ),
    (ev.NodeSignalled("SIGTERM", 0), logging.WARNING, "received SIGTERM: leaving the job"),
    (
        ev.CollectivesRecorded(1, 0, (0, 2), (1,), "/tmp/trace_"),
        logging.INFO,
        "round=1 node=0 NCCL's flight recorder: wrote the last collectives of rank(s) 0,2: "
        "/tmp/trace_*; rank(s) 1 did not answer in time",
    ),
    (
        ev.CollectivesRecorded(1, 0, (), (0, 1), "/tmp/trace_"),
        logging.INFO,
        "round=1 node=0 NCCL's flight recorder: rank(s) 0,1 did not answer in time",
    ),
    (
        ev.NodeSignalled("SIGINT", 2),
        logging.WARNING,
        "received SIGINT: stopping 2 worker(s) and leaving the job",
    ),
    (
        ev.NodeGoneSoon("SIGTERM", 30.0, 15.0),
        logging.WARNING,
        "this node will be gone in 30 s (SIGTERM): all ranks leave the state of one step first, "
        "within 15 s",
    ),
    (
        ev.DrainOrdered("node vm/1 will be gone soon (SIGTERM)", 15.0),
        logging.WARNING,
        "node vm/1 will be gone soon (SIGTERM): all ranks leave the state of one step first, "
        "within 15 s",
    ),
    (
        ev.NodeLeaves("notice of gcp", 2, 7),
        logging.WARNING,
        "all ranks have left the state of step 7: stopping 2 worker(s) and leaving the job "
        "(notice of gcp)",
    ),
    (
        ev.NodeLeaves("SIGTERM", 0, -1),
        logging.WARNING,
        "leaving the job (SIGTERM)",
    ),
    (
        ev.NoticeUnknown("gcp", "no answer from 169.254.169.254 within 5 s"),
        logging.WARNING,
        "--preemption-notice gcp: no answer from 169.254.169.254 within 5 s; the node runs on "
        "without notices",
    ),
    (
        ev.WorkersStarted(1, 2, 8, (5, 6), 16, 2, "h", 9, None),
        logging.INFO,
        "round=1 node=2 started ranks=8-9 of 16 on 2 node(s) pids=5,6 store=h:9",
    ),
    (
        ev.WorkerFailed(1, 2, LOST),
        logging.ERROR,
        "round=1 node=2 node 1 (h1) was lost: its connection was closed",
    ),
    (
        ev.WorkersStopped(1, 2, 4, "why", is_stale=False),
        logging.INFO,
        "round=1 node=2 stopping 4 worker(s): why",
    ),
    (
        ev.WorkersStopped(1, 2, 4, "why", is_stale=True),
        logging.INFO,
        "round=1 node=2 killing 4 worker(s) at once: why",
    ),
    (
        ev.RestartBegun(1, 2, LOST, "", False, 1, 3),
        logging.WARNING,
        "round=1 node=2 restart 1/3: node 1 (h1) was lost: its connection was closed "
        "(default rule)",
    ),
    (
        ev.RestartBegun(1, 2, LOST, "oom=restart-free", True, 0, 3),
        logging.WARNING,
        "round=1 node=2 restart without a count (0/3 used): node 1 (h1) was lost: its connection "
        "was closed (oom=restart-free)",
    ),
    (
        ev.PreloadChanged(ev.PreloadState.FAILED, ("torch",), "no torch", is_of_checks=True),
        logging.WARNING,
        "preload: no torch; check workers start the ordinary way",
    ),
    (
        ev.PreloadChanged(ev.PreloadState.FAILED, ("torch",), "no torch", True, True),
        logging.DEBUG,
        "preload: no torch; check workers start the ordinary way",
    ),
    (
        ev.OutputUnshown(12),
        logging.WARNING,
        "12 bytes of the workers' output are not shown: nothing read them.",
    ),
    (
        ev.JobEnded(Verdict(Outcome.SUCCEEDED, 0, "done", 0, 1, None, (), 0)),
        logging.INFO,
        "job succeeded: done",
    ),
    (
        ev.JobEnded(Verdict(Outcome.WORKERS_FAILED, 1, "lost", 0, 1, LOST, (LOST,), 1)),
        logging.ERROR,
        "job FAILED: lost",
    ),
]


@pytest.mark.parametrize(("event", "number", "text"), CASES, ids=lambda case: type(case).__name__)
def test_the_words_of_an_event(event: ev.Event, number: int, text: str) -> None:
    assert line(event) == text
    assert level(event) == number


def test_every_event_has_words() -> None:
    assert set(_LINES) == set(typing.get_args(ev.Event))


def test_everything_that_a_master_notes_has_words() -> None:
    assert {*_NOTES} == {*typing.get_args(notes.MasterNote)}
