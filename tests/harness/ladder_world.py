"""A world of nodes, links and faults for the ladder: what each meeting would measure."""

import dataclasses
from dataclasses import dataclass

from ft_run import defaults
from ft_run.checks.ladder import Ladder
from ft_run.checks.measure import needed_s
from ft_run.checks.plan import plan
from ft_run.checks.records import Fact, Level, Metrics, Phase, Record, record_to_json
from ft_run.checks.results import Answered, Known, Results, Rules, Step
from ft_run.checks.verdict import Verdicts, verdict
from ft_run.checks.worker_config import IMPORTING, SMALL, no_answer
from ft_run.rendezvous.group.examination import CheckStep, Conclusion
from ft_run.rendezvous.protocol.check_messages import CheckSpec

SLOW = 4.0
_MEETING_PHASES = (Phase.PAIR, Phase.SUSPECTS, Phase.ALL)


def names(count: int) -> tuple[str, ...]:
    """The names of a number of nodes."""
    return tuple(f"n{number}" for number in range(count))


@dataclass(frozen=True)
class World:
    """Nodes and what is wrong with them."""

    nodes: tuple[str, ...]
    bad_alone: frozenset[str] = frozenset()
    bad: frozenset[str] = frozenset()
    """They work alone and fail with every partner."""
    bad_links: frozenset[frozenset[str]] = frozenset()
    slow_compute: frozenset[str] = frozenset()
    slow_network: frozenset[str] = frozenset()
    gpus: int = 0
    """Of each node."""
    deaf_in_all: bool = False
    """All together fail, whichever nodes they are."""

    def record(self, phase: Phase, meeting: tuple[str, ...], node: str) -> Record:
        """What a node answers."""
        return Record(
            node,
            phase,
            self._failure(phase, meeting, node),
            self._metrics(phase, meeting),
            self._facts(phase),
        )

    def _facts(self, phase: Phase) -> dict[str, Fact]:
        if phase is not Phase.FACTS or not self.gpus:
            return {}
        return {"gpus": self.gpus, "local_world_size": self.gpus}

    def _failure(self, phase: Phase, meeting: tuple[str, ...], node: str) -> str:
        if phase is Phase.SOLO and node in self.bad_alone:
            return "the matrix product is wrong"
        if phase not in _MEETING_PHASES:
            return ""
        broken = any(link <= set(meeting) for link in self.bad_links)
        if broken or self.bad & set(meeting) or (self.deaf_in_all and phase is Phase.ALL):
            return "no answer"
        return ""

    def _metrics(self, phase: Phase, meeting: tuple[str, ...]) -> Metrics:
        if phase is Phase.SOLO:
            slow = meeting[0] in self.slow_compute
            compute = 1.0 / SLOW if slow else 1.0
            copy = {"copy_gb_per_s": 50.0} if self.gpus else {}
            return {"compute_tflops": compute, "memory_gb_per_s": 10.0, **copy}
        if phase in _MEETING_PHASES:
            slow = bool(self.slow_network & set(meeting))
            return {"latency_us": 50.0, "bandwidth_gb_per_s": 1.0 / SLOW if slow else 1.0}
        return {}


def climb(
    world: World,
    *,
    vouched: frozenset[str] = frozenset(),
    rules: Rules | None = None,
    lost: dict[int, str] | None = None,
    known: dict[str, Known] | None = None,
) -> tuple[Verdicts, Results]:
    """Go up the ladder to its end.

    Args:
        world: what there is to find.
        vouched: nodes that have passed before.
        rules: by what is judged.
        lost: the node that is lost during the step of a number, from 0.
        known: what was found of nodes that have passed before.
    """
    results = Results(world.nodes, vouched, rules=rules or Rules(), known=known or {})
    while (step := plan(results)) is not None:
        assert len(results.steps) < 20, [answered.step for answered in results.steps]
        _is_possible(step, results)
        gone = (lost or {}).get(len(results.steps))
        records = {
            node: world.record(step.phase, meeting, node)
            for meeting in step.meetings
            for node in meeting
            if node != gone
        }
        results = Results(
            world.nodes,
            vouched,
            (*results.steps, Answered(step, records)),
            results.lost | ({gone} if gone else set()),
            results.rules,
            results.known,
        )
    return verdict(results), results


