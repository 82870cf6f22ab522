"""A job whose script waits at given steps for a number of nodes: kills some, or starts more."""

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command


def run_resized(sizes: Sequence[tuple[int, int]], start: Callable[[], "Command"]) -> None:
    """Run a job of one rank on each node until all nodes exit with 0.

    A rank at a step for which the world has another size prints ``rank R of N waits at STEP``.

    Args:
        sizes: the step from which on the job has a number of nodes, and that number, in order. The
            first step is 0.
        start: starts a node; the first one hosts the master and is never killed.
    """
    nodes: list[Command] = []
    for step, size in sizes:
        for node in nodes:
            node.expect(rf"rank \d of {len(nodes)} waits at {step}$")
        while len(nodes) > size:
            nodes.pop().send(signal.SIGKILL)
        while len(nodes) < size:
            nodes.append(start())
            if len(nodes) == 1:
                nodes[0].expect("hosted here")
    assert [node.wait() for node in nodes] == [0] * len(nodes), nodes[0].stderr
