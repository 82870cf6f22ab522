"""What the group has decided to say and do, in order, until its master takes it."""

from collections.abc import Iterable

from ...events.master import MasterEvent
from ..protocol.messages import MasterMessage
from .events import Close, Command, Send
from .roster import Node


class Outbox:
    """The commands that one event leads to."""

    def __init__(self) -> None:
        self._commands: list[Command] = []

    def send(self, node: Node, message: MasterMessage) -> None:
        """Send to a node; without a stream it hears of it when it is back."""
        self.send_on(node.link, message)

    def send_on(self, link: int | None, message: MasterMessage) -> None:
        """Send on a stream, if there is one."""
        if link is not None:
            self._commands.append(Send(link, message))

    def close(self, link: int | None) -> None:
        """End a stream after what was sent on it, if there is one."""
        if link is not None:
            self._commands.append(Close(link))

    def note(self, event: MasterEvent) -> None:
        """Tell it on the master's console."""
        self._commands.append(event)

    def add(self, commands: Iterable[Command]) -> None:
        """Add commands that another part has put together."""
        self._commands.extend(commands)

    def take(self) -> list[Command]:
        """Return what has come together, in order, and begin anew."""
        commands, self._commands = self._commands, []
        return commands
