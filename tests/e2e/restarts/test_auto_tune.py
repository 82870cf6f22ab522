"""``--auto-tune on``: loaders that change while a job trains, on all ranks at the same step."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.tests.e2e.restarts import test_exact_data as exact

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

short_folder, ft = exact.short_folder, exact.ft

# ft-run with trials that take a second.
PROGRAM = """
import sys
from ft_run.launcher.tuning import trial

# Before the modules that take the numbers from it are imported.
trial.RULES = trial.Rules(
    skip_steps=2, skip_s=0.1, block_steps=5, block_s=0.2, pause_s=0.2, cost_share=1000
)
from ft_run.launcher.main import main

sys.exit(main())
"""
SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

folder, what = sys.argv[1:]
rank = int(os.environ["RANK"])


class Slow(Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, index):
        time.sleep(0.02)  # so that it is slower than a step on a busy machine, and tuned
        if get_worker_info().num_workers > 1 and what == "killed":
            os.kill(main, 9)  # its parent may be the spawner by now
        if get_worker_info().num_workers > 1 and what == "fails":
            raise MemoryError("too many processes")
        # No tensor: processes would share it through sockets with long names in this folder.
        return torch.randn(3, generator=torch.Generator().manual_seed(index)).tolist()


main = os.getpid()
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(3, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = ElasticBatches(Slow(), 4, seed=5)
loader = DataLoader(
    Slow(), batch_sampler=data, num_workers=1, persistent_workers=True, collate_fn=list
)
state = {"model": model, "optimizer": optimizer, "data": data}
checkpointer = Checkpointer(f"{folder}/checkpoints", state, checkpoint_every=None, seed=1)
log = open(f"{folder}/log-{os.getpid()}", "a", buffering=1)
for step in checkpointer.steps(int(os.environ["STEPS"])):
    for part in data.parts(loader, step):
        with part.sync(model):
            x = torch.tensor(part.batch)
            loss = nn.functional.mse_loss(nn.functional.dropout(model(x)), x.sum(1, keepdim=True))
            (loss * part.weight).backward()
    optimizer.step()
    optimizer.zero_grad()
    row = [step, rank, loader.num_workers, loader.prefetch_factor, loss.item().hex()]
    log.write(json.dumps(row) + "\\n")
dist.destroy_process_group()
"""


def start(ft: "Launcher", name: str, *options: object, what: str = "", steps: int = 150) -> Any:
    (ft.folder / name).mkdir(exist_ok=True)
    program = ft.script(PROGRAM, "ft_run_fast.py")
    return ft.start(
        *(*options, ft.script(SCRIPT, "train.py"), ft.folder / name, what),
        program=(sys.executable, str(program)),
        env={"STEPS": str(steps)},
    )


def rows(folder: Path) -> dict[int, dict[int, tuple[tuple[int, int], str]]]:
    """Return the settings and the loss of each step by rank, as they were done last."""
    found: dict[int, dict[int, tuple[tuple[int, int], str]]] = {}
    for path in sorted(folder.glob("log-*"), key=lambda path: path.stat().st_mtime):
        for line in path.read_text().splitlines():
            step, rank, processes, prefetch, loss = json.loads(line)
            found.setdefault(step, {})[rank] = (processes, prefetch), loss
    return found


def settings_of(folder: Path) -> list[tuple[int, int]]:
    """Return the settings of each step, which are the same on all ranks."""
    found = rows(folder)
    for of_ranks in found.values():
        assert len({settings for settings, _ in of_ranks.values()}) == 1
    return [next(iter(found[step].values()))[0] for step in sorted(found)]


def trials(command: "Command") -> list[str]:
    return re.findall(r"auto-tune: (\S+ \S+ -> \S+: \S+)", command.stderr)


ALONE = ("--standalone", "--nproc-per-node", 1, "--auto-tune", "on")


def test_all_ranks_change_at_the_same_step(ft: "Launcher") -> None:
    command = start(ft, "job", "--standalone", "--nproc-per-node", 2, "--auto-tune", "on")
    assert command.wait() == 0, command.stderr
    assert len(set(settings_of(ft.folder / "job"))) > 1
    assert "Tried by --auto-tune on:\n  prefetch_factor" in command.stderr


@pytest.mark.slow
def test_nodes_learn_the_same_as_without_tuning(ft: "Launcher", free_port: int) -> None:
    nodes = ("--nnodes", 2, "--nproc-per-node", 1, "--rdzv-endpoint", f"127.0.0.1:{free_port}")
    options = (*nodes, "--rdzv-id", ft.mark, "--auto-tune", "on")
    both = [start(ft, "tuned", *options) for _ in range(2)]
    for node in both:
        assert node.wait() == 0, node.stderr
    reported = [trials(node) for node in both]
    assert sorted(map(bool, reported)) == [False, True], [one.stderr for one in both]  # by rank 0
    assert max(reported)[0].startswith("num_workers 1 -> 2: ")
    plain = start(ft, "plain", "--standalone", "--nproc-per-node", 2)
    assert plain.wait() == 0, plain.stderr
    assert len(set(settings_of(ft.folder / "tuned"))) > 1
    assert set(settings_of(ft.folder / "plain")) == {(1, 2)}
    tuned, expected = rows(ft.folder / "tuned"), rows(ft.folder / "plain")
    for step, of_ranks in expected.items():
        for rank, (_, loss) in of_ranks.items():
            assert tuned[step][rank][1] == loss


@pytest.mark.slow
@pytest.mark.parametrize("what", ["killed", "fails"])
def test_a_value_at_which_workers_fail_is_rolled_back(ft: "Launcher", what: str) -> None:
    command = start(ft, "job", *ALONE, what=what, steps=150)
    assert command.wait() == 0, command.stderr  # without any restart in the budget
    assert command.stderr.count("restart (not counted, 0/0 used)") == 1
    assert "auto-tune was trying num_workers=2 prefetch_factor=2" in command.stderr
    assert "num_workers 1 -> 2: back to 1, failed: rank 0" in command.stderr
    settings = settings_of(ft.folder / "job")
    assert len(settings) == 150
    assert (1, 2) in settings
    assert all(processes == 1 for processes, _ in settings)