def _is_possible(step: Step, results: Results) -> None:
    """No node meets two others at once; one that is gone or has failed alone meets none."""
    present = [node for meeting in step.meetings for node in meeting]
    assert len(present) == len(set(present))
    assert set(present) <= set(results.sound)
    if step.phase in (Phase.PAIR, Phase.SUSPECTS):
        assert all(len(meeting) == 2 for meeting in step.meetings)


# --- with a clock ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Pace:
    """How long everything takes, in seconds."""

    import_s: float
    """From the start of a check worker to its first order, and torch imported."""
    solo_s: float = 2.0
    meet_s: float = 1.5
    kill_s: float = 0.3
    facts_s: float = 0.2
    timeout_s: float = 60.0
    """0: the default."""
    context_s: float = 0.0
    """To open the device in a new process."""
    communicator_s: float = 0.0
    """What the first call of every meeting takes beyond the others, on the node itself too."""

    @property
    def start_s(self) -> float:
        """Until a new check worker can measure."""
        return self.import_s + self.context_s

    @property
    def most_s(self) -> float:
        """What the master gives to all steps together."""
        return self.timeout_s or defaults.CHECK_TIMEOUT_GPUS_S


class Clock:
    """Climbs the ladder of the master at some pace.

    A node that meets a bad one hangs with it until the order's time is over. Check workers that
    hung are killed, and others have to import torch.
    """

    def __init__(self, world: World, pace: Pace, vouched: frozenset[str] = frozenset()) -> None:
        self.now = 0.0
        self.steps: list[CheckStep] = []
        self._passed_alone: set[str] = set()
        self._world = world
        self._pace = pace
        self._ladder = Ladder(CheckSpec("light", pace.timeout_s), world.nodes, sorted(vouched))
        # Nodes that have passed before hold no device: their first order starts their workers.
        self._ready = {node: pace.start_s for node in world.nodes if node not in vouched}

    def climb(self) -> Conclusion:
        """Go up to the end, as the master does."""
        while (remaining_s := self._pace.most_s - self.now) > 0:
            step = self._ladder.next_step(remaining_s)
            if step is None:
                break
            self.steps.append(step)
            assert 0 < step.limit_s <= remaining_s
            self.now = max([self._meet(step, meeting) for meeting in step.meetings])
        return self._ladder.conclude()

    def _meet(self, step: CheckStep, meeting: tuple[str, ...]) -> float:
        """Let nodes carry out an order; return when their last answer is there."""
        pace, phase = self._pace, Phase(step.phase)
        needs_s = {Phase.FACTS: pace.facts_s, Phase.SOLO: pace.solo_s}.get(phase, pace.meet_s)
        if phase in _MEETING_PHASES or meeting[0] not in self._passed_alone:
            needs_s += pace.communicator_s if phase is not Phase.FACTS else 0.0
        starts = {node: self._wait_s(node) for node in meeting if phase is not Phase.FACTS}
        done_s = max(starts.values(), default=0.0) + needs_s
        hangs = len(meeting) > 1 and bool(self._world.bad & set(meeting))
        in_time = done_s <= step.limit_s and not hangs
        took_s = done_s if in_time else step.limit_s
        for node in meeting:
            record = self._world.record(phase, meeting, node)
            if not in_time:
                record = dataclasses.replace(
                    record, failure=self._too_late(step, starts.get(node, 0.0))
                )
                self._ready[node] = self.now + took_s + pace.kill_s + pace.start_s
            elif phase is Phase.SOLO:
                self._passed_alone.add(node)
            self._ladder.answered(node, record_to_json(record), took_s)
        return self.now + took_s

    def _wait_s(self, node: str) -> float:
        ready = self._ready.setdefault(node, self.now + self._pace.start_s)
        return max(ready - self.now, 0.0)

    def _too_late(self, step: CheckStep, wait_s: float) -> str:
        stage = IMPORTING if wait_s > step.limit_s else SMALL
        needed = needed_s(Level.LIGHT, Phase(step.phase))
        return no_answer(stage, step.limit_s, step.limit_s - wait_s, needed)
