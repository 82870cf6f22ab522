"""GPU facts from a recorded NVML: a module with the names of pynvml, as drivers answer it."""

from types import SimpleNamespace
from typing import cast

import pytest
from ft_run.checks.fact_rules import findings
from ft_run.checks.gpu_facts import Nvml, collect_gpu_facts


class NVMLError(Exception):
    """What a recorded driver raises."""


H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-aaaa1111",
    "total": 85_520_809_984,
    "used": 600_000_000,
    "ecc": 0,
    "rows": (0, 0, 0, 0),
    "throttle": 0x1,
    "temperature": 31,
    "slowdown": 87,
    "lanes": (16, 16),
    "generation": (1, 5),
    "links": [1] * 18,
}


class RecordedNvml:
    """NVML over recorded GPUs; what a record lacks is not supported."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, *gpus, init_error=""):
        self.gpus = gpus
        self.init_error = init_error
        self.is_open = False

    def nvmlInit(self):
        if self.init_error:
            raise NVMLError(self.init_error)
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlSystemGetDriverVersion(self):
        return b"570.86.15"

    def nvmlDeviceGetCount(self):
        assert self.is_open
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.gpus[index] is None:
            raise NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu):
        return gpu["uuid"]

    def nvmlDeviceGetName(self, gpu):
        return self.get(gpu, "name")

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return SimpleNamespace(total=self.get(gpu, "total"), used=self.get(gpu, "used"))

    def nvmlDeviceGetTotalEccErrors(self, gpu, kind, counter):
        assert (kind, counter) == (1, 0), "uncorrected, since the driver was loaded"
        return self.get(gpu, "ecc")

    def nvmlDeviceGetRemappedRows(self, gpu):
        return self.get(gpu, "rows")

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu):
        return self.get(gpu, "pages")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):
        return self.get(gpu, "throttle")

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        assert sensor == 0
        return self.get(gpu, "temperature")

    def nvmlDeviceGetTemperatureThreshold(self, gpu, kind):
        assert kind == 1, "the one at which it slows down"
        return self.get(gpu, "slowdown")

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu):
        return self.get(gpu, "lanes")[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu):
        return self.get(gpu, "lanes")[1]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu):
        return self.get(gpu, "generation")[0]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu):
        return self.get(gpu, "generation")[1]

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        return self.get(gpu, "links")[link] if link < len(gpu.get("links", ())) else self.refuse()

    def get(self, gpu, name):
        return gpu[name] if name in gpu else self.refuse()

    def refuse(self):
        raise NVMLError("Not Supported")


def collect(*gpus, visible=None, init_error=""):
    nvml = RecordedNvml(*gpus, init_error=init_error)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    facts = collect_gpu_facts(environ, lambda: cast(Nvml, nvml))
    assert not nvml.is_open
    return facts


def test_a_healthy_gpu():
    assert collect(H100) == {
        "driver": "570.86.15",
        "gpus": 1,
        "gpu0_name": "NVIDIA H100 80GB HBM3",
        "gpu0_memory_gb": 85.5,
        "gpu0_used_gb": 0.6,
        "gpu0_ecc_uncorrected": 0,
        "gpu0_rows_remapped": 0,
        "gpu0_row_remap_pending": 0,
        "gpu0_row_remap_failed": 0,
        "gpu0_throttled_by": "",
        "gpu0_temperature_c": 31,
        "gpu0_temperature_margin_c": 56,
        "gpu0_pcie_lanes": 16,
        "gpu0_pcie_lanes_missing": 0,
        "gpu0_pcie_generation": 1,
        "gpu0_pcie_generation_max": 5,
        "gpu0_nvlinks_up": 18,
        "gpu0_nvlinks_down": 0,
    }
    assert findings(collect(H100)) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ecc": 1}, "1 uncorrected memory errors"),
        ({"rows": (3, 1, 1, 0)}, "must be reset to replace a bad row"),
        ({"rows": (3, 1, 0, 1)}, "could not replace a bad row"),
        ({"pages": 1}, "must be reset to retire a bad page"),
        ({"throttle": 0x40 | 0x4}, "slowed down by heat (hardware limit)"),
        ({"temperature": 85}, "2 degrees below"),
        ({"lanes": (8, 16)}, "8 PCIe lanes fewer"),
        ({"links": [1] * 17 + [0]}, "1 NVLink(s) that are down"),
    ],
)
def test_a_gpu_with_one_fault(change, words):
    (found,) = findings(collect(H100 | change))
    assert words in found.text


def test_what_an_old_gpu_does_not_know_is_left_out():
    facts = collect({"uuid": "GPU-old", "name": "Tesla P4"})
    assert facts == {"driver": "570.86.15", "gpus": 1, "gpu0_name": "Tesla P4"}


def test_a_board_whose_nvlinks_are_not_used_is_no_fault():
    assert "gpu0_nvlinks_down" not in collect(H100 | {"links": [0] * 18})


def test_a_gpu_that_is_lost_speaks_against_the_node():
    (found,) = findings(collect(H100, None))
    assert found.is_fatal
    assert found.text == "GPU 1 does not answer: GPU is lost"


@pytest.mark.parametrize(
    ("visible", "prefixes"),
    [
        (None, ["gpu0", "gpu1"]),
        ("1", ["gpu1"]),
        ("GPU-bbbb", ["gpu1"]),
        ("", []),
        ("-1", []),
        ("MIG-cccc", ["gpu0", "gpu1"]),
    ],
)
def test_only_gpus_that_the_workers_can_use_count(visible, prefixes):
    other = {"uuid": "GPU-bbbb2222", "name": "other"}
    facts = collect(H100, other, visible=visible)
    assert [name[:4] for name in facts if name.endswith("_name")] == prefixes
    assert facts["gpus"] == len(prefixes)


def test_without_a_driver_there_are_no_facts():
    assert collect(init_error="NVML Shared Library Not Found") == {}
    assert collect_gpu_facts({}, lambda: None) == {}


def test_a_driver_that_does_not_answer_is_a_fact():
    facts = collect(init_error="Driver/library version mismatch")
    assert facts == {"nvml_error": "Driver/library version mismatch"}
