"""After which failures a node is checked again. Pure.

A script's own exception says nothing of the machine. A lost node, a signal, an error of a device
or of a collective may: then the verdict on the node where it struck is stale.
"""

import re

from ..protocol.failure import Failure, FailureKind, is_collateral, own_words

# The patterns are texts, which re compiles when a failure is first looked at, and keeps: most
# agents and masters never look at one.

# Words of CUDA, HIP, cuBLAS, NCCL and the driver for what a script cannot cause by an ordinary bug.
# An index out of range in a kernel is one (device-side assert).
_DEVICE = (
    r"(?i)CUDA error(?!: device-side assert)|cudaError(?!Assert)|HIP error|hipError|CUBLAS_STATUS"
    r"|CUDNN_STATUS|uncorrectable|\bECC error|\bXid\b|illegal memory access|launch failure"
)

# How torch, c10d, NCCL and gloo speak of a collective or a store of theirs, as seen with torch
# 2.13. A script speaks to other services too, in the same words for a connection that breaks.
_COLLECTIVE = (
    r"\bNCCL\b|\bnccl[A-Z]\w+|\bgloo/|\bGloo\b|ProcessGroup|\bDist(Backend|Network|Store)?Error\b"
    r"|TCPStore|SocketImpl|\b(recvValue|sendBytes) failed|collective operation|monitoredBarrier"
    r"|Connection closed by peer \["
)

_ASIDE = r"(?m)^([ \t]{2,}|\[[IW]\d{4} ).*$"
"""A file or a line of source in a traceback, and what torch warns of as a process ends, such as a
process group that was not destroyed."""


def may_be_the_machine(failure: Failure) -> bool:
    """Return whether a failure casts doubt on the node where it struck."""
    if failure.kind in (FailureKind.NODE_LOST, FailureKind.STUCK):
        return True
    if failure.kind is FailureKind.HANG:
        return failure.node_rank >= 0 or casts_doubt_on_all(failure)
    if failure.kind is not FailureKind.WORKER or failure.out_of_memory:
        return False
    if failure.exit_code < 0:
        return True
    said = _said(failure)
    return bool(re.search(_DEVICE, said) or re.search(_COLLECTIVE, said))


def casts_doubt_on_all(failure: Failure) -> bool:
    """Return whether a root cause is a broken collective: no node is known to have caused it."""
    if failure.kind is FailureKind.HANG:
        return failure.rank < 0  # all wait at the same place
    is_broken = failure.kind is FailureKind.WORKER and is_collateral(failure)
    return is_broken and bool(re.search(_COLLECTIVE, _said(failure)))


def _said(failure: Failure) -> str:
    """Return a worker's words about its end, but for quoted source and warnings."""
    return re.sub(_ASIDE, "", own_words(failure))
