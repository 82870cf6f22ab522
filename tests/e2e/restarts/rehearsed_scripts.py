"""Small training scripts with one fault each, and right ones of the same kinds."""

from typing import NamedTuple


class Script(NamedTuple):
    """A script with a fault, and what mends it."""

    before: str
    """Lines before the loop."""
    body: str
    """Lines of the body after the gradients exist; ``step`` is the number of completed steps."""
    named: str
    """What the rehearsal names: object or variable."""
    wrong: str = ""
    """Entries of the state of the script with the fault."""
    right: str = ""
    """Entries of the state of the right script."""
    right_before: str | None = None
    """Lines that replace ``before`` in the right script; None: the same."""
    right_body: str | None = None
    """Lines that replace ``body`` in the right script; None: the same."""

    def text(self, *, is_right: bool) -> str:
        """Return the whole script."""
        before, body = self.before, self.body
        if is_right and self.right_before is not None:
            before = self.right_before
        if is_right and self.right_body is not None:
            body = self.right_body
        state = self.right if is_right else self.wrong
        lines = "\n    ".join(body.strip().splitlines())
        return _FRAME.format(before=before.strip(), body=lines, state=state)


_FRAME = """
import random, time
import numpy as np
import torch
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
order, noise = list(range(64)), 0.0
{before}
state = {{"model": model, "optimizer": optimizer, {state}}}
checkpointer = Checkpointer("checkpoints", state, seed=1)
for step in checkpointer.steps(40):
    batch = inputs[order[step]] + noise
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    {body}
    optimizer.step()
"""

_AUGMENT = """
class Augment:
    def __init__(self):
        self.rng = np.random.default_rng(7)

    def __call__(self):
        return float(self.rng.normal())

    def state_dict(self):
        return self.rng.bit_generator.state

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state


augment = Augment()
"""
_CLOSURE = """
def make_rate():
    count = 0

    def rate():
        nonlocal count
        count += 1
        return 0.1 / count

    return rate


rate = make_rate()
"""
# Plain values: tensors of a loader's process need a socket with a short name in TMPDIR.
_LOADER = """
generator = torch.Generator().manual_seed(3)
loader = DataLoader(
    inputs.tolist(), 4, shuffle=True, generator=generator,
    num_workers=1, persistent_workers=True, collate_fn=list,
)


def batches():
    while True:
        yield from loader


iterator = batches()
"""
_ELASTIC = """
data = ElasticBatches(64, 4, seed=3)
loader = DataLoader(
    inputs.tolist(), batch_sampler=data, num_workers=1, persistent_workers=True, collate_fn=list
)
"""
_CALLBACK = """
class Settings:
    factor = 1.0


settings = Settings()


def on_epoch(step):
    settings.factor = 1.0 / (1 + step // 3)


on_epoch(0)
"""

SCRIPTS = {
    "scheduler": Script(
        "scheduler = StepLR(optimizer, 3, 0.5)",
        "optimizer.step()\nscheduler.step()",
        "scheduler (StepLR)",
        right='"scheduler": scheduler',
    ),
    "average of weights": Script(
        "ema = AveragedModel(model)",
        "ema.update_parameters(model)",
        "ema (AveragedModel)",
        right='"ema": ema',
    ),
    "scaler": Script(
        'scaler = torch.amp.GradScaler("cpu", growth_interval=4)',
        "scaler.scale(loss.detach())\nscaler.unscale_(optimizer)\nscaler.step(optimizer)\n"
        "scaler.update()",
        "scaler (GradScaler)",
        right='"scaler": scaler',
    ),
    "counter": Script(
        "count = 0",
        'count += 1\noptimizer.param_groups[0]["lr"] = 0.1 / count',
        "count",
        right_body='optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)',
    ),
    "generator of NumPy": Script(
        _AUGMENT,
        "noise = augment()",
        "augment.rng (Generator)",
        right='"augment": augment',
        right_body="model.bias.grad += augment()",
    ),
    "shuffle without seed": Script(
        "order = random.sample(order, 64)",
        "",
        "differs between two runs",
        right_before="order = random.Random(4).sample(order, 64)",
    ),
    "dictionary rebound": Script(
        'stats = {"sum": 0.0}',
        'stats = {**stats, "sum": stats["sum"] + loss.item()}',
        "stats",
        wrong='"stats": stats',
        right='"stats": stats',
        right_body='stats["sum"] += loss.item()',
    ),
    "list of losses": Script(
        "losses = []",
        "losses.append(loss.item())\nmean = sum(losses[-20:]) / 20",
        "losses",
        right='"losses": losses',
    ),
    "closure": Script(
        _CLOSURE,
        'optimizer.param_groups[0]["lr"] = rate()',
        "rate.count",
        right_before="def rate(step):\n    return 0.1 / (step + 1)",
        right_body='optimizer.param_groups[0]["lr"] = rate(step)',
    ),
    "persistent workers": Script(
        _LOADER,
        "model.weight.grad += torch.tensor(next(iterator)).mean(0)",
        "generator (Generator)",
        right_before=_ELASTIC,
        right_body="for part in data.parts(loader, step):\n"
        "    model.weight.grad += torch.tensor(part.batch).mean(0)",
        right='"data": data',
    ),
    "callback before the restore": Script(
        _CALLBACK,
        "if step == 1:\n    on_epoch(3)\nmodel.weight.grad *= settings.factor",
        "settings.factor",
        right_body="on_epoch(3 if step >= 1 else 0)\nmodel.weight.grad *= settings.factor",
    ),
    "clock": Script(
        "started = time.time()",
        "model.weight.grad *= 1 + time.time() % 1",
        "differs between two runs",
        right_body="elapsed = time.time() - started",
    ),
}
