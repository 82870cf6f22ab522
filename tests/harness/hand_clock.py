"""An event loop whose time the test moves."""

import asyncio
import selectors


class HandClock(asyncio.SelectorEventLoop):
    """An event loop that is at the time that the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(selectors.SelectSelector())

    def time(self) -> float:
        return self.now

    def pass_to(self, now: float) -> None:
        """Let the time pass, and what was due then be done."""
        self.now = now
        self.run_until_complete(asyncio.sleep(0))
        self.run_until_complete(asyncio.sleep(0))
