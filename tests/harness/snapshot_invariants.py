"""What the ranks of a round resume from, as a bystander sees it who knows what each node holds."""

from collections.abc import Mapping, Sequence

from ft_run.rendezvous.protocol.drain_messages import MayLeave
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.tests.harness.simulated_agent import Agent


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
    step = resumed.step if resumed is not None else None

    def is_whole(number: int) -> bool:
        """Whether each member has its own share."""
        places = [assignments[agent.spec.incarnation] for agent in members]
        return all(
            number in agent.left
            and (agent.left[number].world_size, agent.left[number].rank_offset)
            == (place.world_size, place.rank_offset)
            for agent, place in zip(members, places, strict=True)
        )

    known = {number for agent in members if agent.line == line for number in agent.left}
    whole = [number for number in known if is_whole(number)]
    if all(agent.line == line for agent in members) and whole and step != max(whole):
        raise SnapshotError(f"I9: the state of step {max(whole)} is there, resumed is {step}")
    if step is None or resumed is None:
        return
    line = (resumed.round, resumed.formed_by)
    holders = [agent for agent in members if agent.line == line and step in agent.left]
    if not holders or len({agent.left[step].state for agent in holders}) != 1:
        raise SnapshotError(f"I9: there is no one state of step {step}")
    is_replicated = all(agent.left[step].is_replicated for agent in holders)
    if not (is_whole(step) or is_replicated):
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
    steps = {agent.steps if agent.has_drained else None for agent in alive}
    if steps - {message.step}:
        raise SnapshotError(f"I9: a node may leave with {message}, but ranks have left {steps}")
