"""The rules of a job: the group of its nodes, and shared work next to it. No I/O, no clock.

The group does not know shared work. Its commands report removed nodes and started rounds; this
module passes them on, like messages of nodes that are not for the group.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from ..group.events import (
    Close,
    Command,
    Detached,
    Event,
    Hung,
    NodeGone,
    Received,
    RoundBegan,
    Send,
)
from ..group.group import Group
from ..group.phases import Running
from ..protocol.messages import Attend, Failed
from ..work.messages import WorkReport
from ..work.shared_work import SharedWork


class Job:
    """One state machine, with the interface of ``Group.handle``."""

    def __init__(self, group: Group) -> None:
        self.group, self.work = group, SharedWork()
        self._nodes: dict[int, str] = {}
        """Incarnation of the node, by stream."""
        self._links: dict[str, int] = {}
        """Last stream of a node, by incarnation."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Process one event and return the commands, in order; like ``Group.handle``."""
        commands: list[Command] = []
        match event:
            case Received(link, WorkReport() as report):
                node = self._nodes.get(link, "")
                if self._links.get(node) == link:
                    self.work.reported(node, report, now)
            case _:
                event = self._noted(event)
                commands = [*self._outputs(), *self._handle(event, now)]
        return [*commands, *self._outputs()]

    def _outputs(self) -> Iterator[Command]:
        # Workers of a round that ends can outlive it on a node that is lost, with their pieces.
        is_running = isinstance(self.group.state.phase, Running)
        for output in self.work.take(grants=is_running):
            if isinstance(output, tuple):
                node, grant = output
                yield Send(self._links[node], grant)
            else:
                yield output

    def _handle(self, event: Event, now: float) -> list[Command]:
        is_member = False
        match event:
            case Received(link, Attend() as attend) if link not in self._nodes:
                node = attend.node.incarnation
                self._nodes[link], self._links[node] = node, link
                self.work.connected(node, attend.claims)
            case Detached(link):
                is_member = self.group.roster.by_link(link) is not None
        commands = self.group.handle(event, now)
        if isinstance(event, Detached):
            self._ended(event.link, is_gone=not is_member)
        for command in commands:
            match command:
                case RoundBegan(number, members):
                    self.work.round_began(number, members)
                case NodeGone(node):
                    self.work.node_gone(node)
                case Close(link):
                    self._ended(link, is_gone=True)
        return [one for one in commands if not isinstance(one, RoundBegan | NodeGone)]

    def _ended(self, link: int, *, is_gone: bool) -> None:
        """Process the end of a stream; ``is_gone`` unless its node can reconnect."""
        node = self._nodes.pop(link, None)
        if node is None or self._links.get(node) != link:
            return  # it has a newer stream
        del self._links[node]
        if is_gone:
            self.work.node_gone(node)
        else:
            self.work.disconnected(node)

    def _noted(self, event: Event) -> Event:
        match event:
            case Hung(number, failure):
                return replace(event, failure=self.work.noted(number, failure))
            case Received(link, Failed(number, failure) as failed):
                if self.group.roster.by_link(link) is not None:
                    noted = replace(failed, failure=self.work.noted(number, failure))
                    return replace(event, message=noted)
        return event
