"""The plan and the verdict: which are condemned, for every few faults among few nodes.

``slow`` marks what goes through all of them for up to 64 nodes.
"""

import dataclasses
import itertools
import random
from collections.abc import Iterator
from statistics import median

import pytest
from ft_run.checks.measure import needed_s
from ft_run.checks.plan import (
    ENOUGH_NODES,
    FAULTS,
    MAX_ROUNDS,
    PARTNERS_OF_THE_SLOW,
    bad_links,
    plan,
)
from ft_run.checks.records import Level, Phase, Record
from ft_run.checks.results import Answered, Known, Results, Rules, Step
from ft_run.checks.verdict import NodeVerdict, Standing, Verdicts, exit_code, verdict
from ft_run.checks.worker_config import NO_ANSWER, NOT_CARRIED_OUT
from ft_run.rendezvous.protocol.check_messages import CheckSpec
from ft_run.tests.harness import ladder_world
from ft_run.tests.harness.ladder_world import Clock, Pace, World, climb, names
from msgspec.structs import replace

FIT = (Standing.PASSED, Standing.SLOW)


def standings(verdicts: Verdicts) -> dict[str, Standing]:
    """What each node is found to be."""
    return {found.node: found.standing for found in verdicts.nodes}


def subsets(items: tuple[object, ...], most: int) -> Iterator[tuple[object, ...]]:
    """All subsets of up to so many."""
    for size in range(most + 1):
        yield from itertools.combinations(items, size)


def reachable(world: World, node: str) -> set[str]:
    """The partners with which a healthy node would pass."""
    return {
        other
        for other in world.nodes
        if other != node
        and other not in world.bad | world.bad_alone
        and frozenset((node, other)) not in world.bad_links
    }


def check(world: World) -> tuple[Verdicts, Results]:
    """The promises that hold in every world."""
    verdicts, results = climb(world)
    assert results.rounds <= MAX_ROUNDS
    healthy = [node for node in world.nodes if node not in world.bad | world.bad_alone]
    for found in verdicts.nodes:
        may_seem_bad = found.node == odd_one_out(world) and links_of(world, found.node) >= FAULTS
        if found.node in healthy and reachable(world, found.node) and not may_seem_bad:
            assert found.standing is not Standing.FAULTY, (world, found)
        if found.node not in healthy:
            assert found.standing not in (*FIT, Standing.LEFT_OUT), (world, found)
        if found.standing in FIT:
            fit = {other.node for other in verdicts.nodes if other.standing in FIT}
            assert not any(link <= fit for link in world.bad_links), (world, verdicts)
    return verdicts, results


# --- nodes and links that fail ---------------------------------------------------------------


def links_of(world: World, node: str) -> int:
    """How many of a node's links are bad."""
    return sum(node in link for link in world.bad_links)


def odd_one_out(world: World) -> str:
    """The node that sits out the first round and so meets three; its links to them may be bad."""
    count = len(world.nodes)
    return world.nodes[-1] if count % 2 and count > ENOUGH_NODES else ""


def exactly_found(world: World) -> None:
    """Every bad node is named, and no other."""
    verdicts, results = check(world)
    found = standings(verdicts)
    context = (world, [answered.step for answered in results.steps], verdicts.sentence)
    assert all(standing in FIT for node, standing in found.items() if node not in world.bad), (
        context
    )
    # Four rounds are too few for two of five: there are ten pairs, and two can meet at a time.
    allowed = {Standing.FAULTY}
    if len(world.nodes) == 5 and len(world.bad) == 2:
        allowed.add(Standing.UNDECIDED)
    assert {found[node] for node in world.bad} <= allowed, context


@pytest.mark.parametrize("count", range(2, 9))
def test_every_few_bad_nodes_among_few_are_found(count):
    for bad in subsets(names(count), 3):
        world = World(names(count), bad=frozenset(map(str, bad)))
        if count - len(bad) >= max(2, len(bad)):
            exactly_found(world)
        else:
            check(world)


