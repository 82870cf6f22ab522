"""Shared work as a bystander sees it: a piece is confirmed once, held by one rank, never lost."""

from collections.abc import Sequence

from ft_run.rendezvous.group.events import Command, Event, Received, Send
from ft_run.rendezvous.master.job import Job
from ft_run.rendezvous.work.intervals import Intervals, pairs
from ft_run.rendezvous.work.messages import WorkClaim, WorkGrant, WorkReport
from ft_run.tests.harness.simulated_agent import Agent

LOOPS = (WorkClaim("a", 20, 2), WorkClaim("b", 7, 10))
"""What ranks share: 10 pieces, and one."""


class WorkError(AssertionError):
    """A piece was handed out twice at a time, handed out again, or lost."""


class WorkWatch:
    """What one master was told of pieces, and what it has said."""

    def __init__(self, agents: list[Agent]) -> None:
        self._agents = agents
        self.new_master()

    def new_master(self) -> None:
        """Another master knows what it is told."""
        self._known: set[tuple[str, int]] = set()

    def look(self, rules: Job, event: Event, commands: Sequence[Command]) -> None:
        """Check what the master does with an event."""
        match event:
            case Received(link, WorkReport() as report) if rules.group.roster.by_link(link):
                for claim in (report.claim, *report.others):
                    self._known |= {(claim.name, piece) for piece in _numbers(claim.confirmed)}
        for command in commands:
            if isinstance(command, Send) and isinstance(command.message, WorkGrant):
                self._granted(command.message)

    def _granted(self, grant: WorkGrant) -> None:
        again = {(grant.name, piece) for piece in _numbers(grant.pieces)} & self._known
        if again or grant.refusal:
            raise WorkError(f"{grant} has confirmed pieces: {sorted(again)}")
        done = {piece for agent in self._agents for piece in agent.did}
        lost = {(grant.name, piece) for piece in range(grant.confirmed_to)} - done
        if lost:
            raise WorkError(f"{grant} says that {sorted(lost)} are confirmed")

    def held_by_one(self) -> None:
        """Check that no two live ranks of a round have one piece."""
        holders: dict[tuple[object, str, int], str] = {}
        for agent in self._agents:
            if agent.live is None or agent.assignment is None or not agent.is_alive:
                continue
            world = (agent.live, agent.assignment.formed_by)
            for name, work in agent.work._names.items():
                for piece in _numbers(work.held()):
                    key = (world, name, piece)
                    if key in holders and agent.name != holders[key]:
                        raise WorkError(f"{holders[key]} and {agent.name} hold {key}")
                    holders[key] = agent.name
            in_hand = [(agent.loop_of[taker], piece) for taker, piece in agent.pieces.items()]
            if len(set(in_hand)) < len(in_hand):
                raise WorkError(f"two ranks of {agent.name} have one of {in_hand}")

    def ended(self, rules: Job) -> None:
        """Check that all pieces of the loops that have come to their end are confirmed."""
        for agent in self._agents:
            if agent.refusals:
                raise WorkError(f"{agent.name} gets no piece: {agent.refusals}")
            if agent.waits:
                raise WorkError(f"{agent.name} waits for ever: {agent.waits}")
            for taker in agent.is_over:
                work = rules.work.names[agent.loop_of[taker]]
                everything = {(work.claim.name, piece) for piece in range(work.claim.pieces)}
                done = {piece for one in self._agents for piece in one.did}
                if not everything <= done or not work.is_over:
                    raise WorkError(f"{everything - done} are lost")


def _numbers(bounds: Sequence[int]) -> list[int]:
    assert Intervals(bounds).bounds == sorted(set(bounds))
    return [number for low, high in pairs(bounds) for number in range(low, high)]
