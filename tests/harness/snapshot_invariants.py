"""What ranks resume from, and nodes save, as a bystander sees it who knows what each node holds."""

from collections.abc import Mapping, Sequence

from ft_run.events.master import ScaleUpCancelled, ScaleUpPrepared
from ft_run.rendezvous.protocol.drain_messages import MayLeave
from ft_run.rendezvous.protocol.messages import Assignment, Stop
from ft_run.rendezvous.protocol.offer import Saving
from ft_run.tests.harness.simulated_agent import Agent, Left, number_of


class SnapshotError(AssertionError):
    """The ranks of a round would resume from states that do not belong together."""


def check_resumption(
    assignments: Mapping[str, Assignment], agents: Sequence[Agent], line: tuple[int, str]
) -> None:
    """Check the step that a round resumes from.

    Args:
        assignments: of the round, by incarnation.
        agents: all that there are.
        line: number and master of the round before.
    """
    members = [agent for agent in agents if agent.spec.incarnation in assignments]
    said = {assignment.resumption for assignment in assignments.values()}
    if len(said) != 1:
        raise SnapshotError(f"I9: ranks resume from {said}")
    (resumed,) = said
    step = number_of(resumed) if resumed is not None else None

    def is_whole(number: int) -> bool:
        """Whether each member has its own share."""
        places = [assignments[agent.spec.incarnation] for agent in members]
        return all(
            number in agent.left
            and (agent.left[number].world_size, agent.left[number].rank_offset)
            == (place.world_size, place.rank_offset)
            for agent, place in zip(members, places, strict=True)
        )

    def is_covered(number: int) -> bool:
        """Whether the share of each rank is with some member, its own or another's."""
        size = next(iter(assignments.values())).world_size
        there: set[int] = set()
        for agent in members:
            own = [agent.left[number]] if number in agent.left else []
            if agent.line == line:
                for one in [*own, *agent.replicas.get(number, {}).values()]:
                    is_of_size = one.world_size == size
                    there.update(range(one.rank_offset, one.rank_offset + one.ranks * is_of_size))
        return there >= set(range(size))

    known = {number for agent in members if agent.line == line for number in agent.left}
    known |= {number for agent in members if agent.line == line for number in agent.replicas}
    whole = [number for number in known if is_whole(number)]
    covered = [number for number in known if is_covered(number)]
    if all(agent.line == line for agent in members) and whole and step != max(whole):
        raise SnapshotError(f"I9: the state of step {max(whole)} is there, resumed is {step}")
    if not whole and covered and (step is None or step < max(covered)):
        raise SnapshotError(f"I9: all have {max(covered)} together, resumed is {step}")
    if step is None or resumed is None:
        return
    line = (resumed.round, resumed.formed_by)
    holders = [agent for agent in members if agent.line == line]
    shares = [agent.left[step] for agent in holders if step in agent.left]
    shares += [one for agent in holders for one in agent.replicas.get(step, {}).values()]
    if len({share.state for share in shares}) != 1:
        raise SnapshotError(f"I9: there is no one state of step {step}")
    is_replicated = all(share.is_replicated for share in shares)
    if not (is_whole(step) or is_replicated or is_covered(step)):
        raise SnapshotError(f"I9: the state of step {step} is not whole")


def check_dismissal(message: MayLeave, agents: Sequence[Agent], formed_by: str) -> None:
    """Check that all ranks have left one state when a node is told that it may leave.

    Args:
        message: what it is told.
        agents: all that there are.
        formed_by: the master that formed the round.
    """
    line = (message.round, formed_by)
    alive = [a for a in agents if a.is_there and a.live == message.round and a.line == line]
    steps = {agent.saved for agent in alive}
    if steps - {message.step}:
        raise SnapshotError(f"I9: a node may leave with {message}, but ranks have left {steps}")


