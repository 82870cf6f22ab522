"""What a worker's page says of its phases."""

import mmap
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch.distributed.distributed_c10d as c10d
from ft_run.training import activity
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker import phases, start
from ft_run.training.worker.phases import Phases, find_joining, read, time_joining
from ft_run.training.worker.start import Page
from torch import distributed


class Worker:
    """A worker in this process, with a clock set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 5_000_000_000
        clock = SimpleNamespace(monotonic_ns=lambda: self.now_ns)
        monkeypatch.setattr(phases, "time", clock)
        monkeypatch.setattr(start, "time", clock)
        self.page = memoryview(mmap.mmap(-1, layout.PAGE_BYTES)).cast("Q")
        self.phases = Phases(Page(self.page))
        module: Any = ModuleType(start.NAME)
        module.enter, module.leave = self.phases.enter, self.phases.leave
        monkeypatch.setitem(sys.modules, start.NAME, module)

    def spends(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def does(self, name: str, seconds: float) -> None:
        with activity(name):
            self.spends(seconds)

    @property
    def spent(self) -> dict[str, float]:
        found = read(self.page, self.now_ns)
        assert found is not None
        return found[1]

    @property
    def idle_s(self) -> float:
        found = read(self.page, self.now_ns)
        assert found is not None
        return found[2]

    @property
    def doing(self) -> str:
        found = read(self.page, self.now_ns)
        assert found is not None
        return found[0]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_a_worker_from_its_start_to_training(worker: Worker) -> None:
    worker.spends(2.0)
    worker.does("joining", 3.0)
    worker.spends(1.0)
    worker.does("restoring", 4.0)
    worker.spends(5.0)
    assert worker.doing == "first step"
    worker.phases.stepped()
    worker.spends(10.0)
    worker.does("joining", 0.5)  # another group, later
    worker.spends(10.0)
    worker.phases.stepped()
    assert worker.doing == "training"
    assert worker.spent == {
        "importing and building": 2.0,
        "joining": 3.5,
        "restoring": 4.0,
        "first step": 1.0 + 5.0,
        "training": 20.0,
    }


def test_without_a_process_group_building_lasts_until_the_first_step(worker: Worker) -> None:
    worker.spends(2.0)
    worker.does("download", 1.0)
    worker.spends(2.0)
    worker.phases.stepped()
    assert worker.spent == {"importing and building": 4.0, "download": 1.0}


def test_of_nested_activities_the_inner_one_counts(worker: Worker) -> None:
    worker.phases.stepped()
    with activity("evaluate"):
        worker.spends(1.0)
        worker.does("saving", 2.0)
        assert worker.doing == "evaluate"
        worker.spends(4.0)
        with suppress(KeyError), activity("evaluate"):
            worker.spends(8.0)
            raise KeyError
    assert worker.doing == "training"
    assert worker.spent == {"evaluate": 13.0, "saving": 2.0}


def test_a_first_step_in_an_activity(worker: Worker) -> None:
    with activity("warm up"):
        worker.spends(1.0)
        worker.phases.stepped()
        worker.spends(1.0)
    worker.spends(3.0)
    assert worker.spent == {"warm up": 2.0, "training": 3.0}


def test_a_function_can_be_an_activity(worker: Worker) -> None:
    @activity("evaluate")
    def evaluate() -> int:
        worker.spends(2.0)
        return 7

    assert evaluate() == evaluate() == 7
    assert worker.spent == {"evaluate": 4.0}


def test_names_beyond_the_limit_are_counted_together(worker: Worker) -> None:
    for number in range(40):
        worker.does(f"évaluation {number:02}", 1.0)
        worker.does("é" * 30, 0.25)
    shown = layout.PHASES_MAX - len(phases.NAMES) - 1
    assert worker.spent == {
        **{f"évaluation {number:02}": 1.0 for number in range(shown)},
        "é" * 30: 10.0,
        "other activities": 40.0 - shown,
    }


def in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def in_child(function: Callable[[], object]) -> None:
    if (pid := os.fork()) == 0:
        function()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("elsewhere", [in_thread, in_child])
def test_other_threads_and_processes_do_not_count(
    worker: Worker, elsewhere: Callable[[Callable[[], object]], None]
) -> None:
    with activity("evaluate"):
        elsewhere(lambda: worker.phases.enter("saving"))
        worker.spends(1.0)
        elsewhere(worker.phases.leave)
        worker.spends(1.0)
    assert worker.spent == {"evaluate": 2.0}


def test_what_is_being_written_is_not_read(worker: Worker) -> None:
    worker.page[layout.CHANGES] += 1
    assert read(worker.page, worker.now_ns) is None
    Phases(Page(worker.page))  # another process, after one that was killed just then
    assert worker.doing == "importing and building"


def test_a_process_begins_without_the_time_of_the_one_before(worker: Worker) -> None:
    worker.does("evaluate", 3.0)
    Phases(Page(worker.page))
    worker.spends(1.0)
    assert worker.spent == {"importing and building": 1.0}


def test_an_end_without_a_beginning_does_nothing(worker: Worker) -> None:
    worker.phases.leave()
    worker.spends(1.0)
    assert worker.spent == {"importing and building": 1.0}


def test_a_look_before_the_current_phase_takes_nothing_from_its_sum(worker: Worker) -> None:
    worker.does("evaluate", 3.0)
    found = read(worker.page, worker.now_ns - 2_000_000_000)
    assert found == ("importing and building", {"evaluate": 3.0}, 0.0)


def test_the_training_since_the_last_step_leaves_out_activities(worker: Worker) -> None:
    def ticks() -> None:
        worker.page[layout.LAST_NS] = worker.now_ns
        worker.phases.stepped()

    ticks()
    worker.spends(1.0)
    assert worker.idle_s == 1.0
    worker.does("evaluate", 2.0)
    worker.spends(4.0)
    worker.does("evaluate", 8.0)
    with activity("saving"):
        worker.spends(16.0)
        assert worker.idle_s == 5.0
    worker.spends(32.0)
    assert worker.idle_s == 37.0
    ticks()
    worker.spends(0.5)
    assert worker.idle_s == 0.5
    with activity("evaluate"):
        worker.spends(64.0)
        ticks()  # a batch
        assert worker.idle_s == 0.0
        worker.spends(128.0)
    worker.spends(0.25)
    assert worker.idle_s == 0.25


def test_what_changes_during_the_look_is_not_read(worker: Worker) -> None:
    class Page(list[int]):
        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            if at == layout.PHASE:
                self[layout.CHANGES] += 2
            return found

    assert read(Page(worker.page), worker.now_ns) is None


def test_a_torch_without_process_groups_is_left_alone(worker: Worker) -> None:
    module = ModuleType("c10d")
    time_joining(module, worker.phases)
    assert not hasattr(module, "init_process_group")


def test_a_page_with_another_phase_than_there_are_is_not_read(worker: Worker) -> None:
    worker.page[layout.PHASE] = layout.PHASES_MAX
    assert read(worker.page, worker.now_ns) is None


def test_joining_is_timed_wherever_the_function_was_imported(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distributed.init_process_group is c10d.init_process_group

    def join(backend: str) -> str:
        """Join."""
        assert worker.doing == "joining"
        worker.spends(3.0)
        if not backend:
            raise ValueError("no backend")
        return backend

    monkeypatch.setitem(sys.modules, "blocked", None)
    for module in (c10d, distributed):
        monkeypatch.setattr(module, "init_process_group", join)
    time_joining(c10d, worker.phases)
    patched: Any = c10d.init_process_group
    assert distributed.init_process_group is patched
    assert patched is not join
    assert patched("gloo") == "gloo"
    with pytest.raises(ValueError, match="no backend"):
        patched("")
    assert worker.spent == {"joining": 6.0}
    assert worker.doing == "first step"
    assert patched.__doc__ == "Join."


def test_a_forked_process_does_not_read_the_modules_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def join() -> None:
        pass

    for module in (c10d, distributed):
        monkeypatch.setattr(module, "init_process_group", join)
    find_joining()
    monkeypatch.setattr(phases, "sys", SimpleNamespace(modules={}))
    time_joining(c10d, worker.phases)
    assert distributed.init_process_group is c10d.init_process_group is not join


def test_without_ft_run_an_activity_does_nothing() -> None:
    assert start.NAME not in sys.modules
    with activity("evaluate"):
        pass


@pytest.mark.parametrize("name", ["", "a" * 61, "é" * 31, "a\nb", "\x1b[2K"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"invalid value .* for name: expected 1 to 60 bytes"):
        activity(name)


def test_a_name_that_is_no_string_is_refused() -> None:
    unsuited: Any = 3
    with pytest.raises(TypeError, match="invalid type int of name: expected a string"):
        activity(unsuited)


def test_a_time_that_was_read_before_another_thread_switched_counts_as_none(
    worker: Worker,
) -> None:
    worker.spends(2)
    worker.does("a", 3)
    worker.spends(-1)
    worker.does("b", 1)
    assert worker.spent["a"] == 3
    assert worker.spent["b"] == 1
    assert sum(worker.spent.values()) == 6
