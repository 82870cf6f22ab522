"""``shared_work`` as scripts use it."""

import re
import signal
import subprocess
import sys

import pytest
from ft_run.tests.e2e.conftest import EXAMPLES

EDGES = """
import os, sys, time
from ft_run.training import shared_work
rank = int(os.environ["RANK"])
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # in one piece
def refused(*arguments):
    try:
        for _ in shared_work(*arguments):
            return "not refused"
    except ValueError as error:
        return str(error)
def together(name):
    for _ in shared_work(name, 2):  # each rank has one
        time.sleep(0.3)
assert list(shared_work("empty", 0, 5)) == []
large = list(shared_work("large", 5, 50))
if large:
    assert large == [range(5)]
    say("large", rank)
say("again", refused("large", 5, 50))
together("sync")
sizes = refused("sizes", 10 + rank)
say("sizes", sizes)
own = 0
for piece in shared_work("left", 20):  # a piece that is left is done by some rank
    own += 1
    time.sleep(0.01)
    if own == 3:
        break
together("left both")  # else the first rank may do all the others
try:
    for piece in shared_work("left", 20):
        if own == 3:
            own = 4
            raise KeyError("a body")
        say("left", piece.start)
except KeyError:
    for piece in shared_work("left", 20):
        say("left", piece.start)
assert "torch" not in sys.modules
say("end")
"""


def test_what_loops_may_do(ft):
    command = ft.start("--standalone", "--nproc-per-node", 2, ft.script(EDGES))
    assert command.wait() == 0, command.stderr
    said = command.stdout
    assert said.count("end\n") == 2
    assert said.count("large ") == 1
    assert said.count("again invalid value 'large' for name: a loop of this process has used") == 2
    sizes = re.findall("sizes (.*)", said)
    both = "invalid size {} and grain 1 for shared_work('sizes'): expected size {} and grain 1"
    assert any(one.startswith((both.format(10, 11), both.format(11, 10))) for one in sizes), sizes
    # Each rank has done two pieces before it left the loop for the first time.
    left = [int(piece) for piece in re.findall(r"left (\d+)", said)]
    assert len(left) == len(set(left)) == 16


NAMED = """
import os, pathlib, sys, time
from ft_run.training import shared_work
done, how, rank = pathlib.Path(sys.argv[1]), sys.argv[2], os.environ["RANK"]
for _ in shared_work("sync", 2):  # each rank has one
    time.sleep(0.3)
pieces, own = shared_work("items", 12), []
if rank == "1":
    if how == "break":
        for piece in pieces:
            break
    elif how == "next":
        next(pieces)
        for piece in pieces:
            break
    elif how == "close":
        numbered = enumerate(pieces)
        next(numbered)
        pieces.close()
    while not done.exists():  # like a barrier
        time.sleep(0.05)
for piece in pieces:
    own.append(piece.start)
    time.sleep(0.05)
assert list(pieces) == []
done.touch()
sys.stdout.write(f"rank {rank} did {len(own)}\\n")
"""


@pytest.mark.parametrize(("how", "pieces"), [("break", 12), ("next", 11), ("close", 12)])
def test_a_loop_that_is_left_gives_its_piece_back_although_it_has_a_name(ft, how, pieces):
    """A second ``next`` confirms the first piece."""
    script = ft.script(NAMED)
    command = ft.start("--standalone", "--nproc-per-node", 2, script, ft.folder / "done", how)
    assert command.wait() == 0, command.stderr
    assert f"rank 0 did {pieces}" in command.stdout
    assert "rank 1 did 0" in command.stdout


POISON = """
import os, sys, time
from ft_run.training import shared_work
for piece in shared_work("w", 8, 10):
    time.sleep(0.02)
for piece in shared_work("bad", 60, 10):
    if piece.start == 30:
        if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2:
            os.kill(os.getpid(), 9)
        raise ValueError("a bad item")
    with open(sys.argv[1], "a") as file:
        file.write(f"{piece.start} ")
"""


def test_a_piece_that_fails_three_workers_is_named(ft, tmp_path):
    script = ft.script(POISON)
    done = tmp_path / "done"
    command = ft.start("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, script, done)
    assert command.wait() == 1
    assert "restart 1/2: rank" in command.stderr
    assert "was killed by SIGKILL, while doing items 30 to 39 of 'bad'" in command.stderr
    assert re.search(
        r"Root cause: rank \d on node 0 \(\S+\) exited with 1: ValueError: a bad item, while doing "
        "items 30 to 39 of 'bad', in which 3 workers have failed",
        command.stderr,
    ), command.stderr
    said = list(map(int, done.read_text().split()))
    assert len(said) == len(set(said))
    assert {0, 10, 20} <= set(said) <= {0, 10, 20, 40, 50}


HANGS = """
import os, sys, time
from ft_run.training import shared_work
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for piece in shared_work("w", 10):
    time.sleep(0.5)  # all together longer than the time-out: pieces are progress
    if is_first and piece.start == 9:
        time.sleep(1000)
    sys.stdout.write(f"did {piece.start}\\n")
"""


@pytest.mark.slow
def test_a_body_that_hangs_is_found_and_those_that_wait_for_it_are_not_blamed(ft):
    command = ft.start(
        "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--hang-timeout", 2,
        ft.script(HANGS, "hangs.py"),
    )  # fmt: skip
    assert command.wait() == 0, command.stderr
    assert re.search(
        r"restart 1/1: rank \d on node 0 \(\S+\) hangs in <module> at hangs.py:8; 1 other rank "
        r"waits for it in shared_work_piece at hangs.py:5; no step for \d+ s \(step [45]\), "
        r"while doing item 9 of 'w'",
        command.stderr,
    ), command.stderr
    assert sorted(map(int, re.findall(r"did (\d)", command.stdout))) == list(range(10))


def test_without_ft_run_pieces_are_split_by_rank(ft):
    script = ft.script(
        "from ft_run.training import shared_work\n"
        'for name in "ab":\n'
        "    print([list(piece) for piece in shared_work(name, 7, 2)])\n"
    )

    def run(environment: dict[str, str]) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout, done.stderr

    said, line = run({})
    assert said == 2 * "[[0, 1], [2, 3], [4, 5], [6]]\n"
    assert "ft-run does not run this script: the pieces of shared_work('a') are split" in line
    assert line.count("\n") == 1
    as_torchrun = {"WORLD_SIZE": "3", "RANK": "1"}
    assert run(as_torchrun) == (2 * "[[2, 3]]\n", "")


def test_the_example_is_killed_and_resumed_in_a_new_job(ft, tmp_path):
    script = EXAMPLES / "embed_digits.py"
    out = tmp_path / "out"

    def files() -> dict[str, tuple[int, bytes]]:
        return {
            path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.glob("0*.npy")
        }

    options = ("--standalone", "--nproc-per-node", 2, script, "--grain", 100, "--out", out)
    first = ft.start(*options, "--pause", 0.1)
    ft.wait_until(lambda: len(files()) > 5, "some files are there")
    first.send(signal.SIGKILL)
    first.wait()
    ft.wait_until(lambda: not ft.processes(), "the workers are dead")
    before = files()
    assert len(before) < 18
    second = ft.start(*options)
    assert second.wait() == 0, second.stderr
    after = files()
    assert {name: after[name] for name in before} == before
    assert sum(map(int, re.findall(r"embedded (\d+) pieces", second.stdout))) == 18 - len(before)
    names = [f"{first:06}.npy" for first in range(0, 1797, 100)]
    assert sorted(after) == names
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == {*names}
