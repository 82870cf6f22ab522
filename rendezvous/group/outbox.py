"""Commands of the group, in order, until its master takes them."""

from collections.abc import Iterable

from ...events.master import MasterEvent
from ..protocol.messages import MasterMessage
from .events import Close, Command, Send
from .roster import Node


class Outbox:
    """The commands that result from one event."""

    def __init__(self) -> None:
        self._commands: list[Command] = []

    def send(self, node: Node, message: MasterMessage) -> None:
        """Send to a node; a node without a stream gets the state when it reconnects."""
        self.send_on(node.link, message)

    def send_on(self, link: int | None, message: MasterMessage) -> None:
        """Send on a stream, if there is one."""
        if link is not None:
            self._commands.append(Send(link, message))

    def close(self, link: int | None) -> None:
        """End a stream after delivering pending messages, if there is one."""
        if link is not None:
            self._commands.append(Close(link))

    def note(self, event: MasterEvent) -> None:
        """Show an event on the master's console."""
        self._commands.append(event)

    def add(self, commands: Iterable[Command]) -> None:
        """Add commands of another part."""
        self._commands.extend(commands)

    def take(self) -> list[Command]:
        """Remove and return all commands, in order."""
        commands, self._commands = self._commands, []
        return commands