@pytest.mark.parametrize("count", [*range(9, 65, 5), 64])
def test_random_bad_nodes_among_many_are_found(count):
    chance = random.Random(count)
    for _ in range(6):
        exactly_found(World(names(count), bad=frozenset(chance.sample(names(count), 3))))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [*range(9, 21), 33, 64])
def test_every_few_bad_nodes_among_many_are_found(count):
    for bad in subsets(names(count), 3):
        exactly_found(World(names(count), bad=frozenset(map(str, bad))))


def mixtures(count: int, most: int) -> Iterator[World]:
    """All worlds with up to so many bad nodes and bad links."""
    nodes = names(count)
    links = tuple(frozenset(link) for link in itertools.combinations(nodes, 2))
    for faults in subsets((*nodes, *links), most):
        bad = frozenset(fault for fault in faults if isinstance(fault, str))
        broken = frozenset(fault for fault in faults if isinstance(fault, frozenset))
        if len(broken) > bad_links(count):
            continue  # may be taken for a bad node
        yield World(nodes, bad=bad, bad_links=broken)


@pytest.mark.parametrize("count", range(2, 6))
def test_bad_nodes_and_bad_links_are_told_apart(count):
    for world in mixtures(count, 3):
        check(world)


@pytest.mark.parametrize("count", [6, 7, 8, 10])
def test_three_bad_links_do_not_condemn_a_node(count):
    for node in (names(count)[0], names(count)[-1]):
        others = [name for name in names(count) if name != node]
        for ends in itertools.islice(itertools.combinations(others, 3), 60):
            links = frozenset(frozenset((node, end)) for end in ends)
            check(World(names(count), bad_links=links))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", range(6, 10))
def test_three_bad_nodes_and_bad_links_are_told_apart(count):
    for world in mixtures(count, 3):
        check(world)


@pytest.mark.parametrize("count", [3, 4])
def test_every_bad_link_among_few_is_found(count):
    for link in itertools.combinations(names(count), 2):
        verdicts, _ = climb(World(names(count), bad_links=frozenset({frozenset(link)})))
        found = standings(verdicts)
        assert [set(ends) for ends in verdicts.bad_links] == [set(link)]
        assert sorted(found.values(), key=str) == sorted(
            [Standing.PASSED] * (count - 1) + [Standing.LEFT_OUT], key=str
        )
        (out,) = (name for name, standing in found.items() if standing is Standing.LEFT_OUT)
        assert out in link


def test_the_end_of_two_bad_links_stays_out_and_not_both_others():
    links = frozenset({frozenset({"n0", "n1"}), frozenset({"n0", "n2"})})
    verdicts, _ = climb(World(names(6), bad_links=links))
    assert {frozenset(ends) for ends in verdicts.bad_links} == links
    found = standings(verdicts)
    assert found.pop("n0") is Standing.LEFT_OUT
    assert set(found.values()) == {Standing.PASSED}


def test_two_nodes_that_fail_together_are_a_link_and_none_is_condemned():
    verdicts, results = climb(World(names(2), bad=frozenset({"n0"})))
    assert set(standings(verdicts).values()) == {Standing.UNDECIDED}
    assert verdicts.of("n1").reason == "the link between n1 and n0 fails: no answer"
    assert results.rounds == 1


def test_with_three_bad_nodes_out_of_six_the_other_three_go_on():
    verdicts, _ = climb(World(names(6), bad=frozenset({"n1", "n3", "n5"})))
    assert standings(verdicts) == {
        "n0": Standing.PASSED,
        "n1": Standing.FAULTY,
        "n2": Standing.PASSED,
        "n3": Standing.FAULTY,
        "n4": Standing.PASSED,
        "n5": Standing.FAULTY,
    }
    assert "fails with n0" in verdicts.of("n1").reason
    assert "no answer" in verdicts.of("n1").reason


