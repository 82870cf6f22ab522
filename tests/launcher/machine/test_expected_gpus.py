"""Which GPUs a check has to find."""

import pytest
from ft_run.launcher.machine import accelerators
from ft_run.launcher.machine.accelerators import gpus_asked_by, shown_gpus


@pytest.mark.parametrize(
    ("nproc_per_node", "accelerator", "option"),
    [
        ("gpu", "auto", "--nproc-per-node=gpu"),
        ("gpu", "nvidia.com/gpu", "--accelerator=nvidia.com/gpu"),
        ("8", "amd.com/gpu", "--accelerator=amd.com/gpu"),
        ("8", "auto", ""),
        ("auto", "auto", ""),
        ("8", "ascend-npu", ""),
        ("gpu", "cpu", ""),
    ],
)
def test_which_option_asks_for_gpus(nproc_per_node, accelerator, option):
    assert gpus_asked_by(nproc_per_node, accelerator) == option


@pytest.fixture
def root(tmp_path):
    """A machine with two NVIDIA GPUs and no library of the driver."""
    (tmp_path / "dev").mkdir()
    for index in range(2):
        (tmp_path / f"dev/nvidia{index}").touch()
    return tmp_path


def test_gpus_that_the_machine_shows(root, monkeypatch):
    monkeypatch.setattr(accelerators, "has_library", lambda: False)

    def shown(accelerator="auto", **environ):
        return shown_gpus(accelerator, environ, root=root)

    files = "device files /dev/nvidia* (without NVML): 2"
    assert shown() == {"nvidia.com/gpu": files}
    assert shown(CUDA_VISIBLE_DEVICES="1") == {"nvidia.com/gpu": f"{files}, CUDA_VISIBLE_DEVICES=1"}
    assert shown(CUDA_VISIBLE_DEVICES="") == {}
    for accelerator in ("cpu", "ascend-npu", "nvidia.com/gpu"):
        assert shown(accelerator) == {}
