"""Checks as part of forming a round: who is asked what, who stays, who is asked again."""

from typing import Any

import pytest
from ft_run.checks.records import Phase, record_to_json
from ft_run.checks.report import report_from_json
from ft_run.launcher.agent.standalone import new_examiner
from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.protocol.check_messages import (
    CheckOrder,
    CheckResult,
    CheckSpec,
    CheckVerdict,
)
from ft_run.rendezvous.protocol.claim import ClaimState
from ft_run.rendezvous.protocol.failure import Failure
from ft_run.rendezvous.protocol.messages import (
    Excluded,
    Leave,
    Outcome,
    Refused,
    Start,
    Verdict,
    Waiting,
)
from ft_run.tests.harness.ladder_world import World
from ft_run.tests.harness.scene import Scene, claim_of, worker_failure
from msgspec.structs import replace

SPEC = CheckSpec(level="light", timeout_s=60.0)


class CheckScene(Scene):
    """A group with checks, and nodes that carry out their orders as their world has it."""

    def __init__(self, low: int, high: int | None = None, **more: Any) -> None:
        spec = CheckSpec(**{"level": "light", "timeout_s": 60.0, **more.pop("spec", {})})
        super().__init__(low, high, checks=spec, examiner=new_examiner(), **more)
        self.world = World(())
        self._answered: dict[str, int] = {}

    def is_in(self, phase: GroupPhase) -> bool:
        """Whether that is what the group is doing."""
        return self.group.phase is phase

    def open_orders(self) -> dict[str, CheckOrder]:
        """What each node was told last and has not yet carried out."""
        orders = {name: self.all_told(name, CheckOrder) for name in list(self.told)}
        last = {name: told[-1] for name, told in orders.items() if told}
        return {n: o for n, o in last.items() if o.number > self._answered.get(n, 0)}

    def carry_out(self, *names: str) -> None:
        """Nodes carry out what they were told; all that have something to do if none is named."""
        orders = self.open_orders()
        meetings: dict[tuple[int, int], list[str]] = {}
        for name, order in orders.items():
            meetings.setdefault((order.number, order.master_port), []).append(name)
        for name in names or tuple(orders):
            order = orders[name]
            meeting = tuple(meetings[order.number, order.master_port])
            record = self.world.record(Phase(order.phase), meeting, name)
            self._answered[name] = order.number
            self.say(name, CheckResult(order.number, record_to_json(record), self.offer(name)))

    def check_all(self) -> list[str]:
        """Carry out all orders to the end; return the phases."""
        phases = []
        while orders := self.open_orders():
            phases.append(next(iter(orders.values())).phase)
            self.carry_out()
        return phases

    def verdict_on(self, name: str) -> CheckVerdict:
        """What a node was told was found of it."""
        return self.last(name, CheckVerdict)


def checked(names: str, low: int, high: int | None = None, **more: Any) -> CheckScene:
    """A group whose nodes, named by single letters, have all attended."""
    world = more.pop("world", World(()))
    scene = CheckScene(low, high, **more)
    scene.world = world
    for name in names:
        scene.attend(name)
    if high is not None and len(names) < high:
        scene.wait(scene.group.settings.last_call_timeout_s)
    return scene


def bad(*names: str) -> World:
    """A world in which some nodes fail with everybody."""
    return World((), bad=frozenset(names))


# --- the first round -------------------------------------------------------------------------


def test_no_worker_starts_before_the_ladder_has_been_climbed():
    scene = checked("abcd", 4)
    assert scene.is_in(GroupPhase.CHECKING)
    assert scene.check_all() == ["facts", "solo", "pair", "all"]
    assert scene.is_in(GroupPhase.RUNNING)
    assert sorted(scene.ranks("a", "b", "c", "d")) == [0, 1, 2, 3]
    assert scene.verdict_on("a").conclusion == "4 of 4 nodes pass"


def test_those_who_meet_have_ranks_and_one_store():
    scene = CheckScene(2)
    scene.attend("a", workers=2)
    scene.attend("b", workers=3)
    scene.carry_out()
    scene.carry_out()
    one, other = scene.last("a", CheckOrder), scene.last("b", CheckOrder)
    assert (one.phase, one.rank_offset, other.rank_offset) == ("pair", 0, 2)
    assert one.world_size == other.world_size == 5
    assert (one.master_addr, one.master_port) == (other.master_addr, other.master_port)
    assert one.master_addr == "store-of-a"
    assert one.number == other.number
    assert one.deadline_s == pytest.approx(10.0)


