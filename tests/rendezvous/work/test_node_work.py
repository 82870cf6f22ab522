"""What an agent does with the pieces of its node."""

import math

import pytest
from ft_run.rendezvous.work import node_work
from ft_run.rendezvous.work.messages import WorkClaim, WorkGrant, WorkReport
from ft_run.rendezvous.work.node_work import OVER, NodeWork, Taker

W = WorkClaim("w", 10, 1)
FIRST, SECOND, THIRD = Taker(4, 1), Taker(5, 1), Taker(6, 1)


class Node:
    """A node, what it sends to the master, and what it answers its workers."""

    def __init__(self) -> None:
        self.sent: list[WorkReport] = []
        self.answers: list[tuple[Taker, int | str]] = []
        self.work = NodeWork(self.sent.append, lambda *answer: self.answers.append(answer))
        self.work.begin(0, 0.0)

    def ask(self, taker: Taker, now: float = 0.0, of: WorkClaim = W) -> int | str | None:
        """Ask for a piece; return what is answered at once."""
        before = len(self.answers)
        self.work.ask(taker, of, now)
        return self.answers[-1][1] if len(self.answers) > before else None

    def held(self) -> list[tuple[int, ...]]:
        """Return what is held, by name."""
        return [report.claim.held for report in self.work.claims(0.0)]

    def grant(self, *pieces: int, to: int = 0, now: float = 0.0, refusal: str = "") -> None:
        """Answer the last request."""
        number = self.sent[-1].number
        self.work.granted(WorkGrant(number, "w", pieces, to, refusal=refusal), now)


@pytest.fixture
def node() -> Node:
    return Node()


def test_workers_get_the_pieces_of_a_batch_one_by_one(node: Node) -> None:
    assert node.ask(FIRST) is None
    assert node.ask(SECOND) is None
    assert [report.idle for report in node.sent] == [1]  # the answer will do for both
    node.grant(0, 3)
    assert node.answers == [(FIRST, 0), (SECOND, 1)]
    assert node.ask(FIRST) == 2
    assert node.ask(SECOND) is None
    assert node.sent[-1].claim == WorkClaim("w", 10, 1, (0, 2), (2, 3))


def test_a_loop_that_is_left_keeps_its_piece_until_its_worker_lives_on(node: Node) -> None:
    node.ask(FIRST)
    node.grant(0, 2)
    node.work.leave(FIRST, "w")
    assert node.work.note_of(4) == "while doing item 0 of 'w'"  # it may be failing
    assert node.ask(SECOND) == 1
    again = Taker(4, 2)
    assert node.ask(again) == 0
    node.work.give_back(FIRST, "w", 1.0)  # its time is over, too
    assert node.work.note_of(4) == "while doing item 0 of 'w'"
    assert node.ask(SECOND) is None
    assert node.sent[-1].claim == WorkClaim("w", 10, 1, (1, 2), (0, 1))


def test_what_nobody_here_takes_is_given_back(node: Node) -> None:
    node.ask(FIRST)
    node.grant(0, 3)
    node.work.give_back(FIRST, "w", 1.0)
    assert node.sent[-1] == WorkReport(0, 2, W, 0.0, 0)


def test_a_worker_that_exits_gives_back_what_it_has_and_its_request(node: Node) -> None:
    node.ask(FIRST)
    node.work.exited(4, 0.0)
    assert node.sent[-1].idle == 0
    node.work.granted(WorkGrant(1, "w", (0, 3), 0), 0.0)  # it crossed that
    assert node.held() == [()]


def test_another_loop_of_a_rank_is_refused(node: Node) -> None:
    node.ask(FIRST)
    answer = node.ask(Taker(4, 2))
    assert answer == "invalid name 'w': another loop of this rank is using it"


def test_other_sizes_on_a_node_are_refused_with_both(node: Node) -> None:
    node.ask(FIRST)
    answer = node.ask(SECOND, of=WorkClaim("w", 11, 1))
    assert str(answer).startswith("invalid size 11 and grain 1 for shared_work('w'): expected size")


def test_a_refusal_is_passed_on_and_forgotten(node: Node) -> None:
    node.ask(FIRST)
    node.ask(SECOND)
    node.grant(refusal="no")
    assert node.answers == [(FIRST, "no"), (SECOND, "no")]
    node.work.begin(1, 0.0)
    assert node.ask(FIRST, of=WorkClaim("w", 11, 1)) is None


def test_another_master_may_refuse_what_one_has_taken(node: Node) -> None:
    node.ask(FIRST)
    node.grant(0, 1)
    node.ask(FIRST)
    node.grant(refusal="no")
    node.ask(SECOND)
    node.grant(1, 3)
    assert node.answers == [(FIRST, 0), (FIRST, "no"), (SECOND, 1)]


def test_the_end_is_known_without_the_master_when_it_has_been_heard(node: Node) -> None:
    node.ask(FIRST)
    node.grant(to=10)
    assert node.answers == [(FIRST, OVER)]
    node.work.begin(1, 0.0)
    assert node.ask(SECOND) == OVER
    assert len(node.sent) == 1


