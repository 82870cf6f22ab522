"""Failures after which a node is checked again.

A script's own exception does not indicate a machine fault. A lost node, a signal, an error of a
device or of a collective can: then the verdict on its node is stale.
"""

import re

from ..protocol.failure import Failure, FailureKind, is_collateral, own_words

# The patterns are strings, which re compiles and caches at the first failure: most agents and
# masters never need one.

# Errors of CUDA, HIP, cuBLAS, NCCL and the driver that no ordinary bug of a script causes. (An
# index out of range in a kernel is such a bug: device-side assert.)
_DEVICE = (
    r"(?i)CUDA error(?!: device-side assert)|cudaError(?!Assert)|HIP error|hipError|CUBLAS_STATUS"
    r"|CUDNN_STATUS|uncorrectable|\bECC error|\bXid\b|illegal memory access|launch failure"
)

# Error texts of torch, c10d, NCCL and gloo about a collective or a store, as seen with torch 2.13.
# A script uses other services too, with the same error text for a broken connection.
_COLLECTIVE = (
    r"\bNCCL\b|\bnccl[A-Z]\w+|\bgloo/|\bGloo\b|ProcessGroup|\bDist(Backend|Network|Store)?Error\b"
    r"|TCPStore|SocketImpl|\b(recvValue|sendBytes) failed|collective operation|monitoredBarrier"
    r"|Connection closed by peer \["
)

_ASIDE = r"(?m)^([ \t]{2,}|\[[IW]\d{4} ).*$"
"""A file or source line in a traceback, or a warning of torch at the end of a process, e.g. about a
process group that was not destroyed."""


def may_be_the_machine(failure: Failure) -> bool:
    """Return whether a failure casts doubt on its node."""
    if failure.kind in (FailureKind.NODE_LOST, FailureKind.STUCK):
        return True
    if failure.kind is FailureKind.HANG:
        return failure.node_rank >= 0 or casts_doubt_on_all(failure)
    if failure.kind is not FailureKind.WORKER or failure.out_of_memory:
        return False
    if failure.exit_code < 0:
        return True
    text = _error_text(failure)
    return bool(re.search(_DEVICE, text) or re.search(_COLLECTIVE, text))


def casts_doubt_on_all(failure: Failure) -> bool:
    """Return whether a root cause is a broken collective: it is unknown which node caused it."""
    if failure.kind is FailureKind.HANG:
        return failure.rank < 0  # all ranks wait at the same place
    is_broken = failure.kind is FailureKind.WORKER and is_collateral(failure)
    return is_broken and bool(re.search(_COLLECTIVE, _error_text(failure)))


def _error_text(failure: Failure) -> str:
    """Return a worker's report of its end without quoted source and warnings."""
    return re.sub(_ASIDE, "", own_words(failure))