def test_a_node_that_fails_alone_meets_no_other():
    verdicts, results = climb(World(names(3), bad_alone=frozenset({"n1"})))
    assert standings(verdicts)["n1"] is Standing.FAULTY
    assert verdicts.of("n1").reason == "solo: the matrix product is wrong"
    met = {
        n for a in results.steps if a.step.phase is Phase.PAIR for m in a.step.meetings for n in m
    }
    assert met == {"n0", "n2"}
    assert verdicts.sentence == "2 of 3 nodes pass; faulty: n1"


def test_one_node_passes_without_a_partner():
    verdicts, results = climb(World(names(1)))
    assert standings(verdicts) == {"n0": Standing.PASSED}
    assert [answered.step.phase for answered in results.steps] == [Phase.FACTS, Phase.SOLO]


def test_one_node_has_the_whole_time_for_each_step():
    clock = Clock(World(names(1)), Pace(import_s=40.0, solo_s=10.0, timeout_s=60.0))
    assert {finding.exit_code for finding in clock.climb().findings.values()} == {0}


def test_two_nodes_do_not_meet_a_second_time_as_all():
    _, results = climb(World(names(2)))
    phases = [answered.step.phase for answered in results.steps]
    assert phases == [Phase.FACTS, Phase.SOLO, Phase.PAIR]


def test_healthy_nodes_meet_once_in_pairs_and_then_all():
    verdicts, results = climb(World(names(64)))
    phases = [answered.step.phase for answered in results.steps]
    assert phases == [Phase.FACTS, Phase.SOLO, Phase.PAIR, Phase.ALL]
    assert verdicts.sentence == "64 of 64 nodes pass"


def test_when_all_fail_together_none_is_condemned_and_none_passes():
    verdicts, results = climb(World(names(8), deaf_in_all=True))
    assert set(standings(verdicts).values()) == {Standing.UNDECIDED}
    assert "all 8 together fail, but pass in pairs: no answer" in verdicts.sentence
    assert results.rounds == MAX_ROUNDS == 4  # as docs/internals/check-method.md promises


# --- lost during the checks ------------------------------------------------------------------


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("count", range(2, 7))
def test_a_lost_node_condemns_no_other_and_the_others_pass(count, step):
    for node in names(count):
        verdicts, _ = climb(World(names(count)), lost={step: node})
        found = standings(verdicts)
        if count == 2 and step == 3:
            continue  # two nodes are done after three steps
        assert found.pop(node) is Standing.LOST
        assert set(found.values()) == {Standing.PASSED}, (step, node, verdicts)


def test_a_node_that_replaces_the_lost_end_of_its_bad_link_has_not_met_all_others():
    world = World(names(4), bad_links=frozenset({frozenset({"n0", "n3"})}))
    _, results = climb(world)
    assert results.steps[-1].step == Step(Phase.ALL, (("n0", "n1", "n2"),))
    found = standings(verdict(replace(results, lost=frozenset({"n0"}))))
    assert found.pop("n0") is Standing.LOST
    assert set(found.values()) == {Standing.UNDECIDED}


def test_all_together_meet_again_for_each_node_that_is_lost_meanwhile():
    verdicts, _ = climb(World(names(6)), lost={3: "n5", 5: "n4"})
    found = standings(verdicts)
    assert {found.pop("n4"), found.pop("n5")} == {Standing.LOST}
    assert set(found.values()) == {Standing.PASSED}


# --- time runs short -------------------------------------------------------------------------


def exit_codes_in_time(
    count: int, pace: Pace, vouched: frozenset[str] = frozenset(), bad: str = "n1"
) -> dict[str, int]:
    """Which nodes leave with which status, where one node hangs in every meeting."""
    clock = Clock(World(names(count), bad=frozenset({bad})), pace, vouched)
    conclusion = clock.climb()
    assert clock.now <= pace.timeout_s
    return {node: f.exit_code for node, f in conclusion.findings.items() if f.exit_code}


