"""Whether a stack shows that its rank waits for other ranks, or is blocked otherwise.

No I/O, no clock. A rank *waits for others* if its stack contains a frame of ``torch.distributed``,
of a wrapper that communicates (DDP, FSDP) or of ft-run's own exchanges, the engine of the
backward pass, which reduces gradients, or a line that waits for earlier asynchronous work
(``work.wait()``).

With a GPU, collectives are asynchronous: a rank waits for them in the next call that needs a result
of the GPU (``.item()``, ``synchronize()``, a launch while the queue is full), even in a library.
Such a line does not distinguish a rank that waits for others from one whose own GPU hangs. Only a
call outside torch that is known to block does (``blocks``).
"""

import re

from ..protocol.stacks import Frame, RankStack

_COMMUNICATES = (
    *("torch/distributed/", "torch/nn/parallel/distributed.py", "ft_run/training/ranks.py"),
    *("ft_run/training/checkpoints/copying.py", "ft_run/training/checkpoints/replication.py"),
    *("ft_run/training/data/data_ranks.py", "ft_run/training/work_loop.py"),
)
_DEVICE = ("torch/cuda/", "torch/amp/", "ft_run/training/")
"""Library files that wait for a GPU."""
_PASSED_OVER = frozenset({"wrapper", "_fn", "decorate_context", "inner"})
"""Functions around a collective that are not shown."""
_BACKWARD = "_engine_run_backward"
_WAITS = re.compile(r"\.(wait|synchronize|item|cpu|tolist|numpy)\(|store\w*(?:\(\))?\.(get)\(")
"""In the innermost source line: it can wait in C for work in which other ranks take part."""
_BLOCKING_FILES = (
    *("selectors.py", "socket.py", "ssl.py", "subprocess.py", "multiprocessing/"),
    *("http/", "urllib/"),
)
_LOADER = "torch/utils/data/"
_BLOCKS = re.compile(
    r"\b(?:open|read|readinto|readline|readlines|recv|recv_bytes|accept|connect|communicate"
    r"|urlopen|input|flock|waitpid)\("
)
"""Not ``sleep``, ``join``, ``acquire`` and queues: the rank may wait for a file of another rank, or
for its own thread that waits for others."""


def wait_of(stack: RankStack) -> str | None:
    """Return the name of the call in which a rank waits for others; None if it does not wait."""
    for frame in stack.frames:
        is_judged = frame is stack.frames[0] and (stack.uses_gpu or not frame.is_library)
        if is_judged and (found := _WAITS.search(frame.source)):
            return found.group(1) or found.group(2)
        if not frame.is_library:
            return None
        if frame.function == _BACKWARD:
            return "backward"
        if frame.function in _PASSED_OVER:
            continue
        if _is_in(frame, _COMMUNICATES) or (stack.uses_gpu and _is_in(frame, _DEVICE)):
            return frame.function
    return None


def communicates(stack: RankStack) -> bool:
    """Return whether a rank is in a collective or exchange, not only in a wait for its GPU."""
    if not stack.uses_gpu:
        return wait_of(stack) is not None
    for frame in stack.frames:
        if not frame.is_library or frame.function == _BACKWARD:
            return False
        if _is_in(frame, _COMMUNICATES) and frame.function not in _PASSED_OVER:
            return True
    return False


def blocks(stack: RankStack) -> bool:
    """Return whether a rank is in a call outside torch that is known to block."""
    if not stack.frames or wait_of(stack) is not None:
        return False
    inner = stack.frames[0]
    if _is_in(inner, _BLOCKING_FILES) or any(_is_in(frame, (_LOADER,)) for frame in stack.frames):
        return True
    return not _is_in(inner, ("torch/",)) and bool(_BLOCKS.search(inner.source))


def _is_in(frame: Frame, files: tuple[str, ...]) -> bool:
    return frame.is_library and frame.file.startswith(files)
