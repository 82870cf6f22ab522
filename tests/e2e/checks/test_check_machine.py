"""Checks on machines that show GPUs, or little room: in mount namespaces, which leave nothing."""

import _ctypes
import json
import os

import pytest

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount"),
]

# Two GPUs' device files, and a /dev/shm without a limit.
GPU_MACHINE = """
mkdir {dev} && mount -t tmpfs none {dev} && cd {dev} && mkdir shm
for name in null zero full random urandom tty; do
    : > $name; mount --bind /dev/$name $name
done
ln -s /proc/self/fd fd; : > nvidia0; : > nvidia1
mount -t tmpfs -o size=0 none shm && mount --rbind {dev} /dev && cd /
"""

# A driver's library: its second GPU has lost data.
NVML = """
class Memory:
    total, used = 80 << 30, 1 << 30

class NVMLError(Exception):
    pass

def nvmlInit(): ...
def nvmlShutdown(): ...
def nvmlSystemGetDriverVersion(): return "570.86.15"
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(gpu): return "NVIDIA H100 80GB HBM3"
def nvmlDeviceGetMemoryInfo(gpu): return Memory
def nvmlDeviceGetUUID(gpu): return f"GPU-{gpu}"
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return 3 * gpu
"""


def after(ft, prepare):
    """Return ft-run after some shell commands, in a mount namespace that ends with it."""
    return ("unshare", "--mount", "sh", "-ec", f'{prepare}\nexec "$@"', "sh", *ft.program)


@pytest.fixture
def gpu_machine(ft):
    return after(ft, GPU_MACHINE.format(dev=ft.folder / "dev"))


def test_gpus_that_were_asked_for_are_not_replaced_by_cpus(ft, gpu_machine):
    command = ft.run("check", "--nproc-per-node", "gpu", "--json", program=gpu_machine)
    assert command.process.returncode == 30
    (node,) = json.loads(command.stdout)["nodes"]
    assert node["facts"]["local_world_size"] == 2
    assert node["reason"] == (
        "solo: local rank 0: opening the device: --nproc-per-node=gpu requires GPUs, but this "
        "torch was built without GPU support (--accelerator=cpu checks CPUs)"
    )
    assert node["remarks"] == []


def test_gpus_that_no_option_asked_for_and_room_without_a_limit(ft, gpu_machine):
    command = ft.run("check", "--json", program=gpu_machine)
    (found,) = json.loads(command.stdout)["nodes"]
    assert found["verdict"] == "passed"
    shown = "device files /dev/nvidia* (without NVML): 2"
    assert found["remarks"] == [
        f"GPUs found ({shown}), but this torch was not built for them: checking CPUs"
    ]
    assert "dev_shm_free_gb" not in found["facts"]


def test_facts_are_of_all_gpus_where_each_worker_sees_one(ft, gpu_machine):
    folder = ft.script(NVML, "pynvml.py").parent
    # Any library stands in for the driver's: it is loaded to see that it is there.
    (folder / "libnvidia-ml.so.1").symlink_to(_ctypes.__file__)
    args = ("check", "--nproc-per-node", 2, "--virtual-local-rank", "--json")
    env = {"PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(folder)}
    command = ft.run(*args, program=gpu_machine, env=env)
    assert command.process.returncode == 30
    (node,) = json.loads(command.stdout)["nodes"]
    assert node["facts"]["gpus"] == 2
    assert node["reason"] == (
        "system information: GPU 1 has 3 uncorrected memory errors since the driver was loaded"
    )


def test_a_full_disk_is_found_before_torch_is_needed(ft):
    disk = ft.folder / "disk"
    disk.mkdir()
    fill = f"mount -t tmpfs -o size=64k none {disk}; cat /dev/zero > {disk}/fill 2>/dev/null || :"
    program = after(ft, fill)
    command = ft.run("check", "--log-dir", disk, "--json", program=program)
    assert command.process.returncode == 30
    (node,) = json.loads(command.stdout)["nodes"]
    assert node["reason"] == "system information: the disk of the log directory is full"
    assert node["metrics"] == {}