@pytest.mark.parametrize("import_s", [0, 1, 3, 5, 8, 10])
@pytest.mark.parametrize("count", [3, 4, 5, 8, 33])
def test_one_that_hangs_is_condemned_alone_also_where_an_import_takes_long(count, import_s):
    assert exit_codes_in_time(count, Pace(import_s, solo_s=1)) == {"n1": 30}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_a_healthy_node_is_never_condemned_for_want_of_time(count):
    for import_s, solo_s in itertools.product(range(26), (1, 3)):
        found = exit_codes_in_time(count, Pace(import_s, solo_s))
        assert found.keys() >= {"n1"}
        assert all(code == 20 for node, code in found.items() if node != "n1")
        if import_s + solo_s <= 16:  # there is time for one more meeting
            assert count == 2 or found.keys() == {"n1"}, (import_s, solo_s)


@pytest.mark.parametrize("count", range(2, 6))
def test_a_node_that_has_passed_before_stays_whatever_time_is_left(count):
    last = names(count)[-1]
    vouched = frozenset(names(count)) - {last}
    for import_s in range(0, 26, 2):
        found = exit_codes_in_time(count, Pace(import_s), vouched, bad=last)
        assert found.keys() == {last}, import_s


def step_of(phase: Phase, *meetings: tuple[str, ...], **failures: str) -> Answered:
    """A step, and the reasons of the nodes for which it failed."""
    nodes = [node for meeting in meetings for node in meeting]
    records = {node: Record(node, phase, failure=failures.get(node, "")) for node in nodes}
    return Answered(Step(phase, meetings), records)


NO_TIME = f"{NOT_CARRIED_OUT}: {NO_ANSWER} 2 s (importing torch)"
ALONE = (("a",), ("b",))
APART = (step_of(Phase.FACTS, *ALONE), step_of(Phase.SOLO, *ALONE))
FAILED = (*APART, step_of(Phase.PAIR, ("a", "b"), a="no", b="no"))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("", "broken", "broken"),
        ("broken", "no answer", "broken"),
        ("all-reduce: RuntimeError: Timed out waiting 8495ms", "no answer", "no answer"),
        ("all-reduce: Timed out", "all-reduce: Connection closed by peer", "all-reduce: Timed out"),
    ],
)
def test_the_reason_of_a_meeting_is_not_that_a_node_waited_for_the_other(a, b, said):
    step = step_of(Phase.PAIR, ("a", "b"), a=a, b=b)
    assert Results(("a", "b"), steps=(step,)).failures == {("a", "b"): said}


@pytest.mark.parametrize("reason", [NO_TIME, f"{NO_ANSWER} 4 s (memory)"])
def test_a_node_that_passed_alone_does_not_fail_for_having_no_time_to_do_so_again(reason):
    steps = (*FAILED, step_of(Phase.SOLO, *ALONE, a=reason, b=reason))
    verdicts = verdict(Results(("a", "b"), steps=steps))
    assert verdicts.of("a").standing is verdicts.of("b").standing is Standing.UNDECIDED
    assert verdicts.of("a").reason == "the link between a and b fails: no"
    steps = (*FAILED, step_of(Phase.SOLO, *ALONE, b="the matrix product is wrong"))
    assert verdict(Results(("a", "b"), steps=steps)).of("b").standing is Standing.FAULTY


def test_one_node_that_hangs_in_its_second_measurement_is_undecided():
    steps = (
        step_of(Phase.FACTS, ("a",)),
        step_of(Phase.SOLO, ("a",)),
        step_of(Phase.SOLO, ("a",), a=f"{NO_ANSWER} 4 s (memory)"),
    )
    assert verdict(Results(("a",), steps=steps)).of("a").standing is Standing.UNDECIDED


@pytest.mark.parametrize(
    ("partner", "expected"),
    [("is lost", Standing.UNDECIDED), ("is bad", Standing.PASSED)],
)
def test_a_node_that_failed_with_all_and_is_left_passes_only_if_they_were_to_blame(
    partner, expected
):
    failure = "the matrix product is wrong" if partner == "is bad" else ""
    lost = frozenset({"b"}) if partner == "is lost" else frozenset[str]()
    steps = (*FAILED, step_of(Phase.SOLO, *ALONE, b=failure))
    verdicts = verdict(Results(("a", "b"), steps=steps, lost=lost))
    assert verdicts.of("a").standing is expected


