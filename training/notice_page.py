"""The page in which an agent tells its workers that nodes will be gone, and how they ask for it.

The agent holds it as a file without a name. Each number is written by one aligned store of 8 bytes,
so that no half of one is read.
"""

import struct

from . import agent_socket

PAGE_BYTES = 4096

UNTIL_NS, IS_WHOLE, SAVES = range(3)
"""Where in the page, in words of 8 bytes: until when the ranks may take their time to leave one
state (CLOCK_MONOTONIC; 0: no node will be gone); 1 where all nodes of the job will be gone, so that
nothing in memory stays; 1 where that is to be written to storage then."""
MAGIC = b"ftrnotc1"
REQUEST = struct.Struct("<8sIIq")
"""What a worker says: ``MAGIC``, its rank, what it wants, and after ``LEFT`` how many steps. It is
answered with ``MAGIC`` and the page as a descriptor, after ``LEFT`` with ``MAGIC`` alone."""
ASK, KEEP, LEFT = range(3)
"""It asks for the page; it asks, and will leave the state of a step; it has left it."""


def address_of(pid: int) -> bytes:
    """Return the address at which the agent of a process id hands out the page."""
    return agent_socket.address_of("notices", pid)
