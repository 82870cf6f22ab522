"""Savers of several nodes that write one checkpoint: what is visible is whole, whoever fails."""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import fsspec
import pytest
from ft_run.launcher.saver.coordination import (
    NOT_AGREED,
    Coordination,
    IncompleteCheckpointError,
)
from ft_run.launcher.saver.order import WriteOrder, WriteResult
from ft_run.launcher.saver.writing import write
from ft_run.training.checkpoints.layout import Description, digest, packed, tag_of
from ft_run.training.checkpoints.storage_backends import open_storage
from ft_run.training.worker.snapshot_page import Destination, Entry

WHOLE = [".ft_run", ".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]


class Node:
    """A node with the shards of some of three ranks, without values."""

    def __init__(self, folder: str, *ranks: int, items: Sequence[object] = ()) -> None:
        self.folder, self.fds, self.entries = folder, [], []
        for rank in ranks:
            layout = packed(items, Description(b"meta", (digest([]),) * 3))
            self.fds.append(os.memfd_create("test"))
            os.write(self.fds[-1], f"data {rank}".encode() + layout)
            self.entries.append(Entry(0, 5, 7, 3, rank, len("data 0"), len(layout), False))
        self.written = WriteResult("not yet")

    def order(self, attempt: str = "a", *, is_last: bool = False) -> WriteOrder:
        to = Destination(self.folder, 2, True)
        return WriteOrder(to, tuple(self.entries), attempt, "job", unless_newer=is_last)

    def write(self, attempt: str = "a", timeout_s: float = 20.0, *, is_last: bool = False) -> str:
        """Write what is here; return why that has failed."""
        self.written = write(self.order(attempt, is_last=is_last), self.fds, timeout_s)
        return self.written.error

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def on_all_ranks(*nodes: Node) -> list[str]:
    """Have all nodes write; return why each has failed."""
    threads = [threading.Thread(target=node.write) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [node.written.error for node in nodes]


def names(folder: str, under: str = "") -> list[str]:
    """Return what is there, the hidden too."""
    system, root = fsspec.url_to_fs(folder)
    system.invalidate_cache()
    if not system.exists(f"{root}/{under}"):
        return []
    return sorted(path.rpartition("/")[2] for path in system.ls(f"{root}/{under}", detail=False))


@pytest.fixture(params=["folder", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield f"memory:/{tmp_path}"
        fsspec.filesystem("memory").rm(f"{tmp_path}", recursive=True)
    else:
        yield f"{'file://' if request.param == 'file' else ''}{tmp_path}/kept"


@pytest.fixture
def nodes(folder: str) -> Iterator[list[Node]]:
    """Two nodes, with one rank and with two."""
    made = [Node(folder, 0), Node(folder, 1, 2)]
    yield made
    for node in made:
        node.close()


def test_nodes_write_one_checkpoint(folder: str, nodes: list[Node]) -> None:
    assert on_all_ranks(*nodes) == ["", ""]
    assert open_storage(folder).steps() == [7]
    assert names(folder, "step-00000007") == WHOLE
    system, root = fsspec.url_to_fs(folder)
    assert [node.written.bytes for node in nodes] == [system.du(f"{root}/step-00000007"), 0]
    assert names(folder) == ["latest", "step-00000007"]
    assert [node.write("b", is_last=True) for node in nodes] == ["", ""]  # it is there
    assert [node.written.bytes for node in nodes] == [0, 0]


def test_the_reason_of_a_node_that_fails_is_told_by_all(folder: str, nodes: list[Node]) -> None:
    os.ftruncate(nodes[1].fds[1], 1)
    words = "mmap length is greater than file size"
    assert on_all_ranks(*nodes) == [words, words]
    tag = tag_of("job")
    assert names(folder) == [f".step-00000007.{tag}-a.marks"]
    open_storage(folder, tag).clean()
    assert names(folder) == []


def test_what_cannot_be_begun_leaves_an_older_one_alone(folder: str, nodes: list[Node]) -> None:
    assert on_all_ranks(*nodes) == ["", ""]
    os.ftruncate(nodes[0].fds[0], 1)
    assert nodes[0].write("b")
    assert open_storage(folder).steps() == [7]


def test_a_node_whose_first_one_fails_does_not_wait(folder: str, nodes: list[Node]) -> None:
    os.ftruncate(nodes[0].fds[0], 1)
    words = "mmap length is greater than file size"
    assert on_all_ranks(*nodes) == [words, words]
    assert open_storage(folder).steps() == []


def test_a_node_that_does_not_come_is_named(folder: str, nodes: list[Node]) -> None:
    words = f"no response from rank 1 within 0 s; check that all nodes can reach {folder}"
    assert nodes[0].write(timeout_s=0.1) == words
    assert open_storage(folder).steps() == []
    assert names(folder, "step-00000007") == []
    words = f"no response from rank 0 within 0 s; check that all nodes can reach {folder}"
    assert nodes[1].write("b", timeout_s=0.1) == words


@pytest.mark.parametrize(
    "mark", ["[]", '{"words": 5}', '{"digests": ["a"]}', '{"bytes": "9"}', "[" * 9999, "5"]
)
def test_invalid_marks_are_ignored(folder: str, nodes: list[Node], mark: str) -> None:
    storage = open_storage(folder)
    saver = Coordination(storage, nodes[0].order(), 0.1)
    saver.begin(storage.draft(7))
    saver.report_written_files({0: "a"}, 9, {})
    storage.mark(7, "a", "1", mark.encode())
    with pytest.raises(IncompleteCheckpointError, match="no response from rank 1 within 0 s"):
        saver.wait_for_others([])


def test_marks_of_another_attempt_do_not_count(folder: str, nodes: list[Node]) -> None:
    assert on_all_ranks(*nodes) == ["", ""]
    words = f"no response from rank 1 within 0 s; check that all nodes can reach {folder}"
    assert nodes[0].write("b", timeout_s=0.1) == words


def test_files_that_do_not_belong_together_are_no_checkpoint(
    folder: str, nodes: list[Node]
) -> None:
    other = Node(folder, 1, 2, items=[["another", 0, 4, ""]])
    assert on_all_ranks(nodes[0], other) == [NOT_AGREED, ""]
    assert open_storage(folder).steps() == []
    assert names(folder, "step-00000007") == []
    other.close()