def test_no_order_is_given_that_is_too_short_for_what_it_measures():
    """The second measurement of the slow one leaves half a second, and a pair needs more."""
    pace = Pace(import_s=0.5, solo_s=2.0, timeout_s=5.0)
    clock = Clock(World(names(2), slow_compute=frozenset({"n0"})), pace)
    conclusion = clock.climb()
    assert [step.phase for step in clock.steps] == ["facts", "solo", "solo"]
    assert 0.0 < pace.timeout_s - clock.now < needed_s(Level.LIGHT, Phase.PAIR)
    assert {finding.exit_code for finding in conclusion.findings.values()} == {20}


# --- nodes that passed before ----------------------------------------------------------------


def test_newcomers_meet_nodes_that_have_passed_and_these_are_not_measured_again():
    world = World(names(4), bad=frozenset({"n3"}))
    verdicts, results = climb(world, vouched=frozenset({"n0", "n1"}))
    assert standings(verdicts) == {
        "n0": Standing.PASSED,
        "n1": Standing.PASSED,
        "n2": Standing.PASSED,
        "n3": Standing.FAULTY,
    }
    alone = [a for a in results.steps if a.step.phase in (Phase.FACTS, Phase.SOLO)]
    assert [set(a.records) for a in alone[:2]] == [{"n2", "n3"}, {"n2", "n3"}]
    pairs = next(a for a in results.steps if a.step.phase is Phase.PAIR)
    assert set(pairs.step.meetings) == {("n2", "n0"), ("n3", "n1")}


@pytest.mark.parametrize("count", range(2, 7))
def test_no_vouched_node_is_condemned(count):
    for known in subsets(names(count), count):
        for bad in subsets(names(count), 1):
            world = World(names(count), bad=frozenset(map(str, bad)) - set(map(str, known)))
            verdicts, _ = climb(world, vouched=frozenset(map(str, known)))
            for node in map(str, known):
                assert verdicts.of(node).standing is not Standing.FAULTY


@pytest.mark.parametrize("steps", [0, 3, 4])
def test_a_world_that_has_passed_goes_on_without_newcomers_that_do_not_get_to_the_end(steps):
    """Time is over after so many steps, or all together fail."""
    vouched = frozenset(names(3))
    world = World(names(4), deaf_in_all=True)
    _, results = climb(world, vouched=vouched)
    verdicts = verdict(replace(results, steps=results.steps[:steps]))
    found = standings(verdicts)
    assert found.pop("n3") is Standing.UNDECIDED
    assert set(found.values()) == {Standing.PASSED}
    assert verdicts.sentence.startswith("3 of 4 nodes pass; undecided: n3")


def test_nodes_that_passed_apart_and_fail_together_do_not_pass():
    verdicts, _ = climb(World(names(3), deaf_in_all=True), vouched=frozenset(names(3)))
    assert set(standings(verdicts).values()) == {Standing.UNDECIDED}


@pytest.mark.parametrize("newcomer", ["n0", "n3"])
@pytest.mark.parametrize("fails_with", [("n1",), ("n1", "n2")])
def test_the_newcomer_stays_out_where_its_link_to_a_passed_node_fails(newcomer, fails_with):
    links = frozenset(frozenset({newcomer, end}) for end in fails_with)
    vouched = frozenset(names(4)) - {newcomer}
    verdicts, _ = climb(World(names(4), bad_links=links), vouched=vouched)
    found = standings(verdicts)
    assert found.pop(newcomer) is not Standing.PASSED
    assert set(found.values()) == {Standing.PASSED}


