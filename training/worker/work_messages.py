"""The messages between a worker that shares work and its agent."""

import struct

SOCKET = "work"
"""Socket at which an agent hands out pieces."""
MAGIC = b"ftrwork1"
OPEN = struct.Struct("<8sIQQ")
"""First message on a connection, one for each loop: ``MAGIC``, the worker's rank, the size and the
grain, then the name. It is a request for a piece."""
NAME_BYTES = 512
CONFIRM, LEAVE = b"c", b"l"
"""The body has ended: the piece is confirmed, and the next one requested; the loop was left before
that, by an exception or ``break``: the answer is ``OVER``."""
PIECE = struct.Struct("<q")
"""Answer to a request: the number of a piece, ``OVER``, or ``REFUSED`` followed by an error. It is
sent when a piece is free."""
OVER, REFUSED = -1, -2
REASON_BYTES = 2000
