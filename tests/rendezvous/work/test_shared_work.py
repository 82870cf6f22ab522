"""Who gets which pieces of shared work, and how soon all is done."""

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from ft_run.rendezvous.group.events import Hung, Received
from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.protocol.claim import ClaimState
from ft_run.rendezvous.protocol.failure import hung
from ft_run.rendezvous.work.messages import NAMES_MAX, WorkClaim, WorkGrant, WorkReport
from ft_run.rendezvous.work.node_work import OVER, NodeWork, Taker
from ft_run.rendezvous.work.shared_work import Work
from ft_run.tests.harness.scene import Scene, claim_of, running, worker_failure
from msgspec.structs import replace

W = WorkClaim("w", 10, 1)


class Reports:
    """What nodes report, with numbers of their own."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.number = scene, 0

    def __call__(
        self,
        name: str,
        confirmed: tuple[int, ...] = (),
        held: tuple[int, ...] = (),
        *,
        idle: int = 1,
        rate: float = 0.0,
        of: WorkClaim = W,
        number: int | None = None,
    ) -> tuple[int, ...] | None:
        """Report; return what is granted at once, None: nothing is answered."""
        self.number = self.number + 1 if number is None else number
        claim = WorkClaim(of.name, of.size, of.grain, confirmed, held)
        before = len(self.scene.all_told(name, WorkGrant))
        self.scene.say(name, WorkReport(self.scene.group.round, self.number, claim, rate, idle))
        grants = self.scene.all_told(name, WorkGrant)[before:]
        return grants[0].pieces if grants else None


@pytest.fixture
def scene() -> Scene:
    return running()


@pytest.fixture
def report(scene: Scene) -> Reports:
    return Reports(scene)


def test_pieces_are_handed_out_in_order_and_each_once(report: Reports) -> None:
    assert report("a") == (0, 1)
    assert report("b", idle=2) == (1, 3)
    assert report("a", (0, 1)) == (3, 4)


def test_one_that_waits_gets_what_another_gives_back(scene: Scene, report: Reports) -> None:
    assert report("a", idle=10) == (0, 10)
    assert report("b") is None
    report("a", (0, 4), (4, 9), idle=0)
    assert scene.last("b", WorkGrant).pieces == (9, 10)
    assert scene.last("b", WorkGrant).confirmed_to == 4


def test_all_hear_that_it_is_over_and_a_later_loop_ends_at_once(
    scene: Scene, report: Reports
) -> None:
    report("a", idle=10)
    assert report("b") is None
    assert report("a", (0, 10)) == ()
    assert scene.last("b", WorkGrant) == WorkGrant(2, "w", (), 10)
    assert any("10 of 10 items done" in note for note in scene.notes)
    scene.fail("a")
    scene.stopped("a", "b")
    assert report("b") == ()


def test_empty_work_is_over(report: Reports) -> None:
    assert report("a", of=WorkClaim("w", 0, 3)) == ()


def test_the_next_round_repeats_what_is_not_confirmed(scene: Scene, report: Reports) -> None:
    report("a", idle=4)
    report("b", idle=4)
    scene.fail("b")
    report("a", (1, 2), (0, 1, 2, 4), idle=0)  # also while the round is being stopped
    assert report("a", (), (0, 1, 2, 4)) is None
    scene.stopped("a", "b")
    assert report("b", idle=4) == (0, 1, 2, 5)


def test_what_comes_again_or_late_changes_nothing(scene: Scene, report: Reports) -> None:
    assert report("a", number=7) == (0, 1)
    assert report("a", number=7) is None
    assert report("a", number=6) is None
    assert report("a", (), (0, 1), number=8) == (1, 2)
    scene.fail("b")
    scene.stopped("a", "b")
    claim = WorkClaim("w", 10, 1)
    scene.say("a", WorkReport(0, 9, claim, 0.0, 1))  # of the round before
    assert scene.last("a", WorkGrant).number == 8


def test_what_nobody_waits_for_any_more_is_for_others(scene: Scene, report: Reports) -> None:
    report("a", idle=10)
    assert report("b") is None
    report("b", idle=0)
    report("a", (), (0, 9), idle=0)
    assert len(scene.all_told("b", WorkGrant)) == 0
    assert report("a", (), (0, 9)) == (9, 10)


def test_a_node_holds_only_what_it_was_granted(report: Reports) -> None:
    assert report("a", idle=5) == (0, 5)
    assert report("b", (), (3, 7), idle=2) == (7, 9)
    report("b", idle=0)
    assert report("b", idle=9) == (5, 10)


def test_what_was_confirmed_before_a_round_ended_is_not_repeated(
    scene: Scene, report: Reports
) -> None:
    report("a", idle=4)
    scene.fail("b")
    report("a", (0, 2), idle=0)
    scene.stopped("a", "b")
    assert report("b", idle=3) == (2, 5)


def test_while_a_node_is_away_another_gets_what_is_free() -> None:
    scene = running(3, names="abc")
    report = Reports(scene)
    report("a", idle=10)
    report("b")
    report("c")
    scene.detach("b")
    report("a", (), (0, 9), idle=0)
    assert scene.last("c", WorkGrant).pieces == (9, 10)


def claim(
    number: int, confirmed: Sequence[int] = (), held: Sequence[int] = (), *, of: WorkClaim = W,
    round_number: int = 0,
) -> WorkReport:  # fmt: skip
    """A report of the state of a name, as it follows ``Attend``."""
    pieces = WorkClaim(of.name, of.size, of.grain, tuple(confirmed), tuple(held))
    return WorkReport(round_number, number, pieces, 0.0, 0)


def test_a_lost_grant_is_free_again(scene: Scene, report: Reports) -> None:
    assert report("a", idle=3) == (0, 3)
    scene.detach("a")
    scene.attend("a", claim=claim_of(0, 0), work=(claim(9, (0, 1), (1, 2)),))
    assert report("b", idle=9) == (2, 10)


def test_a_request_of_a_node_that_is_away_waits_for_it(scene: Scene, report: Reports) -> None:
    report("a", idle=10)
    assert report("b") is None
    scene.detach("b")
    report("a", (), (0, 5), idle=0)
    scene.attend("b", claim=claim_of(0, 1), work=(claim(9),))
    assert report("b", idle=5, number=10) == (5, 10)


def test_a_node_that_has_succeeded_holds_nothing(scene: Scene, report: Reports) -> None:
    report("a", idle=5)
    scene.detach("a")
    scene.attend("a", claim=claim_of(0, 0, state=ClaimState.DONE), work=(claim(9),))
    assert report("b", idle=10) == (0, 10)


# --- claims --------------------------------------------------------------------------------------


def test_another_master_knows_what_was_done_and_what_is_held() -> None:
    scene = Scene()
    scene.attend("a", claim=claim_of(4, 0), work=(claim(1, (0, 2), (2, 5), round_number=4),))
    scene.say("a", WorkReport(4, 2, WorkClaim("w", 10, 1, (2, 3), (3, 5)), 0.0, 1))
    assert not scene.all_told("a", WorkGrant)  # b may have claims, too
    scene.attend("b", claim=claim_of(4, 1), work=(claim(1, (6, 7), (5, 6), round_number=4),))
    assert scene.group.round == 4
    assert scene.last("a", WorkGrant) == WorkGrant(2, "w", (7, 8), 3)
    scene.wait(100)
    assert scene.rules.work.progress(scene.now)[0].per_s == 0.01  # of the one that came since


def test_nothing_is_granted_until_the_last_claim_of_every_member_has_come() -> None:
    scene = Scene(3)
    other = WorkClaim("v", 10, 1)
    for rank, name in enumerate("abc"):
        scene.attend(name, claim=claim_of(4, rank, nodes=3), claims=2 * (name != "c"))
    assert scene.group.phase is GroupPhase.RUNNING
    scene.say("c", WorkReport(4, 1, W, 0.0, 10))
    scene.say("a", claim(1, round_number=4))
    scene.say("a", claim(2, round_number=4, of=other))
    scene.say("b", claim(1, (0, 1), (1, 4), round_number=4))
    assert not scene.all_told("c", WorkGrant)
    scene.say("b", claim(1, round_number=4))  # once more
    assert not scene.all_told("c", WorkGrant)
    scene.say("b", claim(2, (), (0, 9), round_number=4, of=other))
    assert scene.last("c", WorkGrant).pieces == (4, 10)
    scene.say("c", WorkReport(4, 2, other, 0.0, 10))
    assert scene.last("c", WorkGrant).pieces == (9, 10)


def test_a_report_claims_other_names_as_well() -> None:
    scene = Scene()
    report = claim(1, (0, 2), (2, 5), round_number=4)
    report = replace(report, others=(WorkClaim("v", 9, 1, (0, 4)), WorkClaim("u", 9, 1, (0, 9))))
    scene.attend("a", claim=claim_of(4, 0), work=(report,))
    scene.attend("b", claim=claim_of(4, 1))
    assert [work.done for work in scene.rules.work.names.values()] == [4, 9, 2]
    scene.say("b", WorkReport(4, 1, WorkClaim("v", 9, 1), 0.0, 9))
    assert scene.last("b", WorkGrant).pieces == (4, 9)
    scene.wait(100)
    assert {one.per_s for one in scene.rules.work.progress(scene.now)} == {0.0}


def test_what_a_node_held_that_is_gone_before_it_has_claimed_is_free() -> None:
    scene = Scene(2, 3, restarts=1)
    scene.attend("a", claim=claim_of(4, 0, nodes=3))
    scene.attend("b", claim=claim_of(4, 1, nodes=3))
    scene.attend("c", claim=claim_of(4, 2, nodes=3), claims=1)
    scene.say("a", WorkReport(4, 1, W, 0.0, 10))
    scene.detach("c")
    scene.wait(0.1)
    assert not scene.all_told("a", WorkGrant)  # it may come back
    scene.wait(60)
    scene.stopped("a", "b")
    scene.wait(60)
    assert scene.group.round == 5
    scene.say("a", WorkReport(5, 2, W, 0.0, 10))
    assert scene.last("a", WorkGrant) == WorkGrant(2, "w", (0, 10), 0)


def test_a_member_that_has_succeeded_and_is_gone_is_not_awaited(
    scene: Scene, report: Reports
) -> None:
    done = claim_of(0, 0, state=ClaimState.DONE)
    report("a", idle=5)
    scene.detach("a")
    scene.attend("a", claim=done, claims=1)
    scene.detach("a")
    assert report("b") is None
    scene.wait(5)
    assert scene.group.phase is GroupPhase.RUNNING
    assert scene.last("b", WorkGrant).pieces == (0, 1)
    scene.attend("a", claim=done)
    assert report("a") is None


def test_a_member_that_reconnects_has_to_claim_again(scene: Scene, report: Reports) -> None:
    report("a", idle=2)
    scene.detach("a")
    scene.attend("a", claim=claim_of(0, 0), claims=1)
    assert report("b") is None
    scene.say("a", claim(7, (0, 1), (1, 2)))
    assert scene.last("b", WorkGrant).pieces == (2, 3)


def test_what_a_spare_has_to_claim_is_not_awaited() -> None:
    scene = running(2, names="abc")
    report = Reports(scene)
    scene.detach("c")
    scene.attend("c", claims=3)
    assert report("a") == (0, 1)
    scene.fail("b")
    scene.stopped("a", "b")
    assert scene.group.round == 1
    assert report("a") == (0, 1)


def test_what_workers_confirmed_before_a_connection_broke_is_not_repeated(
    scene: Scene, report: Reports
) -> None:
    report("a", idle=4)
    scene.fail("b")
    scene.stopped("b")
    scene.detach("a")
    scene.attend("a", claim=claim_of(0, 0, state=ClaimState.STOPPED), claims=1)
    assert scene.group.round == 1
    assert report("b", idle=10) is None
    scene.say("a", claim(7, (0, 3)))
    assert scene.last("b", WorkGrant).pieces == (3, 10)


def test_claims_of_a_node_whose_identity_is_contested_count() -> None:
    scene = Scene()
    scene.attend("b'", node_id="b", incarnation="other")
    scene.mute.add("b'")
    scene.attend("a", claim=claim_of(4, 0))
    scene.attend("b", claim=claim_of(4, 1), work=(claim(1, (), (0, 9), round_number=4),))
    scene.wait(60)
    assert scene.group.round == 4
    scene.say("a", WorkReport(4, 1, W, 0.0, 10))
    assert scene.last("a", WorkGrant).pieces == (9, 10)


def test_reports_on_a_stream_that_was_replaced_or_refused_are_ignored() -> None:
    scene = running()
    first = scene.links["a"]
    scene.attend("a", claim=claim_of(0, 0))
    scene.handle(Received(first, WorkReport(0, 1, W, 0.0, 9)))
    assert not scene.all_told("a", WorkGrant)
    scene.attend("x", protocol=99, work=(claim(1, (0, 9)),))
    assert "x" in scene.closed
    assert not scene.rules.work.names


def test_two_nodes_of_one_incarnation_share_no_stream() -> None:
    scene = running()
    scene.attend("x", incarnation="a")
    scene.detach("x")
    scene.say("a", WorkReport(0, 1, W, 0.0, 9))
    assert not scene.all_told("a", WorkGrant)


def test_what_a_node_has_of_another_round_is_free() -> None:
    scene = Scene()
    stopped = claim_of(4, 0, state=ClaimState.STOPPED)
    small = WorkClaim("w", 3, 1)
    held = (claim(1, (0, 1), (1, 2), of=small, round_number=4),)
    scene.attend("a", claim=stopped, work=held)
    scene.attend("b", claim=claim_of(4, 1, state=ClaimState.STOPPED))
    scene.wait(60)
    assert Reports(scene)("b", idle=3, of=small) == (1, 3)


@pytest.mark.parametrize(("size", "grain"), [(11, 1), (10, 2)])
def test_another_size_or_grain_is_refused_with_both(
    scene: Scene, report: Reports, size: int, grain: int
) -> None:
    report("a")
    assert report("b", of=WorkClaim("w", size, grain)) == ()
    assert scene.last("b", WorkGrant).refusal == (
        f"invalid size {size} and grain {grain} for shared_work('w'): expected size 10 and grain "
        "1, as in other calls in this job"
    )
    assert report("b") == (1, 2)


def test_what_no_agent_sends_is_refused(scene: Scene, report: Reports) -> None:
    for claim in (WorkClaim("w", 10, 0), W):
        assert report("a", (5, 4), of=claim) == ()
        assert "invalid pieces" in scene.last("a", WorkGrant).refusal
    for number in range(NAMES_MAX):
        report("a", of=WorkClaim(str(number), 1, 1))
    assert report("a", of=WorkClaim("more", 1, 1)) == ()
    assert "names already" in scene.last("a", WorkGrant).refusal


def test_a_batch_is_a_second_of_work_and_the_last_ones_are_shares(report: Reports) -> None:
    work = WorkClaim("w", 1000, 1)
    assert report("a", of=work, rate=100.0) == (0, 100)
    assert report("b", of=work, rate=300.0) == (100, 400)
    assert report("a", (0, 100), of=work, rate=100.0) == (400, 475)  # an eighth of 600
    assert report("b", (100, 400), of=work, rate=300.0) == (475, 671)  # three eighths of 525


def test_shares_are_of_the_nodes_that_are_in_the_loop(report: Reports) -> None:
    work = WorkClaim("w", 1000, 1)
    report("a", of=work, rate=300.0)
    report("a", (0, 300), of=work, rate=300.0, idle=0)
    assert report("b", of=work, rate=500.0) == (300, 650)  # half of 700


def test_many_nodes_get_larger_batches() -> None:
    work = Work(WorkClaim("w", 1_000_000, 1), 0.0)
    work.rates = {str(number): 10.0 for number in range(1_250)}
    assert work.batch_s == 2.5
    assert work.grant(WorkReport(0, 1, work.claim, 10.0, 1)) == [0, 25]


def test_a_piece_that_fails_three_workers_is_named(scene: Scene) -> None:
    for number in range(3):
        rank = number % 2
        failure = worker_failure(rank, note="while doing item 3 of 'w'", pid=number)
        scene.fail("ab"[rank], failure)
        scene.fail("ab"[rank], failure)  # once more
        said = scene.group.last_stop.partition("while doing ")[2]
        more = ", in which 3 workers have failed" if number == 2 else ""
        assert said == f"item 3 of 'w'{more}"
        scene.stopped("a", "b")
    assert sum("3 workers have failed while doing item 3" in note for note in scene.notes) == 1


def test_a_hang_counts_for_its_piece(scene: Scene) -> None:
    for _ in range(3):
        hang = hung(0, "host-0", "", "rank 0 hangs")
        hang = replace(hang, rank=0, note="while doing item 3 of 'w'")
        scene.handle(Hung(scene.group.round, hang, ""))
        said = scene.group.last_stop
        scene.stopped("a", "b")
    assert said == "rank 0 hangs, while doing item 3 of 'w', in which 3 workers have failed"


def test_a_piece_that_is_known_is_named_whatever_else_fails(scene: Scene) -> None:
    failed = scene.rules.work.noted
    for number in range(1_000):
        failed(0, worker_failure(0, note=f"while doing item {number} of 'w'"))
    for rank in range(3):
        late = failed(0, worker_failure(rank, note="while doing item 1000 of 'w'"))
        known = failed(0, worker_failure(rank, note="while doing item 0 of 'w'"))
    assert late.note == "while doing item 1000 of 'w'"
    assert known.note == "while doing item 0 of 'w', in which 3 workers have failed"


def test_only_failures_before_the_stop_and_in_a_piece_count(scene: Scene) -> None:
    for number in range(4):
        failure = worker_failure(number, note="while doing item 3 of 'w'", after_stop=True)
        assert scene.rules.work.noted(number, failure) is failure
        other = worker_failure(number, note="in a trial")
        assert scene.rules.work.noted(number, other) is other


def test_a_grant_has_a_thousand_intervals_and_the_rest_stays_free() -> None:
    work = Work(WorkClaim("w", 3_000, 1), 0.0)
    for piece in range(0, 3_000, 2):
        work.confirm((piece, piece + 1))
    assert len(work.grant(WorkReport(0, 1, work.claim, 0.0, 1_500))) == 2_000
    assert work.free.bounds[0] == 2_001
    assert len(work.free) == 500


def test_rates_are_those_of_the_round(scene: Scene, report: Reports) -> None:
    work = WorkClaim("w", 100, 1)
    report("a", of=work, rate=300.0)
    scene.fail("b")
    scene.stopped("a", "b")
    assert report("b", of=work, rate=100.0) == (0, 50)  # half, as a has not asked yet


def test_a_node_that_comes_back_as_another_counts_its_reports_from_1(
    scene: Scene, report: Reports
) -> None:
    assert report("b", number=9) == (0, 1)
    scene.attend("b", incarnation="another")
    scene.stopped("a")
    scene.wait(60)
    assert report("b", number=1) == (0, 1)


# --- with agents, in simulated time --------------------------------------------------------------

_DELAY_S = 0.001
"""Of a message, one way."""


class Play:
    """Agents, each with some workers, and a master, in simulated time."""

    def __init__(self, claim: WorkClaim, nodes: dict[str, list[Callable[[int], float]]]) -> None:
        """Give the seconds that each worker takes for a piece, by node."""
        self.claim, self.now, self._order = claim, 0.0, 0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.scene = running(len(nodes), names="".join(nodes))
        self.start = self.scene.now
        self.messages = 0
        self.done: dict[int, int] = {}
        self.ended: dict[Taker, float] = {}
        self.longest_wait_s = 0.0
        self.asked: dict[Taker, float] = {}
        self.agents: dict[str, NodeWork] = {}
        self.ticks_at: dict[str, float] = {}
        rank = 0
        for name, workers in nodes.items():
            self._add(name, rank, workers)
            rank += len(workers)

    def _add(self, name: str, rank: int, workers: list[Callable[[int], float]]) -> None:
        def send(message: WorkReport) -> None:
            self.messages += 1
            self.after(_DELAY_S, lambda: self._master(name, message))

        def answer(taker: Taker, piece: int | str) -> None:
            assert isinstance(piece, int)
            self.longest_wait_s = max(self.longest_wait_s, self.now - self.asked[taker])
            if piece == OVER:
                self.ended[taker] = self.now
                return
            took_s = workers[taker.rank - rank](piece)
            self.after(took_s, lambda: self._ask(name, taker, piece))

        self.agents[name] = agent = NodeWork(send, answer)
        agent.begin(0, 0.0)
        for number in range(len(workers)):
            self.after(0.0, partial(self._ask, name, Taker(rank + number, 0), None))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self.events, (self.now + seconds, self._order, action))

    def _ask(self, name: str, taker: Taker, piece: int | None) -> None:
        if piece is not None:
            self.done[piece] = self.done.get(piece, 0) + 1
        self.asked[taker] = self.now
        self.agents[name].ask(taker, self.claim, self.now)
        self._tick_later(name)

    def _tick_later(self, name: str) -> None:
        self.ticks_at[name] = at = self.agents[name].due_at()
        if at < math.inf:
            self.after(max(0.0, at - self.now), lambda: self._tick(name, at))

    def _tick(self, name: str, at: float) -> None:
        if self.ticks_at[name] == at:
            self.agents[name].tick(max(self.now, at))
            self._tick_later(name)

    def _granted(self, name: str, grant: WorkGrant) -> None:
        self.agents[name].granted(grant, self.now)
        self._tick_later(name)

    def _master(self, name: str, message: WorkReport) -> None:
        told = {one: len(self.scene.all_told(one, WorkGrant)) for one in self.agents}
        self.scene.now = self.start + self.now
        self.scene.say(name, message)
        for one, before in told.items():
            for grant in self.scene.all_told(one, WorkGrant)[before:]:
                self.messages += 1
                self.after(_DELAY_S, partial(self._granted, one, grant))

    def run(self, workers: int) -> float:
        """Play until all loops have ended; return how many seconds passed."""
        while len(self.ended) < workers:
            self.now, _, action = heapq.heappop(self.events)
            assert self.now < 3600
            action()
        assert self.done == dict.fromkeys(range(self.claim.pieces), 1)
        return self.now


def lasting(seconds: float) -> Callable[[int], float]:
    return lambda _: seconds


@pytest.mark.parametrize("nodes", [{"a": [0.01], "b": [0.1]}, {"a": [0.01, 0.1]}])
def test_a_fast_and_a_slow_rank_end_within_one_piece(nodes: dict[str, list[float]]) -> None:
    workers: Any = {name: [lasting(s) for s in of] for name, of in nodes.items()}
    play = Play(WorkClaim("w", 5_000, 1), workers)
    took_s = play.run(2)
    assert took_s < 5_000 / 110 + 0.1 + 0.5
    assert play.longest_wait_s < 0.1 + 4 * _DELAY_S  # at the end, for the last piece of the other
    assert play.messages / took_s < 2.2 * len(nodes) + 1


def test_short_pieces_take_few_messages() -> None:
    """Eight workers at 1,000 pieces a second each, which are all idle until a grant arrives."""
    play = Play(WorkClaim("w", 100_000, 1), {n: [lasting(0.001)] * 8 for n in "ab"})
    took_s = play.run(16)
    assert took_s < 100 / 16 * 1.05
    assert play.messages < 2 * 2 * took_s + 150  # of each node a request a second, and its answer


def test_a_rank_that_becomes_slow_gives_back_what_it_has() -> None:
    """The first pieces of a node are short, those after them are not."""
    slow = {"a": [lambda piece: 0.001 if piece < 2_000 else 1.0], "b": [lasting(0.02)]}
    play = Play(WorkClaim("w", 3_000, 1), slow)
    assert play.run(2) < 3.0 + 1_000 * 0.02 + 3 * 2.0


def test_pieces_that_last_for_minutes_are_not_handed_out_ahead() -> None:
    play = Play(WorkClaim("w", 9, 1), {"a": [lasting(100.0)] * 2, "b": [lasting(100.0)]})
    assert play.run(3) < 300.1
