"""``num_workers`` and ``prefetch_factor`` change between two steps, and no sample does."""

import os
import sys
from collections.abc import Callable
from multiprocessing import active_children
from types import ModuleType
from typing import Any

import pytest
import torch
from ft_run.training import ElasticBatches
from ft_run.training.data.seeded import seeded
from ft_run.training.worker import loader_settings, start
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker.loader_settings import TRIAL, pack
from torch.utils.data import DataLoader, Dataset

USERS, MORE = pack(1, 2), pack(2, 3)
Settings = Callable[[int], None]


class Noisy(Dataset[Any]):
    """Draws random numbers for each item, and returns the process that made it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, float, int]:
        return index, float(torch.rand(())), os.getpid()


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the page of a worker that is tuned."""
    words = memoryview(bytearray(4096)).cast("Q")
    words[layout.WANTED] = loader_settings.NOTHING
    hook: Any = ModuleType("_ft_run_hook")
    hook.page = start.Page(words)
    monkeypatch.setitem(sys.modules, "_ft_run_hook", hook)
    monkeypatch.setattr(loader_settings, "_agreed", 0)
    return words


def read(
    changes: dict[int, int], page: Any, *, is_persistent: bool = False
) -> tuple[list[Any], list[int], list[int]]:
    """Return what the steps read and draw, the processes of each step, and what was in effect."""
    torch.manual_seed(1)
    dataset = seeded(Noisy())
    data = ElasticBatches(dataset, 4, micro_batch=2, seed=3)
    loader = DataLoader(
        dataset, batch_sampler=data, num_workers=1, persistent_workers=is_persistent
    )
    seen: list[Any] = []
    processes, in_effect = [], []
    for step in range(data.total(1)):
        loader_settings.agree(changes.get(step, 0))
        parts = [part.batch for part in data.parts(loader, step)]
        seen.append([(index.tolist(), noise.tolist()) for index, noise, _ in parts])
        seen.append(torch.rand(2).tolist())
        processes.append(len({pid for _, _, pids in parts for pid in pids.tolist()}))
        in_effect.append(page[layout.IN_EFFECT])
    return seen, processes, in_effect


@pytest.mark.parametrize("is_persistent", [False, True])
def test_other_settings_change_no_sample_and_no_random_number(
    page: Any, *, is_persistent: bool
) -> None:
    expected, _, in_effect = read({}, page)
    assert in_effect == [USERS] * 6
    changes = {1: MORE | TRIAL, 3: USERS, 4: MORE | TRIAL, 5: MORE}
    seen, processes, in_effect = read(changes, page, is_persistent=is_persistent)
    assert seen == expected
    assert processes == [1] + [2] * 2 + [1] + [2] * 2
    assert in_effect == [USERS] + [MORE | TRIAL] * 2 + [USERS, MORE | TRIAL, MORE]
    assert page[layout.SWITCH_NS] > 0


def test_settings_that_are_accepted_begin_no_loader_anew(page: Any) -> None:
    data = ElasticBatches(Noisy(), 4)
    loader: DataLoader[Any] = DataLoader(Noisy(), batch_sampler=data, num_workers=1)
    loader_settings.agree(MORE | TRIAL)
    for step, settings in enumerate([MORE | TRIAL, MORE | TRIAL, MORE, loader_settings.NOTHING, 0]):
        loader_settings.agree(settings)
        before = {child.pid for child in active_children()}
        list(data.parts(loader, step))
        assert page[layout.IN_EFFECT] == MORE | (TRIAL if step < 2 else 0)
        assert not step or {child.pid for child in active_children()} == before
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)


def test_a_loader_without_processes_stays_as_it_is(page: Any) -> None:
    data = ElasticBatches(Noisy(), 4)
    loader: DataLoader[Any] = DataLoader(Noisy(), batch_sampler=data)
    loader_settings.agree(MORE)
    list(data.parts(loader, 0))
    assert loader.num_workers == page[layout.IN_EFFECT] == 0


def test_several_loaders_have_the_settings_of_the_script(page: Any) -> None:
    loader_settings.agree(MORE)
    pairs = []
    for processes in (1, 2):
        data = ElasticBatches(Noisy(), 4)
        pairs.append((data, DataLoader(Noisy(), batch_sampler=data, num_workers=processes)))
    (data, first), (other, second) = pairs
    list(data.parts(first, 0))
    assert first.num_workers == 2
    for step in (1, 2):
        list(other.parts(second, step))
        list(data.parts(first, step))
        assert (first.num_workers, first.prefetch_factor) == (1, 2)
        assert (second.num_workers, second.prefetch_factor) == (2, 2)
        assert page[layout.IN_EFFECT] == 0
    del other, second, pairs
    list(data.parts(first, 3))
    assert first.num_workers == 2


def test_a_worker_that_is_not_tuned_reports_nothing(page: Any) -> None:
    page[layout.WANTED] = 0
    data = ElasticBatches(Noisy(), 4)
    loader: DataLoader[Any] = DataLoader(Noisy(), batch_sampler=data, num_workers=1)
    list(data.parts(loader, 0))
    loader_settings.record_step(1, is_disturbed=True)
    assert page[layout.IN_EFFECT] == page[layout.STEP] == page[layout.DISTURBED] == 0


def test_numbers_of_settings() -> None:
    assert loader_settings.unpack(pack(12, 7) | TRIAL) == (12, 7)
    assert loader_settings.completed(pack(4, 0) | TRIAL, pack(1, 2)) == pack(4, 2) | TRIAL
    assert loader_settings.completed(pack(0, 8), pack(1, 2)) == pack(1, 8)
    assert loader_settings.unpack(pack(1 << 20, 1 << 20)) == (65535, 65535)


def test_settings_on_trial_are_shown_as_text(page: Any) -> None:
    for settings in (pack(4, 2), pack(4, 2) | TRIAL, pack(8, 3)):
        loader_settings.record(settings)
        shown = "num_workers=4 prefetch_factor=2" if settings & TRIAL else ""
        assert layout.read_text(page, layout.TRIAL_AT, layout.TRIAL_BYTES) == shown


def test_a_process_that_a_worker_forks_reports_nothing(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    loader_settings.record(5)
    loader_settings.record_start(7)
    loader_settings.record_step(9, is_disturbed=True)
    words = (layout.IN_EFFECT, layout.SWITCH_NS, layout.STEP, layout.DISTURBED)
    assert [page[word] for word in words] == [0] * 4