def test_empty_work_is_asked_for_once_as_other_ranks_may_have_another_size(node: Node) -> None:
    empty = WorkClaim("w", 0, 1)
    assert node.ask(FIRST, of=empty) is None
    node.grant()
    assert node.answers == [(FIRST, OVER)]


def test_a_round_ends_with_all_that_was_confirmed_and_the_next_has_nothing(node: Node) -> None:
    node.ask(FIRST)
    node.grant(0, 4)
    node.ask(FIRST)
    node.work.end(1.0)
    assert node.sent[1:] == [WorkReport(0, 2, WorkClaim("w", 10, 1, (0, 1)), 0.0, 0)]
    node.work.end(1.0)
    assert len(node.sent) == 2
    assert node.work.due_at() == math.inf
    node.work.begin(1, 2.0)
    assert node.work.claims(2.0) == [WorkReport(1, 3, WorkClaim("w", 10, 1, (0, 1)), 0.0, 0)]
    assert node.ask(FIRST) is None
    node.work.granted(WorkGrant(1, "w", (0, 3), 0), 0.0)  # of the round before
    assert node.answers == [(FIRST, 0), (FIRST, 1)]


def test_all_is_reported_again_to_a_master_that_may_be_another(node: Node) -> None:
    node.ask(FIRST)
    node.grant(2, 4)
    node.ask(FIRST)
    node.ask(FIRST)
    (claim,) = node.work.claims(1.0)
    assert (claim.claim.confirmed, claim.idle, claim.number) == ((2, 4), 1, 3)
    node.work.granted(WorkGrant(2, "w", (5, 6), 0), 1.0)  # for what it has sent before
    assert node.held() == [()]


def test_the_first_pieces_do_not_tell_much_of_the_rate(node: Node) -> None:
    node.ask(FIRST)
    node.grant(0, 2)
    for now in (0.001, 0.002):
        node.ask(FIRST, now)
    assert node.sent[-1].rate == 8.0  # of two pieces, not 1,000 a second


def test_what_is_too_much_is_given_back_after_two_batches(node: Node) -> None:
    node.ask(FIRST)
    node.grant(0, 9)
    node.ask(FIRST, 1.0)
    assert node.work.due_at() == 2.0
    node.work.tick(1.9)
    assert len(node.sent) == 1
    node.work.tick(2.0)
    assert node.sent[-1].claim == WorkClaim("w", 10, 1, (0, 1), (1, 3))  # in hand, and one more
    assert node.sent[-1].idle == 0
    assert node.work.due_at() == 4.0


def test_what_others_wait_for_is_reported_soon(node: Node) -> None:
    node.ask(FIRST)
    node.grant(0, 1)
    node.ask(SECOND)  # the master has nothing for it
    node.ask(FIRST, 0.5)
    assert node.work.due_at() < 0.5
    node.work.tick(0.5)
    assert node.sent[-1].claim.confirmed == (0, 1)
    assert node.sent[-1].idle == 2


def test_while_a_worker_is_busy_here_what_is_confirmed_waits_for_the_next_report(
    node: Node,
) -> None:
    node.ask(FIRST)
    node.ask(SECOND)
    node.grant(0, 2)
    node.ask(THIRD)
    node.ask(FIRST, 0.5)
    assert node.work.due_at() == 2.0


def test_a_request_that_comes_again_is_one_request(node: Node) -> None:
    node.ask(FIRST)
    node.ask(FIRST)
    node.grant(0, 2)
    assert node.answers == [(FIRST, 0)]
    assert node.work.note_of(4) == "while doing item 0 of 'w'"


def test_the_last_piece_is_reported_at_once_and_again_to_another_master(node: Node) -> None:
    node.ask(FIRST)
    node.grant(9, 10, to=9)
    assert node.ask(FIRST) == OVER
    assert node.sent[-1].claim.confirmed == (9, 10)
    (claim,) = node.work.claims(1.0)  # that report may be lost
    assert claim.claim.confirmed == (0, 10)


def test_names_of_which_a_node_holds_nothing_share_a_claim(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_work, "BOUNDS_MAX", 8)
    for name in ("held", "idle", "u", "v", "x", "y"):
        taker = Taker(4, ord(name[0]))
        node.ask(taker, of=WorkClaim(name, 10, 1))
        if name != "idle":
            grant = WorkGrant(node.sent[-1].number, name, (1, 2, 3, 4), 0)
            node.work.granted(grant, 0.0)
        if len(name) == 1:
            node.ask(taker, of=WorkClaim(name, 10, 1))
            node.ask(taker, of=WorkClaim(name, 10, 1))
            node.work.give_back(taker, name, 0.0)
    found = [
        (report.claim.name, report.idle, [one.name for one in report.others])
        for report in node.work.claims(0.0)
    ]
    assert found == [("held", 0, []), ("idle", 1, ["u", "v"]), ("x", 0, ["y"])]


def test_more_than_a_claim_can_contain_is_reported_after_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_work, "BOUNDS_MAX", 4)
    node.ask(FIRST)
    node.grant(1, 2, 3, 4, 5, 6)
    for _ in range(3):
        node.ask(FIRST)
    (claim,) = node.work.claims(0.0)
    assert claim.claim.confirmed == (1, 2, 3, 4)
    node.work.end(0.0)
    assert node.sent[-1].claim.confirmed == (5, 6)