def test_newcomers_are_compared_with_nodes_that_have_passed():
    speeds = {"compute_tflops": 1.0, "latency_us": 50.0, "bandwidth_gb_per_s": 1.0}
    known = {node: Known(speeds, {"torch": "2.5"}) for node in names(7)}
    slow = frozenset({"n7"})
    world = World(names(8), slow_compute=slow, slow_network=slow)
    verdicts, _ = climb(world, vouched=frozenset(names(7)), known=known)
    assert verdicts.of("n7").slow == ("compute_tflops", "bandwidth_gb_per_s")
    found = standings(verdicts)
    assert found.pop("n7") is Standing.SLOW
    assert set(found.values()) == {Standing.PASSED}
    told = Answered(
        Step(Phase.FACTS, (("n7",),)), {"n7": Record("n7", Phase.FACTS, facts={"torch": "2.6"})}
    )
    results = Results(names(8), frozenset(names(7)), (told,), known=known)
    assert verdict(results).of("n7").warnings == ("torch is 2.6 here and 2.5 on most other nodes",)
    results = Results(names(8), frozenset(), (told,), known=known)
    assert verdict(results).of("n7").warnings == (), "a node that has to pass again is no reference"


# --- stragglers ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(2, 9))
def test_every_few_slow_computers_are_found_and_measured_twice(count):
    for slow in subsets(names(count), (count - 1) // 2):
        world = World(names(count), slow_compute=frozenset(map(str, slow)))
        verdicts, results = climb(world)
        found = {v.node for v in verdicts.nodes if v.standing is Standing.SLOW}
        assert found == set(slow)
        assert all(v.slow == ("compute_tflops",) for v in verdicts.nodes if v.node in found)
        for node in world.nodes:
            times = len(results.measured(node, "compute_tflops"))
            assert times == (2 if node in slow else 1)


@pytest.mark.parametrize("count", range(3, 9))
def test_a_minority_of_slow_networks_is_found_and_no_other(count):
    for slow in subsets(names(count), min(3, (count - 1) // 2)):
        verdicts, results = climb(World(names(count), slow_network=frozenset(map(str, slow))))
        found = {v.node for v in verdicts.nodes if v.standing is Standing.SLOW}
        assert found == set(slow), (slow, [a.step for a in results.steps], verdicts)
        assert results.rounds <= MAX_ROUNDS


@pytest.mark.parametrize("count", [4, 6, 8])
def test_a_node_that_seems_slow_is_measured_with_a_third_partner_where_there_is_one(count):
    """One that is fast with the third was held up by a busy machine."""
    _, results = climb(World(names(count), slow_network=frozenset({"n1"})))
    assert len(results.passed["n1"]) == PARTNERS_OF_THE_SLOW
    third = results.steps[-2]  # before all
    assert third.step.phase is Phase.SUSPECTS
    fast = {"latency_us": 50.0, "bandwidth_gb_per_s": 1.0}
    records = {
        name: dataclasses.replace(record, metrics=fast) for name, record in third.records.items()
    }
    steps = (*results.steps[:-2], replace(third, records=records), results.steps[-1])
    verdicts = verdict(replace(results, steps=steps))
    assert set(standings(verdicts).values()) == {Standing.PASSED}


def test_the_last_round_is_not_spent_on_a_third_partner_of_a_slow_node():
    """The links that fail when all meet would stay unknown, and no node would pass."""
    links = frozenset({frozenset({"n1", "n2"}), frozenset({"n2", "n3"})})
    world = World(names(5), bad_links=links, slow_network=frozenset({"n0"}))
    verdicts, results = climb(world)
    assert results.rounds == MAX_ROUNDS
    assert {frozenset(ends) for ends in verdicts.bad_links} == links
    found = standings(verdicts)
    assert (found.pop("n0"), found.pop("n2")) == (Standing.SLOW, Standing.LEFT_OUT)
    assert set(found.values()) == {Standing.PASSED}


def test_half_of_the_nodes_are_not_slower_than_the_other_half():
    speeds: dict[tuple[str, ...], float]
    speeds = {("n0", "n1"): 0.4, ("n2", "n3"): 1.0, ("n0", "n2"): 0.5, ("n1", "n3"): 0.5}
    speeds[names(4)] = 0.5
    steps = [
        Answered(
            Step(phase, meetings),
            {
                node: Record(node, phase, metrics={"bandwidth_gb_per_s": speeds[meeting]})
                for meeting in meetings
                for node in meeting
            },
        )
        for phase, meetings in (
            (Phase.PAIR, (("n0", "n1"), ("n2", "n3"))),
            (Phase.SUSPECTS, (("n0", "n2"), ("n1", "n3"))),
            (Phase.ALL, (names(4),)),
        )
    ]
    verdicts = verdict(Results(names(4), steps=tuple(steps)))
    assert set(standings(verdicts).values()) == {Standing.PASSED}
    minimums = Rules(minimums={"bandwidth_gb_per_s": 0.7})
    verdicts = verdict(Results(names(4), steps=tuple(steps), rules=minimums))
    assert {found.node for found in verdicts.nodes if found.slow} == {"n0", "n1"}


@pytest.mark.parametrize("count", range(9, 65, 5))
def test_random_slow_networks_among_many_are_found(count):
    chance = random.Random(count)
    for _ in range(5):
        slow = frozenset(chance.sample(names(count), 3))
        verdicts, _ = climb(World(names(count), slow_network=slow))
        assert {v.node for v in verdicts.nodes if v.standing is Standing.SLOW} == slow


@pytest.mark.parametrize("count", range(4, 9))
def test_bad_and_slow_nodes_together(count):
    for bad, slow in itertools.permutations(names(count), 2):
        world = World(names(count), bad=frozenset({bad}), slow_network=frozenset({slow}))
        verdicts, _ = climb(world)
        found = standings(verdicts)
        assert found.pop(bad) is Standing.FAULTY
        assert found.pop(slow) is Standing.SLOW, (world, verdicts)
        assert set(found.values()) == {Standing.PASSED}


def test_two_nodes_cannot_tell_which_network_is_slow_but_which_computer_is():
    both = frozenset({"n0"})
    verdicts, _ = climb(World(names(2), slow_compute=both, slow_network=both))
    assert verdicts.of("n0").slow == ("compute_tflops",)
    assert verdicts.of("n1").standing is Standing.PASSED
    assert verdicts.of("n0").reason == (
        "compute 0.25 TFLOP/s, 4.0 times worse than the median 1 TFLOP/s of its peers"
    )


@pytest.mark.parametrize("count", range(1, 8))
def test_the_median_of_the_others(count):
    chance = random.Random(count)
    for _ in range(20):
        values = {name: float(chance.randrange(4) + 1) for name in names(count)}
        steps = [
            Answered(
                Step(Phase.SOLO, tuple((name,) for name in values)),
                {
                    n: Record(n, Phase.SOLO, metrics={"compute_tflops": v})
                    for n, v in values.items()
                },
            )
        ]
        results = Results((*values, "absent"), steps=tuple(steps), lost=frozenset({"n1"}))
        for node in (*values, "absent"):
            others = [v for n, v in values.items() if n not in (node, "n1")]
            expected = median(others) if others else None
            assert results.median_of_peers("compute_tflops", node) == expected


def test_the_threshold_decides():
    slow = frozenset({"n1"})
    verdicts, _ = climb(World(names(4), slow_network=slow), rules=Rules(straggler_threshold=4.5))
    assert set(standings(verdicts).values()) == {Standing.PASSED}


def test_the_product_can_have_a_threshold_of_its_own():
    speeds = {"n0": 100.0, "n1": 100.0, "n2": 85.0, "n3": 99.0}
    steps = [
        Answered(
            Step(Phase.SOLO, tuple((name,) for name in speeds)),
            {
                n: Record(n, Phase.SOLO, metrics={"compute_tflops": v, "memory_gb_per_s": v})
                for n, v in speeds.items()
            },
        )
    ] * 2
    for rules, slow in ((Rules(), ()), (Rules(compute_threshold=1.15), ("compute_tflops",))):
        results = Results(tuple(speeds), steps=tuple(steps), rules=rules)
        assert verdict(results).of("n2").slow == slow
        assert not verdict(results).of("n3").slow


def test_a_minimum_is_missed_by_all_alike():
    rules = Rules(minimums={"compute_tflops": 2.0, "latency_us": 40.0})
    verdicts, _ = climb(World(names(3)), rules=rules)
    assert {v.slow for v in verdicts.nodes} == {("compute_tflops", "latency_us")}
    assert verdicts.of("n0").reason == (
        "compute 1 TFLOP/s, less than the required 2; "
        "inter-node latency 50 µs, more than the required 40"
    )


def test_what_has_a_minimum_and_was_not_measured_has_failed():
    verdicts, results = climb(World(names(3)), rules=Rules(minimums={"copy_gb_per_s": 20}))
    assert set(standings(verdicts).values()) == {Standing.FAULTY}
    assert verdicts.of("n0").reason == (
        "solo: host-to-device copy was not measured, but a minimum of 20 GB/s is required"
    )
    assert [answered.step.phase for answered in results.steps] == [Phase.FACTS, Phase.SOLO]


def test_a_failure_that_was_told_counts_before_what_was_not_measured():
    world = World(names(1), bad_alone=frozenset({"n0"}))
    verdicts, _ = climb(world, rules=Rules(minimums={"copy_gb_per_s": 20}))
    assert verdicts.of("n0").reason == "solo: the matrix product is wrong"


def test_one_node_alone_is_held_to_the_minimums():
    verdicts, _ = climb(World(names(1)), rules=Rules(minimums={"memory_gb_per_s": 11}))
    assert verdicts.of("n0").slow == ("memory_gb_per_s",)


@pytest.mark.parametrize(
    ("standing", "warnings", "more", "expected"),
    [
        (Standing.PASSED, (), {"is_strict": True}, 0),
        (Standing.PASSED, ("hot",), {}, 0),
        (Standing.PASSED, ("hot",), {"is_strict": True}, 10),
        (Standing.SLOW, (), {}, 0),
        (Standing.SLOW, (), {"is_strict": True}, 10),
        (Standing.SLOW, (), {"is_strict": True, "exclude_straggler": True}, 30),
        (Standing.FAULTY, (), {}, 30),
        (Standing.UNDECIDED, (), {}, 20),
        (Standing.LEFT_OUT, (), {}, 0),
        (Standing.LEFT_OUT, (), {"only": True}, 20),
    ],
)
def test_what_a_node_ends_with(standing, warnings, more, expected):
    found = NodeVerdict("n0", standing, "", {}, warnings=warnings)
    assert exit_code(found, CheckSpec(**more)) == expected


# --- many nodes ------------------------------------------------------------------------------


class Counted(str):
    """A node's name that counts how often it is looked up: what the master has to do."""

    lookups = 0

    def __hash__(self):
        Counted.lookups += 1
        return super().__hash__()


def lookups(monkeypatch, count, world):
    """How often the plans and the verdict look up nodes on their way up the ladder."""
    nodes = tuple(map(Counted, names(count)))
    spent = 0

    def counted(function):
        def run(*given):
            nonlocal spent
            Counted.lookups = 0
            found = function(*given)
            spent += Counted.lookups
            return found

        return run

    monkeypatch.setattr(ladder_world, "plan", counted(plan))
    monkeypatch.setattr(ladder_world, "verdict", counted(verdict))
    climb(world(nodes))
    return spent


@pytest.mark.parametrize(
    "world",
    [
        World,
        lambda nodes: World(nodes, slow_network=frozenset(nodes[::3])),
        lambda nodes: World(nodes, slow_network=frozenset(nodes[::4] + nodes[1::4])),
        lambda nodes: World(nodes, bad=frozenset(nodes[::4])),
        lambda nodes: World(nodes, bad=frozenset(nodes)),
        lambda nodes: World(nodes, deaf_in_all=True),
        lambda nodes: World(
            nodes, bad_links=frozenset(map(frozenset, zip(nodes[::2], nodes[1::2], strict=True)))
        ),
    ],
    ids=["well", "third slow", "half slow", "quarter bad", "all bad", "deaf in all", "bad links"],
)
def test_the_work_of_the_master_grows_with_the_nodes_and_not_with_their_square(monkeypatch, world):
    few, many = (lookups(monkeypatch, count, world) for count in (48, 192))
    assert many < 6 * few
