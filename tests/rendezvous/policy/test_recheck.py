"""After which failures a node, or every node, is checked again."""

from typing import Any

import pytest
from ft_run.rendezvous.policy.recheck import casts_doubt_on_all, may_be_the_machine
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.tests.harness.scene import worker_failure

BROKEN_COLLECTIVE = (
    "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    " [10.0.0.2]:5. This is typically caused by a remote worker crashing."
)

BROKEN_SERVICES = (
    "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='wandb', port=443): Max retries"
    " exceeded: Connection refused",
    "EOFError: Compressed file ended before the end-of-stream marker was reached",
    "TimeoutError: [Errno 110] Connection timed out",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "RuntimeError: DataLoader timed out after 5 seconds",
)


@pytest.mark.parametrize(
    ("failure", "doubtful"),
    [
        (worker_failure(0, message="ValueError: x"), False),
        (worker_failure(0, code=-9), True),
        (worker_failure(0, code=-9, out_of_memory=True), False),
        (worker_failure(0, message="RuntimeError: CUDA error: unspecified launch failure"), True),
        (worker_failure(0, message="RuntimeError: CUDA error: device-side assert trigg"), False),
        (worker_failure(0, stderr_tail="NCCL error: unhandled system error"), True),
        (worker_failure(0, message="RuntimeError: Connection closed by peer [10.0.0.2]"), True),
        *((worker_failure(0, message=words), False) for words in BROKEN_SERVICES),
        (worker_failure(0, kind=FailureKind.NODE_LOST), True),
        (worker_failure(0, kind=FailureKind.STUCK), True),
        (worker_failure(0, kind=FailureKind.START), False),
        (worker_failure(0, kind=FailureKind.PREEMPTED), False),
        (worker_failure(0, kind=FailureKind.HANG), True),
        (worker_failure(0, kind=FailureKind.HANG, node_rank=-1), False),  # a mismatch
        (worker_failure(-1, kind=FailureKind.HANG), True),
    ],
)
def test_which_failures_cast_doubt(failure: Failure, doubtful: bool):
    assert may_be_the_machine(failure) is doubtful


@pytest.mark.parametrize(
    "words",
    [
        BROKEN_COLLECTIVE,
        "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:39853: Connection"
        " reset by peer",
        "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 9ms for recv",
        "torch.distributed.DistNetworkError: Broken pipe",
        "torch.distributed.DistStoreError: wait timeout after 1000ms, keys: /x",
        "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there"
        " was a network error, NCCL version 2.28\nncclRemoteError: A call failed",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
    ],
)
@pytest.mark.parametrize("where", ["message", "stderr_tail"])
def test_no_node_is_known_to_have_broken_a_collective(words: str, where: str):
    said: dict[str, Any] = {where: words}
    assert casts_doubt_on_all(worker_failure(0, **said))
    assert may_be_the_machine(worker_failure(0, **said))


def test_where_all_wait_at_the_same_place_every_node_is_doubted():
    assert casts_doubt_on_all(worker_failure(-1, kind=FailureKind.HANG))
    assert not casts_doubt_on_all(worker_failure(0, kind=FailureKind.HANG, node_rank=-1))


@pytest.mark.parametrize("end", ["ValueError: no", "ConnectionRefusedError: [Errno 111] refused"])
def test_source_and_warnings_of_torch_are_no_words_of_a_collective(end: str):
    """What a script that uses NCCL leaves behind, whatever it dies of."""
    tail = "\n".join(
        (
            "Traceback (most recent call last):",
            '  File "/opt/gloo/train.py", line 3, in <module>',
            '    connect("NCCL", ProcessGroup, "timed out")',
            end,
        )
    )
    tail += "\n[W1122 03:34:25.12 ProcessGroupNCCL.cpp:1553] Warning: WARNING: no destroy"
    failure = worker_failure(0, message=tail.splitlines()[-1], stderr_tail=tail)
    assert not may_be_the_machine(failure)
    assert not casts_doubt_on_all(failure)
