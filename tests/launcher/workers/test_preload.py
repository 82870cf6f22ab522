"""``--preload auto``: what is learnt from the workers, once, and kept."""

from types import SimpleNamespace
from typing import Any

import pytest
from ft_run.events.event import Event
from ft_run.events.preload import NothingToPreload, PreloadChanged, PreloadSource, PreloadState
from ft_run.launcher.options import LaunchOptions, RendezvousOptions
from ft_run.launcher.spawner.messages import ForkServerEvent
from ft_run.launcher.workers.preload import Preload
from ft_run.launcher.workers.worker_command import WorkerCommands
from ft_run.training.worker.imported import FORKABLE, bits_of, names_of


class Node:
    """A node of two workers that have imported something by their first step."""

    def __init__(
        self,
        *imported: set[str],
        preload: tuple[str, ...] = ("auto",),
        known: tuple[str, ...] = (),
    ) -> None:
        options = LaunchOptions("a.py", RendezvousOptions(), preload=preload)
        self.orders: list[tuple[tuple[str, ...], PreloadSource]] = []
        self.events: list[Event] = []
        self.kept: list[tuple[str, ...]] = []
        starter: Any = SimpleNamespace(
            commands=WorkerCommands(options, 2, {}),
            spawner=SimpleNamespace(preload=self._preloads),
        )
        self.preload = Preload(options, starter, self.events.append, self.kept.append, known)
        watches = [
            SimpleNamespace(imported=lambda found=found: bits_of(found)) for found in imported
        ]
        self.group: Any = SimpleNamespace(
            watches=(*watches, None), assignment=SimpleNamespace(round=1, node_rank=0)
        )

    def _preloads(self, modules: Any, *_: Any, source: Any, **__: Any) -> None:
        self.orders.append((modules, source))

    def reports(self, state: PreloadState, text: str = "") -> None:
        self.preload.changed(ForkServerEvent(state, 1, text))


def test_the_names_are_bits_of_one_word() -> None:
    assert len(FORKABLE) == len(set(FORKABLE)) <= 64
    assert bits_of(()) == 0
    assert names_of(bits_of(FORKABLE)) == FORKABLE
    assert names_of(bits_of({"os", FORKABLE[-1], FORKABLE[0]})) == (FORKABLE[0], FORKABLE[-1])


def test_what_all_workers_have_imported_is_preloaded_once_and_kept_when_it_is_ready() -> None:
    node = Node({"torch", "numpy", "sklearn", "mine"}, {"torch", "numpy"}, set())
    node.preload.learn(node.group)
    node.preload.learn(node.group)
    assert node.orders == [(("numpy", "torch"), PreloadSource.WORKERS)]
    node.reports(PreloadState.LOADING)
    assert not node.kept
    node.reports(PreloadState.READY, "3 s")
    ready = PreloadChanged(
        PreloadState.READY, ("numpy", "torch"), "3 s", source=PreloadSource.WORKERS
    )
    assert node.events[-1] == ready
    node.reports(PreloadState.FAILED, "why")
    assert node.kept == [("numpy", "torch"), ()]


@pytest.mark.parametrize("imported", [({"torch"}, {"numpy"}), ({"mine"},), ()])
def test_where_nothing_is_known_one_line_says_so(imported: tuple[set[str], ...]) -> None:
    node = Node(*imported)
    for _ in range(2):
        node.preload.learn(node.group)
    assert not node.orders
    assert node.events == [NothingToPreload(1, 0)]


@pytest.mark.parametrize(
    ("preload", "known"), [(("numpy",), ()), ((), ()), (("auto",), ("numpy", "torch"))]
)
def test_nothing_is_learnt_where_it_is_known(
    preload: tuple[str, ...], known: tuple[str, ...]
) -> None:
    node = Node({"torch"}, preload=preload, known=known)
    node.preload.learn(node.group)
    assert not node.orders
    assert not node.events


def test_what_the_tune_file_has_is_forgotten_when_it_fails() -> None:
    node = Node({"torch"}, known=("numpy",))
    node.reports(PreloadState.FAILED, "why")
    assert node.events == [
        PreloadChanged(PreloadState.FAILED, ("numpy",), "why", source=PreloadSource.TUNE_FILE)
    ]
    assert node.kept == [()]


def test_what_the_user_has_named_is_not_kept() -> None:
    node = Node(preload=("numpy",))
    node.reports(PreloadState.READY, "1 s")
    assert not node.kept
