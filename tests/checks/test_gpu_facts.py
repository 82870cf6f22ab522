"""GPU facts from a recorded NVML: a module with the names of pynvml, as drivers answer it."""

from types import SimpleNamespace
from typing import cast

import pytest
from ft_run.checks.fact_rules import findings
from ft_run.checks.gpu_facts import collect_gpu_facts, throttled_by
from ft_run.launcher.machine.nvml import (
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    Nvml,
    NvmlFailedError,
)


class NVMLError(Exception):
    """What a recorded driver raises."""

    def __init__(self, text, value=None):
        super().__init__(text)
        self.value = value


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
            raise NVMLError("GPU is lost", GPU_IS_LOST)
        if self.gpus[index].get("error"):
            raise NVMLError("Insufficient Permissions", self.gpus[index]["error"])
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

    def nvmlDeviceGetMarginTemperature(self, gpu):
        return self.get(gpu, "margin")

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

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(domain=0, bus=1, device=0)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):
        return len(self.get(gpu, "mig"))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, slot):
        return {"uuid": gpu["mig"][slot]}

    def nvmlDeviceGetGpuInstanceId(self, mig):
        return 1

    nvmlDeviceGetComputeInstanceId = nvmlDeviceGetGpuInstanceId

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return next(gpu for gpu in self.gpus if gpu["uuid"] == uuid)

    def get(self, gpu, name):
        if name in gpu.get("broken", ()):
            raise NVMLError("GPU requires reset", RESET_REQUIRED)
        return gpu[name] if name in gpu else self.refuse()

    def refuse(self):
        raise NVMLError("Not Supported", NOT_SUPPORTED)


def collect(*gpus, visible=None, init_error="", **more):
    nvml = RecordedNvml(*gpus, init_error=init_error)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    facts = collect_gpu_facts(environ | more, lambda: cast(Nvml, nvml))
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
        "gpu0_row_remap_pending_corrected": 0,
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
        "gpu0_nvlinks_missing": 0,
        "gpu_models": "1 x NVIDIA H100 80GB HBM3",
        "nvlinks_up": 18,
    }
    assert findings(collect(H100)) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ecc": 1}, "1 uncorrected memory errors"),
        ({"rows": (3, 1, 1, 0)}, "must be reset to replace a bad row"),
        ({"rows": (3, 1, 0, 1)}, "could not replace a bad row"),
        ({"pages": 1}, "must be reset to retire a bad page"),
        ({"throttle": 0x40 | 0x4}, "throttled by temperature (hardware limit)"),
        ({"temperature": 85}, "2 degrees C below"),
        ({"lanes": (8, 16)}, "8 fewer PCIe lanes"),
        ({"rows": (3, 0, 1, 0), "ecc": 0}, "will replace a row of its memory, whose errors were"),
    ],
)
def test_a_gpu_with_one_fault(change, words):
    (found,) = findings(collect(H100 | change))
    assert words in found.text


def test_a_row_that_lost_data_since_the_driver_was_loaded_must_be_replaced_now():
    """The count of rows that were replaced need not hold it yet."""
    facts = collect(H100 | {"rows": (3, 0, 1, 0), "ecc": 1})
    assert (facts["gpu0_row_remap_pending"], facts["gpu0_row_remap_pending_corrected"]) == (1, 0)


def test_what_an_old_gpu_does_not_know_is_left_out():
    facts = collect({"uuid": "GPU-old", "name": "Tesla P4"})
    names = {"gpu0_name": "Tesla P4", "gpu_models": "1 x Tesla P4"}
    assert facts == {"driver": "570.86.15", "gpus": 1} | names


@pytest.mark.parametrize(("code", "text"), [(999, "Unknown Error"), (10, "Timeout")])
def test_a_gpu_of_which_the_driver_knows_nothing_counts_against_the_node(code, text):
    class Unable(RecordedNvml):
        def get(self, gpu, name):
            raise NVMLError(text, code)

    (found,) = findings(collect_gpu_facts({}, lambda: cast(Nvml, Unable(H100))))
    assert found.is_fatal
    assert found.text == f"GPU 0 does not answer: {text}"