def test_every_meeting_has_a_store_of_its_own():
    scene = checked("abcd", 4)
    ports: list[int] = []
    while orders := scene.open_orders():
        ports += {order.master_port for order in orders.values()}
        scene.carry_out()
    assert len(ports) == len(set(ports))


def test_the_whole_report_goes_to_one_node():
    scene = checked("abc", 3)
    scene.check_all()
    reports = [scene.verdict_on(name).report for name in "abc"]
    assert [bool(report) for report in reports] == [True, False, False]
    assert [found.node for found in report_from_json(reports[0]).nodes] == ["a", "b", "c"]


def test_too_few_are_left_and_everybody_hears_what_is_missing():
    scene = checked("abcd", 4, world=bad("b"))
    scene.check_all()
    assert scene.verdict_on("b").exit_code == 30
    verdict = scene.last("a", Verdict)
    assert verdict.outcome is Outcome.CHECKS_FAILED
    assert verdict.exit_code == 20
    assert verdict.sentence == (
        "3 of at least 4 nodes are usable after the checks: 3 of 4 nodes pass; faulty: b"
    )


def test_the_unit_is_kept_after_the_checks():
    scene = checked("abcd", 2, 4, unit=2, world=bad("b"))
    scene.check_all()
    assert scene.assignment("a").nodes == 2


def test_a_spare_takes_the_place_of_a_faulty_node():
    scene = checked("abc", 4)
    assert scene.is_in(GroupPhase.GATHERING)
    scene = CheckScene(2, 3, last_call_timeout_s=5.0)
    scene.world = bad("a")
    for name in "abc":
        scene.attend(name)
    scene.check_all()
    assert scene.is_in(GroupPhase.RUNNING)
    assert sorted(scene.ranks("b", "c")) == [0, 1]


def test_two_nodes_that_fail_together_end_the_job_and_nobody_is_condemned():
    scene = checked("ab", 2, world=bad("a"))
    scene.check_all()
    assert [scene.verdict_on(name).exit_code for name in "ab"] == [20, 20]
    assert "the link between b and a fails" in scene.verdict_on("b").sentence
    assert scene.finished[0].outcome is Outcome.CHECKS_FAILED


def test_a_newcomer_that_fails_with_the_only_node_leaves_and_that_node_goes_on():
    scene = checked("a", 1, 2, world=bad("b"))
    assert scene.check_all() == ["facts", "solo"]
    scene.attend("b")
    scene.wait(11)
    scene.stopped("a")
    scene.check_all()
    assert scene.verdict_on("b").exit_code == 20
    assert scene.group.round == 1
    assert scene.assignment("a").nodes == 1


def test_one_end_of_a_bad_link_stays_out_until_the_other_is_gone():
    world = World((), bad_links=frozenset({frozenset("ad")}))
    scene = checked("abcd", 3, 4, world=world)
    scene.check_all()
    assert scene.verdict_on("d").exit_code == 0
    assert "the link to a fails" in scene.verdict_on("d").sentence
    assert sorted(scene.ranks("a", "b", "c")) == [0, 1, 2]
    scene.wait(60)
    assert scene.group.round == 0
    scene.say("a", Leave("SIGTERM"))
    scene.stopped("a", "b", "c")
    assert scene.group.round == 1
    assert scene.assignment("d").nodes == 3
    assert scene.open_orders() == {}  # it had passed


def test_nodes_that_passed_alone_at_different_times_meet_before_they_are_in_one_world():
    """Each was all that was left of its examination; together they fail."""
    scene = checked("ax", 2, world=World((), bad_alone=frozenset("y"), bad=frozenset("a")))
    scene.detach("x")
    scene.wait(1)
    scene.check_all()
    assert scene.verdict_on("a").exit_code == 0
    scene.detach("a")
    for name in "by":
        scene.attend(name)
    scene.attend("a")
    phases = scene.check_all()
    assert scene.verdict_on("y").exit_code == 30
    assert scene.rounds("a") == scene.rounds("b") == []
    assert "all" in phases


