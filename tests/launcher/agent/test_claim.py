"""Tests of what a node claims of its last round."""

import pytest
from ft_run import defaults
from ft_run.launcher.agent.claim import OwnClaim
from ft_run.rendezvous.protocol import bounds
from ft_run.rendezvous.protocol.claim import Past
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.messages import (
    Assignment,
    Attend,
    JobSpec,
    NodeSpec,
    Resigned,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.transport.channel_options import MAX_FROM_NODE_BYTES
from ft_run.rendezvous.transport.codec import encode_node
from msgspec.structs import replace

ASSIGNMENT = Assignment(0, "m", 0, 0, 1, 0, 130, 0, 130, "h/0", "127.0.0.1", 1, "", None)


def failure(rank: int, **changes: object) -> Failure:
    known = Failure(FailureKind.WORKER, rank, rank, 0, "h", 100 + rank, 1, 1)
    return replace(known, **changes)


def claimed(*failures: Failure) -> tuple[Failure, ...]:
    claim = OwnClaim()
    claim.started(ASSIGNMENT)
    for each in failures:
        claim.failed(each)
    present = claim.present()
    assert present is not None
    return present.failures


@pytest.mark.parametrize(
    ("formed_by", "ended", "restarts"), [("m", "rank 1 failed", 2), ("another", "", 0)]
)
def test_decision_of_a_resigned_leader_is_claimed_for_its_round(
    formed_by: str, ended: str, restarts: int
) -> None:
    claim = OwnClaim()
    claim.resigned(Resigned(0, "m", "rank 1 failed", 2, Past((9,)), 7))
    assert claim.present() is None  # it was in no round
    claim.started(ASSIGNMENT)
    claim.failed(failure(1))
    claim.stopped(0)
    claim.resigned(Resigned(0, formed_by, "rank 1 failed", 2, Past((9,)), 7))
    present = claim.present()
    assert present is not None
    assert (present.ended, present.restarts, present.clear) == (ended, restarts, 7)
    assert len(present.failures) == (0 if ended else 1)
    claim.started(replace(ASSIGNMENT, round=1))
    present = claim.present()
    assert present is not None
    assert (present.ended, present.clear) == ("", 0)


def test_the_first_failures_are_claimed_as_many_as_a_verdict_shows() -> None:
    failures = [failure(rank) for rank in range(130)]
    assert claimed(*failures) == tuple(failures[: defaults.FAILURES_IN_VERDICT])


def test_a_root_cause_that_comes_last_is_claimed() -> None:
    collateral = [failure(rank, stderr_tail="Connection reset by peer") for rank in range(20)]
    cause, stuck = failure(20, exit_code=-11), failure(21, kind=FailureKind.STUCK)
    found = claimed(*collateral, cause, stuck)
    assert len(found) == defaults.FAILURES_IN_VERDICT
    assert found == (*collateral[:14], cause, stuck)


@pytest.mark.parametrize(
    "changes",
    [
        {"error_json": "x" * defaults.ERROR_FILE_MAX_BYTES},
        {"stderr_tail": "\ufffd" * defaults.STDERR_TAIL_MAX_BYTES, "message": "\U0001f600" * 4096},
    ],
)
def test_whatever_130_workers_say_the_claim_fits_a_message(changes: dict[str, str]) -> None:
    found = claimed(*(failure(rank, exit_code=3, **changes) for rank in range(130)))
    assert found
    assert found[0].rank == 0
    claim = OwnClaim()
    claim.started(ASSIGNMENT)
    for each in found:
        claim.failed(each)
    node = NodeSpec("h/0", "i", "h", "127.0.0.1", "r", 130, None)
    job = JobSpec("j", 1, 1, 1, 0)
    attend = Attend(1, "1", job, node, Offer("127.0.0.1", 1), claim.present())
    bounds.check(attend)
    assert len(encode_node(attend)) <= MAX_FROM_NODE_BYTES


def lost(rank: int) -> Failure:
    return failure(rank, kind=FailureKind.NODE_LOST, node_rank=rank)


@pytest.mark.parametrize(
    ("node_rank", "failures", "expected"),
    [
        (0, [], True),
        (1, [], False),
        (1, [lost(0)], True),
        (2, [lost(0)], False),
        (2, [lost(1), lost(0)], True),
        (1, [failure(0)], False),
        (0, [lost(1)], True),
    ],
)
def test_one_node_is_the_first_of_those_that_are_left(
    node_rank: int, failures: list[Failure], expected: bool
) -> None:
    claim = OwnClaim()
    assert not claim.is_first_but(failures)  # it was in no round
    claim.started(replace(ASSIGNMENT, node_rank=node_rank, nodes=3))
    assert claim.is_first_but(failures) is expected
    claim.became_spare()
    assert not claim.is_first_but(failures)