def test_a_board_whose_nvlinks_are_not_used_is_no_fault():
    assert "gpu0_nvlinks_down" not in collect(H100 | {"links": [0] * 18})


@pytest.mark.parametrize(
    ("visible", "prefixes"),
    [
        (None, ["gpu0", "gpu1"]),
        ("0,-1,1", ["gpu0"]),
        ("1,1", []),
        ("0,0x", []),
        ("1", ["gpu1"]),
        ("GPU-bbbb", ["gpu1"]),
        ("", []),
        ("-1", []),
        ("MIG-cccc", ["gpu1"]),
        ("MIG-dddd", []),
    ],
)
def test_only_gpus_that_the_workers_can_use_count(visible, prefixes):
    other = {"uuid": "GPU-bbbb2222", "name": H100["name"], "mig": ["MIG-cccc3333"]}
    facts = collect(H100, other, visible=visible)
    assert [name[:4] for name in facts if name.endswith("_name")] == prefixes
    assert facts["gpus"] == len(prefixes)


def test_without_a_driver_there_are_no_facts():
    assert collect(init_error="NVML Shared Library Not Found") == {}
    assert collect_gpu_facts({}, lambda: None) == {}


def test_a_driver_that_does_not_answer_is_a_fact():
    facts = collect(init_error="Driver/library version mismatch")
    assert facts == {"nvml_error": "Driver/library version mismatch"}


@pytest.mark.parametrize("answer", ["rows", "throttle", "links"])
def test_a_gpu_that_must_be_reset_speaks_against_the_node_whatever_it_answers_else(answer):
    (found,) = findings(collect(H100 | {"broken": [answer]}))
    assert found.is_fatal
    assert found.text == "GPU 0 does not answer: GPU requires reset"


def test_a_gpu_that_a_device_cgroup_forbids_is_not_there():
    facts = collect({"uuid": "GPU-other", "error": NO_PERMISSION}, H100)
    assert facts == collect(H100)
    assert findings(facts) == ()


def test_links_that_no_gpu_uses_are_no_fault_but_one_less_than_the_others_is():
    assert findings(collect(*[H100 | {"links": [1] * 17 + [0]}] * 2)) == ()
    facts = collect(H100, H100 | {"links": [1] * 17 + [0]})
    (found,) = findings(facts)
    assert found.text == "GPU 1 has 1 fewer active NVLink(s) than another GPU of this node"
    assert facts["nvlinks_up"] == 35


def test_of_several_models_an_index_says_nothing_unless_cuda_counts_as_nvml_does():
    other = {"uuid": "GPU-bbbb2222", "name": "T400"}
    assert collect(other, H100, visible="0")["gpus"] == 2
    facts = collect(other, H100, visible="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert facts["gpu_models"] == "1 x T400"
    assert collect(other, H100, visible="GPU-b")["gpu_models"] == "1 x T400"


def test_the_margin_of_temperature_is_what_the_driver_says():
    """As recorded of a Hopper; thresholds are deprecated."""
    assert collect(H100 | {"margin": 7})["gpu0_temperature_margin_c"] == 7


def test_what_slows_a_gpu_down_right_now():
    slow = H100 | {"throttle": 0x40}
    assert throttled_by("GPU-aaaa1111", lambda: cast(Nvml, RecordedNvml(slow))) == (
        "temperature (hardware limit)"
    )
    assert throttled_by("GPU-aaaa1111", lambda: cast(Nvml, RecordedNvml(H100))) == ""
    assert throttled_by("GPU-aaaa1111", lambda: None) == ""


def test_an_interpreter_without_pynvml_says_so():
    def load():
        raise NvmlFailedError("/opt/python has no pynvml (pip install nvidia-ml-py)")

    (found,) = findings(collect_gpu_facts({}, load))
    assert found.text == (
        "the NVIDIA driver does not answer: /opt/python has no pynvml (pip install nvidia-ml-py)"
    )
