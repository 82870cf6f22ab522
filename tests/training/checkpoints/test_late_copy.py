"""Copies that go on while training does: what changes meanwhile is noticed, optimizers wait."""

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import pytest
import torch
from ft_run.training.checkpoints import copying
from ft_run.training.checkpoints.copying import Background, LateCopy
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

Change = Callable[[torch.Tensor], object]


def tensors() -> list[torch.Tensor]:
    """Return large ones of several kinds, and small ones."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(300, 1000))
    return [
        weight.detach(),  # as a state dict has it: torch counts for both
        torch.randn(8, 16, 50, 50).to(memory_format=torch.channels_last),
        torch.full((500_000,), float("nan")),
        torch.randn(1, 400_000, dtype=torch.float64).t(),
        torch.randint(0, 9, (70_000, 2, 2)),
        torch.ones(400_000, dtype=torch.bool),
        torch.randn(300_000).to(torch.complex64),
        torch.randn(3),
        torch.tensor(2.0),
    ]


def begun(sources: list[torch.Tensor]) -> tuple[LateCopy, list[torch.Tensor]]:
    targets = [torch.zeros(source.shape, dtype=source.dtype) for source in sources]
    return LateCopy(list(zip(targets, sources, strict=True))), targets


def test_a_copy_is_of_the_moment_when_it_began() -> None:
    sources = tensors()
    copy, targets = begun(sources)
    expected = [source.clone() for source in sources]
    assert copy.run()
    for source in sources:
        source.zero_()
    for target, one in zip(targets, expected, strict=True):
        assert torch.equal(target.nan_to_num(7), one.nan_to_num(7))


@pytest.mark.parametrize("index", range(len(tensors())))
def test_what_torch_counts_is_noticed(index: int) -> None:
    sources = tensors()
    copy, _ = begun(sources)
    with torch.no_grad():
        sources[index].view(-1)[-1:].zero_() if index not in (1,) else sources[index][-1].zero_()
    assert not copy.run()


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.data.mul_(2),
        lambda tensor: tensor.data.copy_(torch.randn(tensor.shape)),
        lambda tensor: tensor.data.clamp_(-0.1, 0.1),
        lambda tensor: tensor.detach().numpy().__iadd__(1),
    ],
)
@pytest.mark.parametrize("index", [0, 1, 3])
def test_what_torch_does_not_count_is_noticed(change: Change, index: int) -> None:
    sources = tensors()
    copy, _ = begun(sources)
    version = sources[index]._version
    change(sources[index])
    assert sources[index]._version == version
    assert not copy.run()


def test_what_was_swapped_and_put_back_in_the_middle_is_noticed() -> None:
    # Weights that an evaluation exchanges: in the end all is as it was, but the copy is not.
    sources = tensors()[:1]
    copy, _ = begun(sources)
    mine = sources[0].clone()
    copied_at_once = torch._foreach_copy_

    def copy_of_others(to: list[torch.Tensor], given: list[torch.Tensor], **how: bool) -> None:
        if to is copy._targets:
            sources[0].data.zero_()
        copied_at_once(to, given, **how)
        if to is copy._targets:
            sources[0].data.copy_(mine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", copy_of_others)
        assert not copy.run()


def test_what_may_be_copied_late() -> None:
    large, small = torch.ones(100_000), torch.ones(100)
    assert copying.copy_source(large, is_left_alone=True) is large
    assert copying.copy_source(large, is_left_alone=False) is None
    assert copying.copy_source(small, is_left_alone=True) is None
    with torch.inference_mode():
        assert copying.copy_source(torch.ones(100_000), is_left_alone=True) is None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_an_optimizer_waits_and_a_fork_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    background, may_end = Background(), threading.Event()
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones(1)
    seen: list[float] = []

    def action() -> None:
        assert may_end.wait(60)
        seen.append(parameter.item())

    background.begin(action)
    child = os.fork()
    if not child:
        optimizer.step()
        os._exit(int(parameter.item()))
    assert os.waitpid(child, 0)[1] == 0

    def comes_to_it(last: Any) -> None:
        may_end.set()
        wait(last)

    monkeypatch.setattr("ft_run.training.checkpoints.copying.wait", comes_to_it)
    optimizer.step()
    assert (seen, parameter.item()) == ([1.0], 0.0)
    background.begin(lambda: seen.append(1 // 0))
    background.wait()
    assert isinstance(background.error, ZeroDivisionError)
    background.begin(lambda: seen.append(2.0))
    background.wait()
    assert seen[1:] == [2.0]
    assert background.error is None


def test_nothing_is_left_of_one_that_is_not_used_any_more() -> None:
    """As soon as it has been waited for."""
    before = (len(hooks), set(threading.enumerate()))
    background, state = Background(), torch.ones(1)
    background.begin(state.zero_)
    background.wait()
    left = weakref.ref(state)
    del state
    assert left() is None
    (thread,) = set(threading.enumerate()) - before[1]
    assert len(hooks) == before[0] + 1
    del background
    thread.join(60)
    assert (len(hooks), thread.is_alive()) == (before[0], False)


SCRIPT = """
import torch
from ft_run.training.checkpoints.copying import Background, LateCopy
background = Background()
copies = [(torch.empty(20_000_000), torch.ones(20_000_000))]
copy = LateCopy(copies)
background.begin(lambda: print("whole", copy.run()))
"""


def test_a_process_that_ends_waits_for_its_copy() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole True\n", "")


def test_a_sample_is_a_few_values_everywhere() -> None:
    for tensor in tensors()[:-2]:
        (sample,) = copying._sampled([tensor])
        assert 1 <= sample.numel() <= tensor.nbytes // copying._SAMPLE_EVERY_BYTES + 1