def test_who_has_passed_alone_is_checked_again_among_several():
    """Nobody knows whether it is good company, by which newcomers could be judged."""
    scene = checked("ax", 2, 3)
    scene.detach("x")
    scene.wait(1)
    scene.check_all()
    assert scene.verdict_on("a").exit_code == 0
    scene.detach("a")
    for name in "bca":
        scene.attend(name)
    assert {name: order.phase for name, order in scene.open_orders().items()} == dict.fromkeys(
        "abc", "facts"
    )


def test_warn_mode_starts_all_the_same_and_says_what_it_found():
    scene = checked("ab", 2, world=World((), bad_alone=frozenset("a")), spec={"is_binding": False})
    scene.check_all()
    assert scene.is_in(GroupPhase.RUNNING)
    assert scene.verdict_on("a").exit_code == 0
    assert scene.verdict_on("a").sentence == "solo: the matrix product is wrong"


def test_a_straggler_stays_unless_it_is_to_be_excluded():
    world = World((), slow_compute=frozenset("c"))
    scene = checked("abc", 2, 3, world=world)
    scene.check_all()
    assert scene.assignment("c").nodes == 3
    assert "4.0 times worse than the median" in scene.verdict_on("c").sentence
    scene = checked("abc", 2, 3, world=world, spec={"exclude_straggler": True})
    scene.check_all()
    assert scene.verdict_on("c").exit_code == 30
    assert scene.assignment("a").nodes == 2


def test_a_link_below_the_minimums_is_told_of_and_excluded_if_asked_for():
    world = World((), slow_network=frozenset("c"))
    minimums = {
        "minimums": ("latency_us=60.0", "bandwidth_gb_per_s=0.5"),
        "straggler_threshold": 99.0,
    }
    scene = checked("abc", 2, 3, world=world, spec=minimums)
    scene.check_all()
    assert scene.verdict_on("c").sentence == (
        "inter-node bandwidth 0.25 GB/s, less than the required 0.5"
    )
    assert [scene.verdict_on(name).sentence for name in "ab"] == ["", ""]
    assert scene.assignment("c").nodes == 3
    scene = checked("abc", 2, 3, world=world, spec={**minimums, "exclude_straggler": True})
    scene.check_all()
    assert scene.verdict_on("c").exit_code == 30
    assert scene.assignment("a").nodes == 2


def test_two_nodes_below_a_minimum_go_on_and_nobody_is_blamed():
    spec = {"minimums": ("latency_us=40.0",), "exclude_straggler": True}
    scene = checked("ab", 2, spec=spec)
    scene.check_all()
    assert [scene.verdict_on(name).exit_code for name in "ab"] == [0, 0]
    assert scene.verdict_on("a").sentence == (
        "with two nodes only, it is unknown which of them causes the inter-node latency to miss "
        "its minimum or maximum"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"level": "zork"}, "invalid check options: 'zork'"),
        ({"minimums": ("bogus=3",)}, "invalid check options: no such metric"),
        ({"minimums": ("=3",)}, "invalid check options: no such metric"),
    ],
)
def test_options_that_no_command_line_gives_are_refused(given, words):
    """Before the checks begin: then they would end the master."""
    scene = CheckScene(2, spec=given)
    scene.attend("a")
    assert words in scene.last("a", Refused).sentence
    assert scene.group.job is None


def test_checks_of_nodes_with_other_options_are_given_up():
    """Where a node turns out to have been in a round of the job, with options of its own."""
    scene = checked("ab", 2)
    assert scene.is_in(GroupPhase.CHECKING)
    other = replace(scene.job, checks=None)
    scene.attend("c", claim=claim_of(4, 0), job=other)
    assert all("--network-check is set (" in scene.last(n, Refused).sentence for n in "ab")
    assert scene.notes.count("checks aborted") == 1
    scene.attend("d", claim=claim_of(4, 1), job=other)
    assert scene.is_in(GroupPhase.RUNNING)
    assert scene.group.round == 4


# --- time, loss, lost messages ---------------------------------------------------------------


