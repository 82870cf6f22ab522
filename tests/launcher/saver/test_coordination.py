"""Savers of several nodes that write one checkpoint: what is visible is whole, whoever fails."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import fsspec
import pytest
from ft_run.launcher.saver.coordination import NOT_AGREED
from ft_run.launcher.saver.order import Shard, WriteOrder, WriteResult
from ft_run.launcher.saver.writing import forget, write
from ft_run.training.checkpoints.layout import Description, digest, packed
from ft_run.training.checkpoints.storage import open_storage

WHOLE = [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]

# Two nodes write a checkpoint, in processes of which one dies before a call that changes or reads
# the storage, and is begun again: each time before the first one at which none has died. How often
# it looks for the other's marks depends on the moment, so a call is the same with the same file,
# from the second time on. There is an older checkpoint of that step, of more ranks. Says what is to
# be seen after each death.
DEATHS = """
import builtins, collections, contextlib, json, os, re, shutil, sys
from ft_run.launcher.saver.order import WriteOrder, Shard
from ft_run.launcher.saver.writing import forget, write
from ft_run.training.checkpoints.storage import open_storage
from ft_run.training.checkpoints.layout import Description, digest, packed

folder, victim = sys.argv[1], int(sys.argv[2])
at = os.path.join(folder.removeprefix("file://"), "step-00000005")
open_storage(folder).steps()  # what is imported for it
NAMES = ("mkdir", "fsync", "rename", "replace", "unlink", "remove", "rmdir", "open", "utime")
CALLS = {os: NAMES, shutil: ("rmtree",), builtins: ("open",)}

said = os.memfd_create("said")

def dying(known):
    times = collections.Counter()
    def watched(function):
        def call(*args, **kwargs):
            at = str(args[0])
            at = os.readlink(f"/proc/self/fd/{at}") if at.isdigit() else at
            at = re.sub(r"new-\\d+|\\.\\d+(?=\\.writing)", "", at)
            times[function.__name__, at] += 1
            moment = f"{min(2, times[function.__name__, at])}. {function.__name__} of {at}"
            if moment not in known:
                os.write(said, moment.encode())
                os.kill(os.getpid(), 9)
            return function(*args, **kwargs)
        return call
    for module, names in CALLS.items():
        for name in names:
            setattr(module, name, watched(getattr(module, name)))

def order(ranks, of, attempt, word):
    fds, shards = [], []
    for rank in ranks:
        data = f"{word} {rank}".encode()
        layout = packed([], Description(b"meta", (digest([]),) * of))
        fds.append(os.memfd_create("test"))
        os.write(fds[-1], data + layout)
        shards.append(Shard(rank, len(data), len(layout)))
    return WriteOrder(folder, 5, 2, attempt, tuple(shards), of), fds

def begin(rank, attempt, known=None):
    pid = os.fork()
    if not pid:
        if known is not None:
            dying(known)
        words = write(*order((rank,), 2, attempt, "new"), 20.0).error
        if words:
            print(words, file=sys.stderr)
        os._exit(bool(words))
    return pid

def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def visible():
    while True:  # the other one goes on meanwhile
        try:
            before = os.stat(f"{at}/.metadata")
        except FileNotFoundError:
            return {}
        with contextlib.suppress(FileNotFoundError):
            seen = {name: open(f"{at}/{name}").read() for name in sorted(os.listdir(at))}
            after = os.stat(f"{at}/.metadata")
            if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns):
                return seen

known = set()
for number in range(1000):
    assert not write(*order(range(3), 3, f"old-{number}", "old")).error
    other = begin(1 - victim, f"new-{number}")
    status = end(begin(victim, f"new-{number}", known))
    moment = os.pread(said, 10000, 0).decode()
    os.ftruncate(said, 0)
    os.lseek(said, 0, 0)
    assert bool(moment) == bool(status) and moment not in known
    known.add(moment)
    seen = visible()
    again = [end(begin(victim, f"new-{number}")) if status else 0, end(other)]
    print(json.dumps([status, seen, again, visible(), moment]), flush=True)
    forget(order((0,), 2, f"new-{number}", "new")[0])
    print(json.dumps(sorted(os.listdir(os.path.dirname(at)))), flush=True)
    if not status:
        break
"""


class Node:
    """A node with the shards of some of three ranks, without values."""

    def __init__(self, folder: str, *ranks: int, items: Sequence[object] = ()) -> None:
        self.folder, self.fds, self.shards = folder, [], []
        for rank in ranks:
            layout = packed(items, Description(b"meta", (digest([]),) * 3))
            self.fds.append(os.memfd_create("test"))
            os.write(self.fds[-1], f"data {rank}".encode() + layout)
            self.shards.append(Shard(rank, len("data 0"), len(layout)))
        self.written = WriteResult("not yet")

    def order(self, attempt: str = "a", *, is_last: bool = False) -> WriteOrder:
        return WriteOrder(self.folder, 7, 2, attempt, tuple(self.shards), 3, unless_newer=is_last)

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
    assert [node.written.bytes for node in nodes] == [len(b"meta") + 3 * len(b"data 0"), 0]
    # The marks stay until it is known that it is visible.
    assert names(folder) == [".step-00000007.a.marks", "latest", "step-00000007"]
    forget(nodes[1].order())
    assert len(names(folder)) == 3
    forget(nodes[0].order())
    assert names(folder) == ["latest", "step-00000007"]
    assert [node.write("b", is_last=True) for node in nodes] == ["", ""]  # it is there
    assert [node.written.bytes for node in nodes] == [0, 0]


def test_the_reason_of_a_node_that_fails_is_told_by_all(folder: str, nodes: list[Node]) -> None:
    os.ftruncate(nodes[1].fds[1], 1)
    words = "mmap length is greater than file size"
    assert on_all_ranks(*nodes) == [words, words]
    assert names(folder) == [".step-00000007.a.marks"]
    assert nodes[1].write() == words  # no saver that is begun again brings it back
    open_storage(folder).clean()
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


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("kind", ["", "file://"])
def test_a_saver_that_dies_at_any_moment_is_begun_again(
    tmp_path: Path, victim: int, kind: str
) -> None:
    command = (sys.executable, "-c", DEATHS, f"{kind}{tmp_path}/kept", str(victim))
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    lines = [json.loads(line) for line in child.stdout.splitlines()]

    def whole(word: str, ranks: int) -> dict[str, str]:
        files = {f"__{rank}_0.distcp": f"{word} {rank}" for rank in range(ranks)}
        return {".metadata": "meta", **files}

    moments = ""
    for status, seen, again, after, moment in lines[::2]:
        assert again == [0, 0], child.stderr
        assert seen in ({}, whole("old", 3), whole("new", 2)), moment
        assert after == whole("new", 2), moment
        assert status == (-9 if moment else 0)
        moments += f"{moment}\n"
    for destination in (rf"/\.?__{victim}_0\.distcp", rf"\.marks/\.?{victim}\b"):
        assert re.search(f"open of .*{destination}", moments)
    assert all(left == ["latest", "step-00000005"] for left in lines[1::2])
