"""After which failures a node is checked again. Pure.

A script's own exception says nothing of the machine. A lost node, a signal, an error of a device
or of a collective may: then the verdict on the node where it struck is stale.
"""

import re

from .failure import Failure, FailureKind, is_collateral

# Words of CUDA, HIP, cuBLAS, NCCL and gloo for what a script cannot cause by an ordinary bug.
_DEVICE = re.compile(
    r"CUDA error|cudaError|HIP error|hipError|CUBLAS_STATUS|CUDNN_STATUS|uncorrectable|\bECC\b"
    r"|\bXid\b|illegal memory access|launch failure|ncclInternalError|ncclUnhandledCudaError"
    r"|NCCL error|Watchdog caught collective|collective operation timeout",
    re.IGNORECASE,
)


def may_be_the_machine(failure: Failure) -> bool:
    """Return whether a failure casts doubt on the node where it struck."""
    if failure.kind in (FailureKind.NODE_LOST, FailureKind.STUCK):
        return True
    if failure.kind is not FailureKind.WORKER or failure.out_of_memory:
        return False
    if failure.exit_code < 0:
        return True
    words = failure.message + failure.stderr_tail
    return bool(_DEVICE.search(words)) or casts_doubt_on_all(failure)


def casts_doubt_on_all(failure: Failure) -> bool:
    """Return whether a root cause is a broken connection, which nobody is known to have caused."""
    return failure.kind is FailureKind.WORKER and is_collateral(failure)