def test_who_does_not_answer_in_time_has_failed():
    scene = checked("abc", 2, 3)
    scene.carry_out("a", "b")
    scene.wait(32)
    scene.check_all()
    assert scene.verdict_on("c").exit_code == 30
    assert scene.verdict_on("c").sentence == "system information: no answer within 30 s"
    assert scene.assignment("a").nodes == 2


def test_the_whole_has_a_limit_and_what_is_not_known_by_then_has_failed():
    scene = checked("abcd", 4, spec={"timeout_s": 8.0})
    scene.carry_out()
    scene.wait(6)
    verdict = scene.last("a", CheckVerdict)
    assert verdict.exit_code == 30
    assert verdict.sentence == "solo: no answer within 4 s"
    assert scene.finished[0].exit_code == 20


def test_the_last_order_ends_with_the_time_for_all_of_them_and_its_grace_after_that():
    scene = checked("abcd", 4, spec={"timeout_s": 8.0})
    begun = scene.now
    scene.wait(5.5)
    scene.carry_out()  # within the grace of the first order
    assert scene.last("a", CheckOrder).deadline_s == pytest.approx(begun + 8.0 - scene.now)
    assert scene.group.deadline() == pytest.approx(begun + 8.0 + 2.0)
    scene.wait(4.4)
    assert scene.is_in(GroupPhase.CHECKING)
    scene.wait(0.2)
    assert scene.verdict_on("a").sentence == "solo: no answer within 2 s"


def test_an_answer_at_the_very_end_is_followed_by_no_order():
    """All together need no time of their own: nothing but the clock forbids their meeting."""
    scene = checked("abcd", 4, spec={"timeout_s": 8.0})
    end = scene.now + 8.0
    for wait_s in (5.5, 1.0, end - scene.now - 6.5):
        scene.wait(wait_s)
        scene.carry_out()
    assert scene.now == end
    assert [order.phase for order in scene.all_told("a", CheckOrder)] == ["facts", "solo", "pair"]
    assert scene.open_orders() == {}
    assert scene.verdict_on("a").sentence == "the checks were not completed"


def test_the_grace_of_the_answers_adds_up_to_no_more_than_one():
    scene = checked("abcd", 4)
    begun = scene.now
    while orders := scene.open_orders():
        scene.wait(min(order.deadline_s for order in orders.values()) + 1.9)
        if scene.open_orders():
            scene.carry_out()
    assert not scene.is_in(GroupPhase.CHECKING)
    assert 55.0 < scene.now - begun <= 62.0


def test_a_node_that_is_lost_condemns_nobody_and_may_be_replaced():
    scene = checked("abcd", 4)
    scene.carry_out()
    scene.carry_out()
    assert scene.last("a", CheckOrder).phase == "pair"
    scene.detach("b")
    scene.wait(2)
    assert scene.check_all()[-1] == "all"
    assert [scene.verdict_on(name).exit_code for name in "acd"] == [0, 0, 0]
    assert scene.is_in(GroupPhase.GATHERING)
    before = len(scene.all_told("a", CheckOrder))
    scene.attend("e")
    assert scene.check_all() == ["facts", "solo", "pair", "all"]
    assert {o.phase for o in scene.all_told("a", CheckOrder)[before:]} <= {"pair", "all"}
    assert scene.is_in(GroupPhase.RUNNING)


def test_a_node_whose_stream_broke_is_told_its_order_again():
    scene = checked("ab", 2)
    order = scene.last("b", CheckOrder)
    scene.detach("b")
    scene.attend("b")
    assert scene.last("b", CheckOrder) == order
    assert len(scene.all_told("b", CheckOrder)) == 2
    assert scene.check_all()[-1] == "pair"
    assert scene.is_in(GroupPhase.RUNNING)


def test_a_late_copy_of_an_old_answer_does_not_move_the_store():
    scene = checked("ab", 2)
    old = CheckResult(scene.last("a", CheckOrder).number, "{}", scene.offer("a"))
    scene.carry_out()
    scene.carry_out()
    scene.carry_out("a")
    scene.say("a", old)
    scene.carry_out("b")
    assert scene.ranks("a", "b") == [0, 1]
    assert scene.assignment("a").master_port != old.offer.port


