"""What a node tells the master of its workers, and what it keeps to itself."""

import signal
from collections.abc import Iterator

import pytest
from ft_run.launcher.agent.claim import OwnClaim
from ft_run.launcher.agent.lifecycle import Judged, Lifecycle, Signalled, Situation
from ft_run.launcher.agent.reports import NodeReports, Report
from ft_run.launcher.machine.network import PortReservation
from ft_run.launcher.options import LaunchOptions, RendezvousOptions
from ft_run.launcher.saver.saves import Saves
from ft_run.launcher.workers.shared_work import SharedWork
from ft_run.launcher.workers.snapshots import HeldSnapshots, NodeOffers
from ft_run.rendezvous.protocol.claim import ClaimState
from ft_run.rendezvous.protocol.failure import FailureKind
from ft_run.rendezvous.protocol.messages import Assignment, Done, Failed, Outcome, Stopped, Verdict
from ft_run.rendezvous.work.messages import WorkReport
from ft_run.tests.harness.scene import worker_failure

PLACE = Assignment(3, "m", 0, 0, 2, 0, 4, 0, 4, "n", "127.0.0.1", 1, "", None)
FAILURE = worker_failure(1)


class Node:
    """A node in round 3, which notes what it sends and that it was left."""

    def __init__(self, *, rank0_decides: bool = False) -> None:
        self.sent: list[Report | WorkReport] = []
        self.times_left = 0
        self.claim = OwnClaim()
        self.claim.started(PLACE)
        self.life = Lifecycle(
            LaunchOptions("", RendezvousOptions(job_id="job", min_nodes=2, max_nodes=2))
        )
        self.port = PortReservation(lambda: "127.0.0.1", None)
        self.are_ready = False
        self.reports = NodeReports(
            self.claim,
            self.life,
            NodeOffers(self.port, HeldSnapshots(1, Saves(lambda _: None))),
            self.sent.append,
            self._left,
            lambda _: self.are_ready,
            SharedWork(1, self.sent.append),
            rank0_decides=rank0_decides,
        )

    def _left(self) -> None:
        self.times_left += 1


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.port.close()


@pytest.fixture
def decided() -> Iterator[Node]:
    """A node whose rank 0 decides, and has succeeded."""
    node = Node(rank0_decides=True)
    node.reports.worker_succeeded(PLACE, 1)
    assert node.sent == []
    node.reports.worker_succeeded(PLACE, 0)
    assert node.sent == [Done(3)]
    node.sent.clear()
    yield node
    node.port.close()


def test_a_failure_is_told_and_claimed(node: Node) -> None:
    node.reports.worker_failed(PLACE, FAILURE)
    assert node.sent == [Failed(3, FAILURE)]
    claim = node.claim.present()
    assert claim is not None
    assert claim.failures == (FAILURE,)


def test_success_is_told_once_when_all_have_it(node: Node) -> None:
    node.reports.worker_succeeded(PLACE, 0)
    assert node.sent == []
    for _ in range(2):
        node.reports.workers_done(PLACE)
    assert node.sent == [Done(3)]
    assert node.claim.state is ClaimState.DONE


def test_workers_that_have_made_themselves_ready_do_not_end_the_job(node: Node) -> None:
    node.are_ready = True
    node.reports.workers_done(PLACE)
    assert node.sent == []
    assert node.claim.state is ClaimState.RUNNING


def test_a_node_that_has_stopped_offers_another_port(node: Node) -> None:
    before = node.port.offer
    node.reports.workers_gone(PLACE, None)
    assert node.sent == [Stopped(3, node.port.offer)]
    assert node.port.offer != before
    assert (node.claim.state, node.times_left) == (ClaimState.STOPPED, 1)


def test_after_the_verdict_the_end_of_workers_is_not_told(node: Node) -> None:
    node.life.handle(
        Judged(Verdict(Outcome.SUCCEEDED, 0, "", 0, 4, None, (), 0)), Situation(0.0, 1)
    )
    node.reports.workers_gone(PLACE, None)
    assert (node.sent, node.times_left) == ([], 1)


@pytest.mark.parametrize(
    ("round_number", "is_answered", "state"),
    [
        (2, False, ClaimState.RUNNING),  # it knows of a later one
        (3, True, ClaimState.STOPPED),
        (4, True, ClaimState.RUNNING),  # it has never heard of it
    ],
)
def test_the_order_to_stop_what_does_not_run_is_answered(
    node: Node, round_number: int, is_answered: bool, state: ClaimState
) -> None:
    node.reports.nothing_runs(round_number)
    assert node.sent == ([Stopped(round_number, node.port.offer)] if is_answered else [])
    assert node.claim.state is state


@pytest.mark.parametrize(("rank0_decides", "is_done"), [(True, False), (False, True)])
def test_only_the_success_of_a_rank_0_that_decides_hides_a_failure(
    rank0_decides: bool, is_done: bool
) -> None:
    node = Node(rank0_decides=rank0_decides)
    if is_done:
        node.reports.workers_done(PLACE)
    node.reports.worker_failed(PLACE, FAILURE)
    assert node.sent[-1] == Failed(3, FAILURE)
    node.port.close()


def test_a_node_that_loses_rank_0_after_its_success_has_not_failed(decided: Node) -> None:
    decided.reports.worker_failed(PLACE, FAILURE)
    assert decided.sent == []
    stuck = worker_failure(1, kind=FailureKind.STUCK)
    decided.reports.worker_failed(PLACE, stuck)
    assert decided.sent == [Failed(3, stuck)]


def test_a_round_that_rank_0_has_won_waits_for_the_verdict(decided: Node) -> None:
    decided.reports.workers_gone(PLACE, None)
    assert (decided.sent, decided.times_left) == ([], 0)
    assert decided.claim.state is ClaimState.DONE


def test_a_round_that_rank_0_has_won_may_be_stopped_all_the_same(decided: Node) -> None:
    decided.reports.told_to_stop(2)
    decided.reports.workers_gone(PLACE, None)
    assert decided.sent == []
    decided.reports.told_to_stop(3)
    decided.reports.workers_gone(PLACE, None)
    assert decided.sent == [Stopped(3, decided.port.offer)]


def test_a_node_that_was_told_to_go_does_not_wait_for_the_verdict(decided: Node) -> None:
    decided.life.handle(Signalled(signal.SIGTERM), Situation(0.0, workers=1))
    decided.reports.workers_gone(PLACE, None)
    assert (decided.sent, decided.times_left) == ([Stopped(3, decided.port.offer)], 1)
