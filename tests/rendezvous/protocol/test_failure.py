"""What a failure says of itself, and which of several is the root cause."""

import signal
from typing import Any

import pytest
from ft_run.rendezvous.policy.postmortem import Postmortem
from ft_run.rendezvous.protocol.failure import (
    Failure,
    FailureKind,
    is_collateral,
    node_lost,
    root_cause,
    signal_name,
)
from ft_run.tests.harness.scene import worker_failure


def failure(rank: int = 0, code: int = 1, **more: Any) -> Failure:
    return worker_failure(rank, code=code, **more)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (failure(3), "rank 3 on node 3 (host-3) exited with 1"),
        (failure(3, message="ValueError: no\nmore"), "exited with 1: ValueError: no"),
        (failure(3, -9), "was killed by SIGKILL"),
        (failure(3, -99), "was killed by signal 99"),
        (failure(3, -9, out_of_memory=True), "out of memory"),
        (failure(kind=FailureKind.START, message="no such file"), "could not be started: no such"),
        (
            failure(kind=FailureKind.STUCK, message="still in D"),
            "(pid 100) cannot be killed: still in D",
        ),
        (failure(-1, -9, kind=FailureKind.STORE), "the store process on node -1 (host--1) was kil"),
        (node_lost(4, "h", "r", "its cable"), "node 4 (h) was lost: its cable"),
    ],
)
def test_summary_names_rank_node_and_reason(given, words):
    assert words in given.summary()
    assert "\n" not in given.summary()


def test_signals_have_names():
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(200) == "signal 200"


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:5",
        "torch.distributed.DistBackendError: NCCL error: ncclRemoteError",
        "RuntimeError: NCCL Async Error: unhandled system error (run with NCCL_DEBUG=INFO for",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.DistStoreError: wait timeout after 1000ms, keys: /x",
    ],
)
@pytest.mark.parametrize("where", ["message", "stderr_tail"])
def test_a_lost_connection_is_collateral(words, where):
    assert is_collateral(failure(**{where: words}))
    assert is_collateral(failure(code=-signal.SIGABRT, **{where: words}))
    assert not is_collateral(failure(code=-signal.SIGSEGV, **{where: words}))


def test_what_comes_after_the_stop_is_collateral():
    assert is_collateral(failure(after_stop=True))
    assert not is_collateral(failure(message="ValueError: loss is nan"))


def test_a_lost_node_is_never_collateral():
    assert not is_collateral(node_lost(1, "h", "", "connection reset"))


def test_root_cause_is_the_first_that_is_not_collateral():
    reset, own = failure(0, message="Connection reset by peer"), failure(1, message="ValueError")
    assert root_cause([]) is None
    assert root_cause([reset]) is reset
    assert root_cause([reset, own]) is own
    assert root_cause([own, failure(2)]) is own


def test_a_postmortem_keeps_each_failure_once():
    postmortem = Postmortem()
    for _ in range(2):
        postmortem.remember(failure(0))
        postmortem.remember(node_lost(1, "a", "", "gone"))
        postmortem.remember(node_lost(2, "b", "", "gone"))
    assert postmortem.count == 3
    assert len(postmortem.failures(16)) == 3


def test_a_postmortem_is_bounded_but_counts_all():
    postmortem = Postmortem()
    for rank in range(1000):
        postmortem.remember(failure(rank, message="Connection reset by peer" if rank < 9 else ""))
    postmortem.begin("x", counted=True)
    postmortem.conclude()
    assert postmortem.count == 1000
    assert postmortem.cause == failure(9)
    assert postmortem.failures(16)[0] == failure(9)
    assert len(postmortem.failures(16)) == 16


def test_a_regroup_has_no_cause_whatever_fails_meanwhile():
    postmortem = Postmortem()
    postmortem.begin("the world grows", counted=False)
    postmortem.remember(failure(1))
    postmortem.conclude()
    assert postmortem.cause is None
    assert postmortem.reason == "the world grows"


def test_a_worker_that_does_not_die_is_named_beside_the_root_cause():
    stuck = failure(1, kind=FailureKind.STUCK, message="uninterruptible sleep")
    for counted in (True, False):
        postmortem = Postmortem()
        postmortem.begin("the world grows", counted=counted)
        if counted:
            postmortem.remember(failure(0))
        postmortem.remember(stuck)
        postmortem.conclude()
        assert postmortem.cause == (failure(0) if counted else stuck)
        assert "cannot be killed" in postmortem.reason