def test_an_answer_to_an_earlier_master_does_not_stand_for_later_ones():
    scene = checked("ab", 2)
    scene.say("a", CheckResult(8, "{}", scene.offer("a")))
    assert scene.check_all() == ["facts", "solo", "pair"]
    assert [scene.verdict_on(name).exit_code for name in "ab"] == [0, 0]
    assert scene.is_in(GroupPhase.RUNNING)


def test_who_loses_its_only_partner_is_not_blamed_and_waits_for_another():
    scene = checked("ab", 2)
    scene.carry_out()
    scene.carry_out()
    scene.detach("b")
    scene.wait(2)
    scene.check_all()
    assert scene.verdict_on("a").exit_code == 0
    assert scene.is_in(GroupPhase.GATHERING)


def test_an_answer_that_makes_no_sense_is_a_failure():
    scene = checked("abc", 2, 3)
    scene.say("a", CheckResult(scene.last("a", CheckOrder).number, "so what", scene.offer("a")))
    scene._answered["a"] = scene.last("a", CheckOrder).number
    scene.check_all()
    assert scene.verdict_on("a").exit_code == 30
    assert "invalid answer" in scene.verdict_on("a").sentence


# --- how far it is, for people ---------------------------------------------------------------


def test_each_order_has_how_far_the_checks_are():
    scene = checked("abcd", 4, world=World((), slow_network=frozenset("d")))
    scene.carry_out()
    assert scene.last("a", CheckOrder).progress == "solo: 4 nodes, each alone"
    scene.carry_out()
    assert scene.last("a", CheckOrder).progress == "pair: 2 pairs; slowest so far a: 1 TFLOP/s"
    scene.carry_out()
    order = scene.last("b", CheckOrder)
    assert order.progress == "suspects: 2 pairs, round 2; slowest so far c: 0.25 GB/s"


# --- streams that break when the checks are over ---------------------------------------------


def last_answers(scene: CheckScene) -> None:
    """Climb the ladder up to the last phase, which is not yet answered."""
    while scene.last("a", CheckOrder).phase != "all":
        scene.carry_out()


def reports(scene: CheckScene, name: str) -> list[str]:
    """The reports that a node was given."""
    return [told.report for told in scene.all_told(name, CheckVerdict) if told.report]


def test_the_report_goes_to_a_node_that_is_there():
    scene = checked("abc", 3)
    last_answers(scene)
    scene.carry_out("a")
    scene.detach("a")
    scene.carry_out("b", "c")
    assert len(reports(scene, "b")) == 1
    scene.attend("a")
    assert scene.verdict_on("a").exit_code == 0
    assert reports(scene, "a") == []


def test_what_may_have_been_lost_with_a_stream_is_told_again_before_the_round():
    scene = checked("abc", 3)
    scene.check_all()
    scene.detach("a")
    scene.attend("a")
    told = [m for m in scene.told["a"] if isinstance(m, CheckVerdict | Start)]
    assert [type(message) for message in told] == [CheckVerdict, Start, CheckVerdict, Start]
    assert told[0] == told[2]
    assert len(reports(scene, "a")) == 2
    assert scene.is_in(GroupPhase.RUNNING)


def test_a_node_that_is_sent_away_while_its_stream_is_broken_hears_why():
    scene = checked("ab", 2, world=bad("a"), spec={"only": True})
    scene.carry_out()
    scene.carry_out()
    scene.carry_out("a")
    scene.detach("a")
    scene.carry_out("b")
    assert scene.finished == []
    scene.attend("a")
    assert scene.verdict_on("a").exit_code == 20
    assert "the link between" in scene.verdict_on("a").sentence
    assert scene.closed[-1] == "a"
    assert [verdict.exit_code for verdict in scene.finished] == [0]
    assert len(reports(scene, "b")) == 1


def test_a_node_that_is_sent_away_and_does_not_come_back_is_not_waited_for_long():
    scene = checked("ab", 2, world=bad("a"), spec={"only": True})
    scene.carry_out()
    scene.carry_out()
    scene.carry_out("a")
    scene.detach("a")
    scene.carry_out("b")
    scene.wait(scene.group.settings.node_grace_s)
    assert len(scene.finished) == 1


def test_another_process_is_not_told_what_was_found_of_the_one_before():
    scene = checked("ab", 2, world=bad("a"), spec={"only": True})
    scene.check_all()
    scene.attend("second", node_id="a")
    assert scene.told["second"] == []  # nor the verdict: it is of the job after this one


