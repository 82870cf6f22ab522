"""Facts from trees of /proc, /sys and /dev; the machine's own where nothing can be injected."""

import os
import subprocess
import sys

import pytest
from ft_run.checks import facts as facts_module
from ft_run.checks.facts import collect_facts, collect_xids
from ft_run.checks.worker_config import CheckWorkerConfig
from ft_run.launcher.version import VERSION


@pytest.fixture
def root(tmp_path):
    """A machine with 8 GiB of memory and two InfiniBand ports."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:        8388608 kB\nMemFree: 1 kB\n")
    (tmp_path / "dev/shm").mkdir(parents=True)
    for port, state in ((1, "4: ACTIVE"), (2, "1: DOWN")):
        folder = tmp_path / f"sys/class/infiniband/mlx5_0/ports/{port}"
        folder.mkdir(parents=True)
        (folder / "state").write_text(state + "\n")
        (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
    return tmp_path


def collect(root, **config):
    return collect_facts(CheckWorkerConfig("n0", **config), {}, root=root, nvml=lambda: None)


def test_a_port_is_compared_with_those_of_its_board(root):
    for device, board, rate, errors in (
        ("mlx5_1", "MT_0000000838", 400, 0),
        ("mlx5_2", "MT_0000000838", 200, 2),
        ("mlx5_3", "MT_0000000359", 100, 0),
    ):
        port = root / f"sys/class/infiniband/{device}/ports/1"
        (port / "counters").mkdir(parents=True)
        (port.parents[1] / "board_id").write_text(board + "\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text(f"{rate} Gb/sec (4X NDR)\n")
        (port / "counters/port_rcv_errors").write_text(f"{errors}\n")
        (port / "counters/link_downed").write_text("1\n")
    facts = collect(root)
    missing = {name: facts[f"ib_{name}_1_gbit_per_s_missing"] for name in ("mlx5_1", "mlx5_2")}
    assert missing == {"mlx5_1": 0, "mlx5_2": 200}
    assert facts["ib_mlx5_3_1_gbit_per_s_missing"] == 0
    assert (facts["ib_mlx5_1_1_errors"], facts["ib_mlx5_2_1_errors"]) == (0, 2)
    assert "ib_mlx5_0_2_gbit_per_s_missing" not in facts, "it is down"


def test_gpus_and_network_cards_that_exchange_data_directly(root):
    version = root / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n")
    assert facts_module._gpudirect(root) == {}, "no card of which that is known"
    (root / "sys/class/infiniband/mlx5_0/hca_type").write_text("MT4129\n")
    assert facts_module._gpudirect(root) == {"gpudirect_rdma": 0}
    (root / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert facts_module._gpudirect(root) == {"gpudirect_rdma": 1}
    (root / "sys/module/nvidia_peermem").rmdir()
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n")
    assert facts_module._gpudirect(root) == {"gpudirect_rdma": 1}


def test_versions_limits_and_ports(root, tmp_path):
    facts = collect(root, local_world_size=4, log_dir=str(tmp_path))
    assert facts["local_world_size"] == 4
    assert facts["ft_run"] == VERSION
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["torch"]
    assert facts["cpus"] == len(os.sched_getaffinity(0))
    assert facts["memory_gb"] == 8.59
    assert facts["ib_mlx5_0_1_state"] == "ACTIVE"
    assert facts["ib_mlx5_0_2_state"] == "DOWN"
    assert facts["ib_ports_active"] == 1
    assert facts["ib_mlx5_0_1_rate_gbit_per_s"] == 400.0
    assert facts["log_dir_free_gb"] > 0
    assert facts["unix_time_s"] > 1.7e9


def test_the_tightest_limit_of_memory_counts(root):
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("0::/outer/inner\n")
    (root / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n")
    outer = root / "sys/fs/cgroup/outer"
    (outer / "inner").mkdir(parents=True)
    (outer / "inner/memory.max").write_text("max\n")
    (outer / "memory.limit_in_bytes").write_text("4000000000\n")
    assert collect(root)["memory_limit_gb"] == 4.0
    (outer / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert "memory_limit_gb" not in collect(root)


def test_a_script_is_known_by_its_hash(root, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    first = collect(root, script=str(script))["script_sha256"]
    script.write_text("print(2)\n")
    assert collect(root, script=str(script))["script_sha256"] != first
    assert "script_sha256" not in collect(root, script=str(tmp_path / "missing.py"))


def test_a_log_folder_that_does_not_exist_yet(root, tmp_path):
    facts = collect(root, log_dir=str(tmp_path / "not" / "yet"))
    assert facts["log_dir_free_gb"] > 0
    assert "log_dir_error" not in facts


def test_a_file_system_that_does_not_say_its_size_is_not_full(root):
    assert "dev_shm_free_gb" in collect(root)
    assert os.statvfs("/proc").f_blocks == 0
    assert "log_dir_free_gb" not in collect(root, log_dir="/proc")
    (root / "dev/shm").rmdir()
    (root / "dev/shm").symlink_to("/proc")
    assert "dev_shm_free_gb" not in collect(root)


@pytest.mark.parametrize(
    ("version", "built_for", "unused"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", {}, "a; b"),
        ("cuda: str | None = '13.0'\nhip: Optional[str] = None\n", {"cuda": "13.0"}, None),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", {"cuda": "13.0"}, None),
        ("cuda = None\nhip = '6.4.1'\n", {"hip": "6.4.1"}, None),
    ],
)
def test_what_torch_was_built_for(root, tmp_path, monkeypatch, version, built_for, unused):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text(version)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    gpus = {"nvidia.com/gpu": "a", "amd.com/gpu": "b"}
    facts = collect(root, gpus_shown=gpus)
    assert {name: facts[name] for name in ("cuda", "hip") if name in facts} == built_for
    assert facts.get("gpus_without_torch") == unused
    assert "gpus_without_torch" not in collect(root)
    del gpus["nvidia.com/gpu" if "cuda" in built_for else "amd.com/gpu"]
    assert "gpus_without_torch" in collect(root, gpus_shown=gpus)


def test_xids_of_the_kernel_log(root):
    log = root / "dev/kmsg"
    log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus.\n")
    assert collect_xids(root) == {"gpu_xids": "79"}
    for number in (13, 31, 43, 45):
        log.write_text(f"6,1,1,-;NVRM: Xid (PCI:0000:65:00): {number}, pid=1, Ch 1\n")
        assert collect_xids(root) == {"gpu_xids": ""}, "what a program did to itself"
    log.write_text("6,1,1,-;eth0: link up\n")
    assert collect_xids(root) == {"gpu_xids": ""}
    log.unlink()
    assert collect_xids(root) == {}


def test_facts_need_no_torch():
    program = (
        "import sys; from ft_run.checks.facts import CheckWorkerConfig, collect_facts;"
        "print('torch' in collect_facts(CheckWorkerConfig('n'), {}), 'torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert output.stdout.split() == [b"True", b"False"]
