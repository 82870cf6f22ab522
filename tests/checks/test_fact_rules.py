"""Every fact that can speak against a node, and the facts that nearly do."""

import pytest
from ft_run.checks.fact_rules import RULES, findings
from ft_run.checks.records import Fact

FATAL, WARNING = True, False

GOOD: dict[str, Fact] = {
    "gpus": 1,
    "local_world_size": 1,
    "gpu0_ecc_uncorrected": 0,
    "gpu0_row_remap_failed": 0,
    "gpu0_row_remap_pending": 0,
    "gpu0_page_retirement_pending": 0,
    "gpu0_nvlinks_up": 18,
    "gpu0_nvlinks_down": 0,
    "gpu0_throttled_by": "",
    "gpu0_temperature_margin_c": 40,
    "gpu0_pcie_lanes_missing": 0,
    "gpu0_used_gb": 0.6,
    "gpu_xids": "",
    "ib_mlx5_0_1_state": "ACTIVE",
    "ib_mlx5_0_1_gbit_per_s_missing": 0.0,
    "ib_mlx5_0_1_errors": 0,
    "gpudirect_rdma": 1,
    "dev_shm_free_gb": 60.0,
    "log_dir_free_gb": 50.0,
    "open_files_limit": 1048576,
    "memlock_limit_gb": -1,
}

BAD: list[tuple[dict[str, Fact], bool, str]] = [
    ({"gpu3_error": "GPU is lost"}, FATAL, "GPU 3 does not answer: GPU is lost"),
    ({"gpu0_ecc_uncorrected": 2}, FATAL, "GPU 0 has 2 uncorrected memory errors"),
    ({"gpu0_row_remap_failed": 1}, FATAL, "GPU 0 could not replace a bad row"),
    ({"gpu0_row_remap_pending": 1}, FATAL, "GPU 0 must be reset to replace a bad row"),
    ({"gpu0_page_retirement_pending": 1}, FATAL, "GPU 0 must be reset to retire a bad page"),
    ({"gpu0_row_remap_pending_corrected": 1}, WARNING, "GPU 0 will replace a row of its memory"),
    ({"gpu12_nvlinks_missing": 1}, WARNING, "GPU 12 has 1 fewer active NVLink(s)"),
    ({"local_rank3_throttled_by": "heat"}, WARNING, "of local rank 3 was throttled by heat"),
    ({"gpu0_throttled_by": "heat"}, WARNING, "GPU 0 is throttled by heat"),
    ({"gpu0_temperature_margin_c": 4}, WARNING, "GPU 0 is 4 degrees C below"),
    ({"gpu0_pcie_lanes_missing": 8}, WARNING, "GPU 0 uses 8 fewer PCIe lanes"),
    ({"gpu0_used_gb": 31.2}, WARNING, "GPU 0 has 31.2 GB in use before the job starts"),
    ({"gpu_xids": "79, 48"}, WARNING, "GPU errors (XID 79, 48)"),
    ({"nvml_error": "Driver/library version mismatch"}, WARNING, "driver does not answer"),
    ({"gpus_without_torch": "NVIDIA GPUs by NVML: 8"}, WARNING, "GPUs found (NVIDIA GPUs by"),
    ({"ib_mlx5_0_1_state": "INIT"}, WARNING, "InfiniBand port mlx5_0_1 is INIT"),
    ({"ib_ports_active": 0}, WARNING, "no InfiniBand port is ACTIVE"),
    ({"ib_mlx5_0_1_gbit_per_s_missing": 200.0}, WARNING, "port mlx5_0_1 is 200 Gbit/s slower"),
    ({"ib_mlx5_0_1_errors": 3}, WARNING, "InfiniBand port mlx5_0_1 has 3 errors"),
    ({"gpudirect_rdma": 0}, WARNING, "no GPUDirect RDMA"),
    ({"mig_devices": 4}, WARNING, "4 MIG devices: NCCL may not connect"),
    ({"dev_shm_free_gb": 0.06, "local_world_size": 2}, FATAL, "/dev/shm has 0.06 GB free"),
    (
        {"dev_shm_free_gb": 0.06, "local_world_size": 2, "gpus": 0},
        WARNING,
        "too little for 2 workers",
    ),
    ({"log_dir_free_gb": 0.001}, FATAL, "the disk of the log directory is full"),
    ({"log_dir_free_gb": 0.5}, WARNING, "the disk of the log directory has 0.5 GB left"),
    ({"log_dir_error": "/logs is not writable"}, FATAL, "/logs is not writable"),
    ({"open_files_limit": 256}, WARNING, "the limit of open files is 256"),
    ({"memlock_limit_gb": 0.008}, WARNING, "the limit of locked memory is 0.008 GB"),
]


def test_a_good_node_has_no_findings():
    assert findings(GOOD) == ()
    assert findings({}) == ()


@pytest.mark.parametrize(("facts", "is_fatal", "words"), BAD)
def test_each_bad_fact_is_found(facts, is_fatal, words):
    (found,) = findings(GOOD | facts)
    assert found.is_fatal is is_fatal
    assert words in found.text


@pytest.mark.parametrize(
    "facts",
    [
        {"dev_shm_free_gb": 0.01},  # one worker shares with no other
        {"dev_shm_free_gb": 0.064, "local_world_size": 2},
        {"open_files_limit": -1},
        {"gpu0_used_gb": 2.0},
        {"gpu0_nvlinks_down": 2, "gpu0_nvlinks_missing": 0},
        {"ib_mlx5_1_1_state": "DOWN", "ib_ports_active": 1},
    ],
)
def test_what_nearly_speaks_against_a_node(facts):
    assert findings(GOOD | facts) == ()


def test_without_infiniband_no_memory_need_be_locked():
    facts = {name: value for name, value in GOOD.items() if not name.startswith("ib_")}
    assert findings(facts | {"memlock_limit_gb": 0.008}) == ()


def test_every_rule_has_a_case():
    assert len(BAD) == len(RULES)
    assert len({found for facts, _, _ in BAD for found in findings(GOOD | facts)}) == len(RULES)