def test_what_was_found_is_not_told_while_the_node_is_checked_again():
    scene = running("ab", 2)
    scene.fail("a", worker_failure(0, code=-11))
    scene.stopped("a", "b")
    assert scene.is_in(GroupPhase.CHECKING)
    scene.detach("a")
    scene.attend("a")
    assert len(scene.all_told("a", CheckVerdict)) == 1
    scene.check_all()
    assert len(scene.all_told("a", CheckVerdict)) == 2


def test_checks_are_given_up_where_a_round_of_an_earlier_master_runs():
    scene = checked("ab", 2, 4)
    scene.carry_out("a")
    assert scene.is_in(GroupPhase.CHECKING)
    for rank, name in enumerate("cd"):
        scene.attend(name, claim=claim_of(4, rank, checked=True))
    assert scene.is_in(GroupPhase.RUNNING)
    assert scene.notes.count("checks aborted") == 1
    assert scene.last("b", Waiting).spare
    count = len(scene.all_told("b", CheckOrder))
    scene.detach("b")
    scene.attend("b")
    assert len(scene.all_told("b", CheckOrder)) == count
    scene.carry_out("b")
    assert scene.is_in(GroupPhase.RUNNING)
    scene.wait(11)  # the world is to grow
    scene.stopped("c", "d")
    assert scene.check_all() == ["facts", "solo", "pair", "all"]
    assert scene.assignment("c").nodes == 4


# --- later rounds ----------------------------------------------------------------------------


def running(names: str, low: int, high: int | None = None, **more: Any) -> CheckScene:
    """A group that has passed the checks and runs."""
    scene = checked(names, low, high, **more)
    scene.check_all()
    assert scene.is_in(GroupPhase.RUNNING)
    return scene


def restart(scene: CheckScene, name: str, failure: Failure) -> list[str]:
    """A worker fails and everybody stops; return what is checked then."""
    members = [n for n in scene.links if scene.rounds(n)]
    scene.fail(name, failure)
    scene.stopped(*members)
    return scene.check_all()


def test_a_spare_behind_a_bad_link_takes_no_survivors_place():
    world = World((), bad_links=frozenset({frozenset("ad")}))
    scene = checked("abcd", 3, 4, world=world)
    scene.check_all()
    for round_number in (1, 2):
        scene.fail("b", worker_failure(1, message="ValueError: no"))
        scene.stopped("b", "c", "a")
        assert scene.assignment("a").round == round_number
        assert scene.rounds("d") == []


def fail_thrice(scene: CheckScene, name: str) -> None:
    for _ in range(3):
        assert not scene.all_told(name, Excluded)
        restart(scene, name, worker_failure(scene.assignment(name).node_rank, code=7))


@pytest.mark.parametrize(("name", "is_replaced"), [("b", False), ("a", True)])
def test_a_spare_behind_a_bad_link_stands_in_only_for_the_other_end(name: str, is_replaced: bool):
    world = World((), bad_links=frozenset({frozenset("ad")}))
    scene = checked("abcd", 3, 4, world=world, restarts=9)
    scene.check_all()
    fail_thrice(scene, name)
    assert bool(scene.all_told(name, Excluded)) is is_replaced
    assert scene.rounds("d") == ([3] if is_replaced else [])
    assert scene.assignment("c").nodes == 3


def test_a_spare_that_has_not_passed_does_not_stand_in():
    scene = running("ab", 2, restarts=9)
    scene.attend("c")
    fail_thrice(scene, "b")
    assert not scene.all_told("b", Excluded)
    assert scene.assignment("b").round == 3
    # A restart that casts doubt on a node has all who are there checked.
    restart(scene, "b", worker_failure(1, code=-11))
    assert scene.verdict_on("c").exit_code == 0
    assert scene.assignment("b").round == 4
    restart(scene, "b", worker_failure(1, code=7))
    assert scene.all_told("b", Excluded)
    assert scene.rounds("c") == [5]


BROKEN_COLLECTIVE = (
    "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    " [10.0.0.2]:5. This is typically caused by a remote worker crashing."
)
WHOLE, PARTNER, COMPANY, NONE = 4, 2, 1, 0
"""How many orders a node gets: all phases; a pair and all together; all together; none."""


