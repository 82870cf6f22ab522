"""Lightning and transformers with a ``Checkpointer``: kills cost a step each, repeat no batch."""

import re
from pathlib import Path

import pytest
from ft_run.tests.e2e.conftest import Launcher

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SCRIPT = """
import hashlib, os, runpy, signal, sys
import torch
from ft_run.training import Checkpointer

torch.set_num_threads(1)
rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
last = dict(enumerate(map(int, sys.argv[3].split(",")))) if sys.argv[3:] else {}
made, restore = Checkpointer.__init__, Checkpointer.restore
step, wait = Checkpointer.step, Checkpointer.wait

def make(self, folder, state, **options):
    self.model = state["model"]
    made(self, folder, state, **options)

def restored(self):
    done = restore(self)
    os.write(1, f"life {life} of rank {rank} begins at {done}\\n".encode())
    return done

def deadly_step(self, number):
    if number == last.get(life) and rank == life % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    step(self, number)

def end(self):
    wait(self)
    values = b"".join(value.numpy().tobytes() for value in self.model.state_dict().values())
    os.write(1, f"rank {rank} ends with {hashlib.sha256(values).hexdigest()}\\n".encode())

Checkpointer.__init__, Checkpointer.restore = make, restored
Checkpointer.step, Checkpointer.wait = deadly_step, end
script, sys.argv = sys.argv[1], sys.argv[1:3]
runpy.run_path(script, run_name="__main__")
"""

pytestmark = [pytest.mark.slow, pytest.mark.ecosystem, pytest.mark.timeout(1200)]


def train(ft: Launcher, script: str, folder: Path, last: list[int]) -> tuple[set[str], list[int]]:
    """Train on two ranks, of which one dies before these steps are said to be done.

    Returns:
        The digests of the weights in the end, and with which steps the lives began.
    """
    deaths = [",".join(map(str, last))] if last else []
    command = ft.start(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", len(last)),
        *(ft.script(SCRIPT, "dies.py"), EXAMPLES / script, folder, *deaths),
    )
    assert command.wait() == 0, command.stderr
    begun = {
        (int(life), int(step))
        for life, step in re.findall(r"life (\d) of rank \d begins at (\d+)", command.stdout)
    }
    return (
        set(re.findall(r"rank \d ends with (\w+)", command.stdout)),
        [step for _, step in sorted(begun)],
    )


@pytest.mark.parametrize(
    ("library", "last"),
    # In the middle of an epoch, at the end of one, right after it, and the last step.
    [("lightning", [5, 33, 34, 50, 99]), ("transformers", [3, 9, 10, 20, 27])],
)
def test_no_batch_is_repeated(
    ft: Launcher, monkeypatch: pytest.MonkeyPatch, library: str, last: list[int]
) -> None:
    pytest.importorskip(library)
    monkeypatch.setattr("ft_run.tests.e2e.conftest.TIMEOUT_S", 1000.0)
    script = f"{library}_snapshots.py"
    undisturbed, _ = train(ft, script, ft.folder / "undisturbed", [])
    assert len(undisturbed) == 1
    ends, begun = train(ft, script, ft.folder / "killed", last)
    assert begun[0] == 0
    assert all(0 <= step - 1 - again <= 1 for step, again in zip(last, begun[1:], strict=True))
    assert ends == undisturbed
