"""The ladder where there are GPUs, in time. In their place: a clock of nodes with eight each.

On the clock a new check worker opens its device for seconds, and every meeting, the one of a node's
own workers too, begins with a communicator that takes seconds. Nothing here ran on a GPU.
"""

import itertools

import pytest
from ft_run.checks.ladder import Ladder
from ft_run.checks.records import Phase, Record, record_to_json
from ft_run.checks.results import Answered, Results, Step
from ft_run.checks.verdict import verdict
from ft_run.rendezvous.protocol.check_messages import CheckSpec
from ft_run.tests.harness.ladder_world import Clock, Pace, World, names

DEFAULT = 0.0
COMMUNICATORS_S = (1, 2, 4, 6, 8, 10, 12, 15, 20)


def pace(communicator_s: float, *, meet_s: float = 1.5) -> Pace:
    """Eight seconds to import torch, five to open the device."""
    return Pace(8, meet_s=meet_s, timeout_s=DEFAULT, context_s=5, communicator_s=communicator_s)


def exit_codes(world: World, at: Pace) -> dict[str, int]:
    """Which nodes leave, with which status."""
    found = Clock(world, at).climb().findings
    return {node: finding.exit_code for node, finding in found.items() if finding.exit_code}


@pytest.mark.parametrize(
    ("count", "communicator_s"),
    [*itertools.product([2, 5, 8, 64], COMMUNICATORS_S), (512, 1), (512, 20)],
)
def test_slow_communicators_condemn_no_healthy_node(count, communicator_s):
    assert exit_codes(World(names(count), gpus=8), pace(communicator_s)) == {}
    alone = World(names(count), gpus=8, bad_alone=frozenset({"n1"}))
    assert exit_codes(alone, pace(communicator_s)) == {"n1": 30}
    hangs = World(names(count), gpus=8, bad=frozenset({"n1"}))
    found = exit_codes(hangs, pace(communicator_s))
    assert found.pop("n1") in (20, 30)
    assert set(found.values()) <= {20}


@pytest.mark.parametrize(
    ("count", "communicator_s"), [*itertools.product([5, 8, 64], [1, 2, 4, 6]), (512, 6)]
)
def test_one_that_hangs_is_condemned_alone(count, communicator_s):
    hangs = World(names(count), gpus=8, bad=frozenset({"n1"}))
    assert exit_codes(hangs, pace(communicator_s)) == {"n1": 30}


@pytest.mark.parametrize("timeout_s", [60, 180])
@pytest.mark.parametrize("count", [5, 8, 64])
def test_pairs_have_time_for_their_communicators_also_after_a_slow_start(count, timeout_s):
    slow_start = Pace(0, solo_s=8.5, meet_s=4, facts_s=1.5, timeout_s=timeout_s)
    clock = Clock(World(names(count), gpus=8), slow_start)
    assert not any(found.exit_code for found in clock.climb().findings.values())
    meetings = [step for step in clock.steps if step.phase not in ("facts", "solo")]
    assert meetings
    assert all(step.limit_s >= 15 for step in meetings)


def test_the_more_meet_the_more_time_they_have():
    limits = []
    for count in (8, 512, 2048):
        clock = Clock(World(names(count), gpus=8), pace(1))
        clock.climb()
        assert clock.steps[-1].phase == "all"
        limits.append(clock.steps[-1].limit_s)
    assert limits == sorted(limits)
    assert limits[-1] > 3 * limits[0]


def test_the_default_is_for_what_is_checked():
    limits = {}
    for gpus in (0, 8):
        clock = Clock(World(names(8), gpus=gpus), Pace(0, timeout_s=DEFAULT))
        clock.climb()
        limits[gpus] = {step.phase: step.limit_s for step in clock.steps}
    assert limits[0] == {"facts": 30, "solo": 30, "pair": 10, "all": 10}
    assert limits[8] == {"facts": 30, "solo": 90, "pair": 30, "all": 30}


def test_of_a_takeover_nothing_is_known_and_there_may_be_gpus():
    ladder = Ladder(CheckSpec("light", 60), names(8), names(8))
    step = ladder.next_step(60)
    assert step is not None
    assert (step.phase, step.limit_s >= 15) == ("all", True)


def test_a_copy_to_the_device_shows_a_gpu_that_has_no_facts():
    ladder = Ladder(CheckSpec("light", 60), names(2), ())
    for phase in (Phase.FACTS, Phase.SOLO):
        step = ladder.next_step(59)
        assert step is not None
        assert step.phase == phase.value
        metrics = {"copy_gb_per_s": 50} if phase is Phase.SOLO else {}
        for node in names(2):
            ladder.answered(node, record_to_json(Record(node, phase, metrics=metrics)), 1.0)
    step = ladder.next_step(50)
    assert step is not None
    assert step.limit_s >= 15


def test_a_gpu_that_was_slowed_down_under_load_is_remarked():
    alone = (("n0",),)
    steps = [
        Answered(Step(phase, alone), {"n0": Record("n0", phase, facts=facts)})
        for phase, facts in (
            (Phase.FACTS, {"gpus": 8}),
            (Phase.SOLO, {"local_rank3_throttled_by": "heat"}),
        )
    ]
    found = verdict(Results(("n0",), steps=tuple(steps))).of("n0")
    assert found.warnings == ("the GPU of local rank 3 was throttled by heat under load",)
    assert found.facts == {"gpus": 8, "local_rank3_throttled_by": "heat"}
