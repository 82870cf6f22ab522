"""A world of nodes, links and faults for the ladder: what each meeting would measure."""

from dataclasses import dataclass

from ft_run.checks.plan import plan
from ft_run.checks.records import Metrics, Phase, Record
from ft_run.checks.results import Answered, Results, Rules, Step
from ft_run.checks.verdict import Verdicts, verdict

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
    """They work alone and fail with everybody."""
    bad_links: frozenset[frozenset[str]] = frozenset()
    slow_compute: frozenset[str] = frozenset()
    slow_network: frozenset[str] = frozenset()
    deaf_in_all: bool = False
    """All together fail, whoever they are."""

    def record(self, phase: Phase, meeting: tuple[str, ...], node: str) -> Record:
        """What a node answers."""
        partners = tuple(name for name in meeting if name != node)
        return Record(
            node,
            phase,
            partners,
            self._failure(phase, meeting, node),
            self._metrics(phase, meeting),
        )

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
            return Metrics(compute_tflops=1.0 / SLOW if slow else 1.0, memory_gb_per_s=10.0)
        if phase in _MEETING_PHASES:
            slow = bool(self.slow_network & set(meeting))
            return Metrics(latency_us=50.0, bandwidth_gb_per_s=1.0 / SLOW if slow else 1.0)
        return Metrics()


def climb(
    world: World,
    *,
    vouched: frozenset[str] = frozenset(),
    rules: Rules | None = None,
    lost: dict[int, str] | None = None,
) -> tuple[Verdicts, Results]:
    """Go up the ladder to its end.

    Args:
        world: what there is to find.
        vouched: who has passed before.
        rules: by what is judged.
        lost: the node that is lost during the step of a number, from 0.
    """
    results = Results(world.nodes, vouched, rules=rules or Rules())
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
        )
    return verdict(results), results


def _is_possible(step: Step, results: Results) -> None:
    """Nobody meets two others at once, nobody who is gone or has failed alone meets anybody."""
    everybody = [node for meeting in step.meetings for node in meeting]
    assert len(everybody) == len(set(everybody))
    assert set(everybody) <= set(results.sound)
    if step.phase in (Phase.PAIR, Phase.SUSPECTS):
        assert all(len(meeting) == 2 for meeting in step.meetings)
