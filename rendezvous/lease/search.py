"""A node's search for its leader among the listed hosts. No I/O, no clock.

The hosts are tried in turn; a host that does not lead names the leader. The node follows the
highest term that it knows, and never a lower one: that leader has lost the lease without knowing it
yet, or the hosts were restarted and have lost their state.
"""


class Search:
    """Chooses the host that a node tries next."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self.target = 0
        """The host to try."""
        self.term = 0
        """The highest followed term."""
        self._failed = (-1, 0)
        """Host and term of the last leader that could not be reached."""
        self._led = 0
        """Term for which a host named the target as leader; 0 if it is only its turn."""

    @property
    def is_sent(self) -> bool:
        """Whether a host has named the target as the leader."""
        return self._led > 0

    def may_follow(self, term: int) -> bool:
        """Return whether to follow a leader of this term, and record it if so."""
        if term < self.term:
            self.failed()
            return False
        self.term, self._led = term, term
        return True

    def led_by(self, host: int, term: int) -> None:
        """Record that the target has named another host as the leader (negative if none)."""
        is_known = 0 <= host < self._hosts and host != self.target and term >= self.term
        if is_known and (host, term) != self._failed:
            self.target, self._led = host, term
        else:
            self.failed()  # even if another host has named it: it does not lead, or not yet

    def failed(self) -> None:
        """Record that the target could not be reached, or that its stream has ended."""
        if self._led:
            self._failed = (self.target, self._led)
        self._next()

    def _next(self) -> None:
        self.target, self._led = (self.target + 1) % self._hosts, 0
