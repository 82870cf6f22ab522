"""The stacks of a node, however many and deep, fit into what the master takes of one node."""

import pytest
from ft_run.launcher.stacks.collect import _short
from ft_run.rendezvous.protocol import stacks
from ft_run.rendezvous.protocol.stacks import Frame, RankStack, RankState, StackReport
from ft_run.rendezvous.transport.channel_options import MAX_FROM_NODE_BYTES
from ft_run.rendezvous.transport.codec import encode_node


@pytest.mark.parametrize("workers", [1, 8, 96, 1000])
def test_the_stacks_of_all_workers_fit_into_one_message(workers: int) -> None:
    text = "é" * stacks.TEXT_MAX
    frames = tuple(Frame(text, 10**9, text, True, text) for _ in range(stacks.FRAMES_MAX))
    most = min(stacks.STACK_MAX_BYTES, stacks.REPORT_MAX_BYTES // workers)
    own = tuple(
        RankStack(rank, 0, "h" * 64, RankState.ANSWERED, _short(frames, most), 10**9, "", 10**9)
        for rank in range(workers)
    )
    assert len(encode_node(StackReport(1, own))) < MAX_FROM_NODE_BYTES