@pytest.mark.parametrize(
    ("failure", "on_restart", "orders"),
    [
        ({"message": "ValueError: no"}, "node", [NONE, NONE, NONE]),
        ({"message": "ValueError: no"}, "always", [WHOLE, WHOLE, WHOLE]),
        ({"code": -11}, "never", [NONE, NONE, NONE]),
        ({"code": -11}, "node", [PARTNER, WHOLE, COMPANY]),
        ({"message": BROKEN_COLLECTIVE}, "node", [WHOLE, WHOLE, WHOLE]),
    ],
)
def test_who_is_checked_again_after_a_failure(
    failure: dict[str, Any], on_restart: str, orders: list[int]
):
    scene = running("abc", 3, spec={"on_restart": on_restart})
    before = {name: len(scene.all_told(name, CheckOrder)) for name in "abc"}
    rank = scene.assignment("b").node_rank
    restart(scene, "b", worker_failure(rank, **failure))
    told = [len(scene.all_told(name, CheckOrder)) - before[name] for name in "abc"]
    if on_restart == "always" or orders.count(WHOLE) == 3:
        assert min(told) >= WHOLE  # and of three nodes one may meet twice
    else:
        assert told == orders
    assert scene.group.round == 1


@pytest.mark.parametrize(
    ("on_restart", "survivors", "returned"),
    [("never", NONE, NONE), ("node", NONE, WHOLE), ("always", WHOLE, WHOLE)],
)
def test_who_is_checked_again_after_a_lost_node(on_restart: str, survivors: int, returned: int):
    scene = running("abc", 2, 3, spec={"on_restart": on_restart})
    counts = {name: len(scene.all_told(name, CheckOrder)) for name in "abc"}

    def phases_of(name: str) -> set[str]:
        told = scene.all_told(name, CheckOrder)[counts[name] :]
        counts[name] += len(told)
        return {order.phase for order in told}

    scene.detach("b")
    scene.wait(2)
    scene.stopped("a", "c")
    scene.check_all()
    assert scene.group.round == 1
    for name in "ac":
        assert ("solo" in phases_of(name)) is bool(survivors)
    scene.attend("b", claim=claim_of(0, 1, nodes=3, state=ClaimState.STOPPED, checked=True))
    scene.wait(11)  # the world is to grow, which is no restart
    scene.stopped("a", "c")
    scene.check_all()
    assert scene.group.round == 2
    assert ("solo" in phases_of("b")) is bool(returned)
    assert "solo" not in phases_of("a") | phases_of("c")


def test_a_node_that_fails_the_second_check_is_sent_away():
    scene = running("abc", 2, 3)
    scene.world = bad("b")
    failure = worker_failure(scene.assignment("b").node_rank, code=-7)
    restart(scene, "b", failure)
    assert scene.verdict_on("b").exit_code == 30
    assert scene.assignment("a").nodes == 2


def test_a_newcomer_is_checked_before_it_enters():
    scene = running("ab", 2, 3)
    scene.world = bad("c")
    scene.attend("c")
    scene.wait(11)  # the world is to grow
    scene.stopped("a", "b")
    scene.check_all()
    assert scene.verdict_on("c").exit_code == 30
    assert scene.group.round == 1
    assert scene.assignment("a").nodes == 2


def test_a_newcomer_is_compared_with_those_who_have_passed():
    scene = running("abc", 3, 4, spec={"exclude_straggler": True})
    scene.world = World((), slow_compute=frozenset("d"))
    scene.attend("d")
    scene.wait(11)  # the world is to grow
    scene.stopped("a", "b", "c")
    phases = scene.check_all()
    assert phases[:3] == ["facts", "solo", "solo"]
    assert scene.verdict_on("d").exit_code == 30
    assert scene.verdict_on("d").sentence == (
        "compute 0.25 TFLOP/s, 4.0 times worse than the median 1 TFLOP/s of its peers"
    )
    assert scene.assignment("a").nodes == 3


def test_a_stranger_that_says_it_has_passed_has_to_pass():
    scene = running("ab", 2, 3)
    claim = claim_of(0, 0, nodes=3, state=ClaimState.STOPPED, checked=True, formed_by="another")
    scene.attend("x", claim=claim)
    scene.wait(11)  # the world is to grow
    scene.stopped("a", "b")
    scene.check_all()
    assert "solo" in {order.phase for order in scene.all_told("x", CheckOrder)}


