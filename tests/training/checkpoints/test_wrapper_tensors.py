"""Tensors without storage, as in the state of 8-bit optimizers, and torch's default device."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, torch
from torch import nn
from torch.utils._pytree import tree_map
from ft_run.training import Checkpointer

way, folder, total = sys.argv[1], sys.argv[2], int(sys.argv[3])

class Packed(torch.Tensor):
    "Numbers of eight bits, and their scale."
    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    if way == "composed":
        def __tensor_flatten__(self):
            return ["codes", "scale"], {"bits": 8}

        @classmethod
        def __tensor_unflatten__(cls, parts, about, size, stride):
            assert about == {"bits": 8}
            return cls(parts["codes"], parts["scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def plain(x):
            return x.codes.float() * x.scale if isinstance(x, Packed) else x

        if function is torch.ops.aten.detach.default:
            return args[0]
        if function is torch.ops.aten.clone.default:
            return Packed(args[0].codes.clone(), args[0].scale.clone())
        if function is torch.ops.aten.copy_.default and isinstance(args[0], Packed):
            given = plain(args[1])
            args[0].scale.copy_(given.abs().max() / 127 + 1e-12)
            args[0].codes.copy_((given / args[0].scale).round())
            return args[0]
        return function(*tree_map(plain, args), **tree_map(plain, kwargs or {}))

class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p not in self.state:
                    self.state[p]["m"] = Packed(p.grad.new_zeros(p.shape, dtype=torch.int8),
                                                p.grad.new_ones(()))
                m = torch.add(self.state[p]["m"], p.grad)
                self.state[p]["m"].copy_(m)
                p.add_(m, alpha=-group["lr"])

torch.manual_seed(0)
model, x = nn.Linear(3, 2), torch.ones(2, 3)
if way == "device":
    torch.set_default_device("meta")
optimizer = (torch.optim.Adam if way == "device" else Momentum)(model.parameters())
state = {"model": model, "optimizer": optimizer}
checkpointer = Checkpointer(folder, state, checkpoint_every=2, position="step")
for step in checkpointer.steps(total):
    model.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()
for p, of in optimizer.state.items():
    m = of["exp_avg"] if way == "device" else of["m"].codes
    print(p.detach().numpy().tobytes().hex(), m.numpy().tobytes().hex())
"""


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", ["composed", "device"])
def test_state_returns(way: str, tmp_path: Path) -> None:
    expected = run(way, tmp_path / "undisturbed", 6)
    assert expected.returncode == 0, expected.stderr
    assert run(way, tmp_path / "resumed", 4).returncode == 0
    resumed = run(way, tmp_path / "resumed", 6)
    assert "resuming from the checkpoint of step 4" in resumed.stderr
    assert resumed.stdout == expected.stdout


def test_checkpoint_with_an_unknown_class_is_not_damaged(tmp_path: Path) -> None:
    assert run("unknown", tmp_path, 4).returncode == 0
    ended = run("unknown", tmp_path, 6)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        f"RuntimeError: checkpoint {tmp_path}/step-00000004 cannot be loaded: torch does not load "
        "tensors of class __main__.Packed: expected a call of torch.serialization.add_safe_globals "
        "with it before Checkpointer"
    )
    assert (tmp_path / "step-00000004").is_dir()