class GrowthWatch:
    """Sees that a round is stopped for a larger one when all ranks have saved, or time is over."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._planned: dict[tuple[str, int], float] = {}
        """By master and round: when the larger one was planned."""
        self._stopped: set[tuple[str, int]] = set()
        """By master: rounds that a node was told to stop."""

    def noted(self, event: object, master: str, number: int, now: float) -> None:
        """The master notes something, while a round runs."""
        if isinstance(event, ScaleUpPrepared):
            self._planned[master, number] = now
        elif isinstance(event, ScaleUpCancelled):
            del self._planned[master, number]

    def stopped(
        self, stop: Stop, agents: Sequence[Agent], master: str, formed_by: str, now: float
    ) -> None:
        """A node is told to stop its workers.

        Args:
            stop: what it is told.
            agents: all that there are.
            master: that says so.
            formed_by: the master that formed the round.
            now: the time.
        """
        if (master, stop.round) in self._stopped or not stop.reason.startswith("scaling up"):
            return
        self._stopped.add((master, stop.round))
        line = (stop.round, formed_by)
        alive = [a for a in agents if a.is_there and a.live == stop.round and a.line == line]
        steps = {agent.saved for agent in alive}
        planned = self._planned.get((master, stop.round))
        if planned is None:
            raise SnapshotError(f"I9: {stop}, and nobody was asked to save")
        if ", all ranks saved" in stop.reason:
            if steps - {int(stop.reason.rpartition(" ")[2])}:
                raise SnapshotError(f"I9: {stop}, but ranks have saved {steps}")
        elif "without a snapshot" in stop.reason:
            if now < planned + self._limit_s:
                raise SnapshotError(f"I9: {stop} at {now}, too early: planned at {planned}")
        elif alive and -1 not in steps:
            raise SnapshotError(f"I9: {stop}, but ranks save: {steps}")

    def looked(self, master: str, number: int, now: float) -> None:
        """After an event the round runs on."""
        planned = self._planned.get((master, number), now)
        if now >= planned + self._limit_s:
            raise SnapshotError(f"I9: at {now} a larger world than planned at {planned} is late")

    @staticmethod
    def settled(agents: Sequence[Agent]) -> None:
        """Nothing more happens by itself: no rank waits for a larger world."""
        for agent in agents:
            if agent.live is not None and agent.drain is not None and agent.drain.grows:
                raise SnapshotError(f"I9: {agent.name} waits for a larger world: {agent.drain}")


def check_savings(
    savings: Mapping[str, Saving], agents: Sequence[Agent], line: tuple[int, str]
) -> None:
    """Check what nodes are told to save of a sharded state, when the job ends without success.

    Args:
        savings: what they are told, by incarnation.
        agents: those that are told how the job ended, and have no workers.
        line: number and master of the last round.
    """
    there = {
        agent.spec.incarnation: _shares(agent) if agent.line == line else {} for agent in agents
    }
    covered = set()
    for step, size in {key for shares in there.values() for key in shares}:
        found = [shares.get((step, size), {}) for shares in there.values()]
        is_alike = any(share.is_replicated for shares in found for share in shares.values())
        if not is_alike and {n for shares in found for n in shares} >= set(range(size)):
            covered.add(step)
    if not covered:
        if savings:
            raise SnapshotError(f"I9: nothing is whole, and {savings} are to be saved")
        return
    if {number_of(saving) for saving in savings.values()} != {max(covered)}:
        raise SnapshotError(f"I9: all have {max(covered)} together, saved are {savings}")
    told = sorted(rank for saving in savings.values() for rank in saving.ranks)
    if told != list(range(len(told))):
        raise SnapshotError(f"I9: saved are the shares of {told}")
    states = set()
    for incarnation, saving in savings.items():
        shares = there[incarnation].get((number_of(saving), len(told)), {})
        if not shares.keys() >= set(saving.ranks):
            raise SnapshotError(f"I9: {incarnation} has {shares}, and is to save {saving}")
        states |= {shares[rank].state for rank in saving.ranks}
    if len(states) != 1:
        raise SnapshotError(f"I9: there is no one state of step {max(covered)}")


def _shares(agent: Agent) -> dict[tuple[int, int], dict[int, Left]]:
    """Return the shares that a node has, by step and size of the world."""
    found: dict[tuple[int, int], dict[int, Left]] = {}
    own = [(step, share) for step, share in agent.left.items()]
    of_others = [(n, one) for n, shares in agent.replicas.items() for one in shares.values()]
    for step, share in own + of_others:
        ranks = range(share.rank_offset, share.rank_offset + share.ranks)
        found.setdefault((step, share.world_size), {}).update(dict.fromkeys(ranks, share))
    return found