def test_a_new_master_believes_what_its_nodes_have_passed():
    scene = CheckScene(2)
    for rank, name in enumerate("ab"):
        scene.attend(name, claim=claim_of(4, rank, checked=True))
    assert scene.is_in(GroupPhase.RUNNING)
    scene.say("a", Leave("SIGTERM"))
    scene.stopped("a", "b")
    scene.attend("c")
    assert scene.check_all() == ["facts", "solo", "pair"]
    assert [o.phase for o in scene.all_told("b", CheckOrder)] == ["pair"]


def test_a_new_master_doubts_the_node_whose_failure_it_hears_of():
    scene = CheckScene(2)
    failure = worker_failure(1, code=-11)
    claim = claim_of(4, 1, state=ClaimState.STOPPED, failures=(failure,), checked=True)
    scene.attend("b", claim=claim)
    scene.attend("a", claim=claim_of(4, 0, checked=True))
    scene.stopped("a")
    assert scene.check_all() == ["facts", "solo", "pair"]
    assert [order.phase for order in scene.all_told("a", CheckOrder)] == ["pair"]
    assert scene.assignment("b").cause == failure


# --- the checks alone, and agreement ---------------------------------------------------------


def test_where_the_checks_are_the_job_each_node_has_its_own_exit_status():
    scene = checked("abcd", 4, world=bad("b"), spec={"only": True})
    scene.check_all()
    assert [scene.verdict_on(name).exit_code for name in "abcd"] == [0, 30, 0, 0]
    assert scene.last("a", Verdict).exit_code == 0
    assert scene.last("a", Verdict).sentence == ("checks finished: 3 of 4 nodes pass; faulty: b")
    assert scene.rounds("a") == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (None, "--network-check is not set (this job: set)"),
        (CheckSpec("full", 60.0), "--check-level is full (this job: light)"),
        (
            CheckSpec("light", 60.0, minimums=("latency_us=50.0",)),
            "the list of minimums (--min-..., --max-...) is 'latency_us=50.0' (this job: empty)",
        ),
        (
            CheckSpec("light", 60.0, straggler_threshold=2.0),
            "--straggler-threshold is 2 (this job: 1.5)",
        ),
        (CheckSpec("light", 30.0), "--check-timeout in seconds is 30 (this job: 60)"),
    ],
)
def test_nodes_must_agree_on_the_checks(spec, says):
    scene = CheckScene(2)
    scene.attend("a")
    other = Scene(2, checks=spec)
    scene.attend("b", job=other.job)
    assert says in scene.last("b", Refused).sentence


# --- a bad link, and too few without one of its ends -------------------------------------------


def too_few_beside_a_bad_link() -> CheckScene:
    """Three of three nodes wait; the link between two of them is bad, and a fourth was lost."""
    link = frozenset({frozenset("ab")})
    scene = checked("abcd", 3, world=World((), bad_links=link))
    while not any(order.phase == "all" for order in scene.open_orders().values()):
        scene.carry_out()
    scene.detach("d")
    scene.carry_out("a", "b", "c")
    scene.wait(scene.group.settings.node_grace_s)
    assert scene.is_in(GroupPhase.GATHERING)
    return scene


def test_nodes_that_are_enough_but_for_a_bad_link_wait_without_a_busy_clock():
    scene = too_few_beside_a_bad_link()
    scene.wait(scene.group.settings.last_call_timeout_s + 1)
    assert scene.is_in(GroupPhase.GATHERING)
    scene.attend("e")
    scene.check_all()
    assert scene.is_in(GroupPhase.RUNNING)


def test_a_bad_link_of_a_job_that_nobody_is_left_of_keeps_no_node_out_of_the_next_one():
    scene = too_few_beside_a_bad_link()
    for name in "abc":
        scene.say(name, Leave("SIGTERM"))
    scene.job = replace(scene.job, job_id="next", min_nodes=2, max_nodes=2, checks=None)
    scene.attend("a")
    scene.attend("b")
    assert sorted(scene.ranks("a", "b")) == [0, 1]
