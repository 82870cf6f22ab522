"""A node's search for its leader among the listed hosts. Pure.

The hosts are tried in turn; one that does not lead says which one does. The node follows the
highest term that it has seen, and never goes back to a lower one: what leads there has lost its
lease and does not know it yet, or the hosts have forgotten what they knew.
"""


class Search:
    """Which host a node tries next."""

    def __init__(self, hosts: int) -> None:
        """Begin with the first of so many hosts."""
        self._hosts = hosts
        self.target = 0
        """The host to try."""
        self.term = 0
        """The highest term that was followed."""
        self._failed = (-1, 0)
        """The leader, by host and term, that could not be reached last."""
        self._led = 0
        """The term of the leader that the target is said to be; 0: it is only its turn."""

    @property
    def is_sent(self) -> bool:
        """Whether a host has said that the target leads."""
        return self._led > 0

    def may_follow(self, term: int) -> bool:
        """Return whether a leader of that term is followed; it is from now on."""
        if term < self.term:
            self.failed()
            return False
        self.term, self._led = term, term
        return True

    def led_by(self, host: int, term: int) -> None:
        """The target does not lead: it has named the host that does, or none (a negative one)."""
        is_known = 0 <= host < self._hosts and host != self.target and term >= self.term
        if is_known and (host, term) != self._failed:
            self.target, self._led = host, term
        else:
            self.failed()  # also where a host has said that it leads: that is not so, or not yet

    def failed(self) -> None:
        """The target could not be reached, or its stream has ended."""
        if self._led:
            self._failed = (self.target, self._led)
        self._next()

    def _next(self) -> None:
        self.target, self._led = (self.target + 1) % self._hosts, 0
