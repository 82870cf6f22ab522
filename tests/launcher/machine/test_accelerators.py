"""Accelerators, counted from a recorded NVML and from trees of ``/sys`` and ``/dev``."""

import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ft_run.checks import gpu_facts
from ft_run.launcher.machine import accelerators, nvml
from ft_run.launcher.machine.accelerators import (
    ACCELERATOR_CHOICES,
    AcceleratorKind,
    Accelerators,
    Device,
    find_accelerators,
    find_devices,
    name_mig_devices,
)
from ft_run.launcher.machine.nvml import GPU_IS_LOST, NO_PERMISSION, NvmlGpu, read_gpus
from hypothesis import given
from hypothesis import strategies as st


class RecordedNvmlError(Exception):
    """What a recorded driver raises."""

    def __init__(self, text: str, value: int | None = None) -> None:
        super().__init__(text)
        self.value = value


@dataclass(frozen=True)
class Mig:
    """A MIG device, as its driver names it."""

    uuid: str
    gpu_instance: int
    compute_instance: int = 0


@dataclass(frozen=True)
class Gpu:
    """A GPU; ``slots`` are its places for MIG devices, None an empty one."""

    uuid: str
    bus: int
    slots: tuple[Mig | None, ...] = ()
    error: int = 0
    """What it answers in place of anything else."""
    model: str = "H100"


class RecordedNvml:
    """The functions of NVML over a recorded machine."""

    NVMLError: type[Exception] = RecordedNvmlError

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.gpus = gpus

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not recorded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Gpu:
        if self.gpus[index].error:
            raise RecordedNvmlError("GPU is lost", self.gpus[index].error)
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: Gpu | Mig, /) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Gpu, /) -> str:
        return handle.model

    def nvmlDeviceGetPciInfo(self, handle: Gpu, /) -> SimpleNamespace:
        return SimpleNamespace(domain=0, bus=handle.bus, device=0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu, /) -> int:
        if not handle.slots:
            raise RecordedNvmlError("Not Supported")
        return len(handle.slots)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, index: int, /) -> Mig:
        slot = handle.slots[index]
        if slot is None:
            raise RecordedNvmlError("Not Found")
        return slot

    def nvmlDeviceGetGpuInstanceId(self, handle: Mig, /) -> int:
        return handle.gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, handle: Mig, /) -> int:
        return handle.compute_instance


A, B, C = "GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-cccc3333-0000"
MIG1, MIG2, MIG3 = "MIG-11111111-5555", "MIG-22222222-5555", "MIG-33333333-5555"
THREE = (Gpu(A, 0x0F), Gpu(B, 0x1A), Gpu(C, 0xDC))
WITH_MIG = (
    Gpu(A, 0x0F, slots=(Mig(MIG1, 7), None, Mig(MIG2, 9), None)),
    Gpu(B, 0x1A),
    Gpu(C, 0xDC, slots=(Mig(MIG3, 2, 1),)),
)
OLD_DRIVER = (Gpu(A, 0x0F, slots=(Mig(f"MIG-{A}/7/0", 7), Mig(f"MIG-{A}/8/0", 8))),)


@contextmanager
def listed(gpus: Sequence[Gpu]) -> Iterator[None]:
    """NVML lists these GPUs."""
    found: list[NvmlGpu] = read_gpus(RecordedNvml(gpus))
    with mock.patch.object(accelerators, "_nvidia_gpus", return_value=found):
        yield


def nvidia(
    gpus: Sequence[Gpu],
    visible: str | None = None,
    root: Path = Path("/nonexistent"),
    **environ: str,
) -> Accelerators:
    environ |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    with listed(gpus):
        return find_accelerators(AcceleratorKind.NVIDIA, environ, root=root)


def identifiers(accelerators: Accelerators) -> list[str]:
    return [device.identifier for device in accelerators.devices]


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "has_library", lambda: False)


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("2,0", ["2", "0"]),
        (" 1 , 2", ["1", "2"]),
        ("", []),
        ("NoDevFiles", []),
        ("0,,1", ["0"]),
        ("0,2,7,1", ["0", "2"]),
        ("0,9,0", []),
        ("1gpu,2ampere", ["1gpu", "2ampere"]),
        ("+1", ["+1"]),
        ("99999999999999999999", []),
        (f"{C},{A}", [C, A]),
        ("GPU-c,GPU-aaaa", ["GPU-c"]),  # two GPUs begin so
        ("GPU-c,GPU-cccc", []),  # the same GPU twice
        ("GPU-", []),
        ("MIG-1111", []),
    ],
)
def test_cuda_visible_devices(visible: str | None, expected: list[str]) -> None:
    assert identifiers(nvidia(THREE, visible)) == expected


def test_devices_know_their_place() -> None:
    found = nvidia(THREE, "2,GPU-aaaa1")
    assert found == Accelerators(
        AcceleratorKind.NVIDIA,
        (Device("2", "0000:dc:00.0"),),
        "NVIDIA GPUs by NVML: 3, CUDA_VISIBLE_DEVICES=2,GPU-aaaa1",
    )
    assert (found.count, found.per_process) == (1, 1)


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        (WITH_MIG, MIG1, [MIG1]),
        (WITH_MIG, f"{MIG3},{MIG1},{MIG2}", [MIG3, MIG1, MIG2]),
        (WITH_MIG, "MIG-2,MIG-3", ["MIG-2", "MIG-3"]),
        (WITH_MIG, f"{MIG1},{MIG1}", []),
        (WITH_MIG, f"{MIG1},MIG-1", []),
        (WITH_MIG, f"{MIG1},MIG-99,{MIG2}", [MIG1]),
        (WITH_MIG, f"{MIG1},{C}", [MIG1]),
        (WITH_MIG, f"MIG-{A}/9/0,MIG-{C}/2/1", [f"MIG-{A}/9/0", f"MIG-{C}/2/1"]),
        (WITH_MIG, f"MIG-{C}/2/1,{MIG3}", []),  # two names of one device
        (WITH_MIG, None, [MIG1, MIG2, "1", MIG3]),
        (WITH_MIG, "0,1", [MIG1, MIG2, "1"]),
        (WITH_MIG, C, [MIG3]),
        (OLD_DRIVER, f"MIG-{A}/8/0", [f"MIG-{A}/8/0"]),
    ],
)
def test_mig_devices(gpus: Sequence[Gpu], visible: str | None, expected: list[str]) -> None:
    assert identifiers(nvidia(gpus, visible)) == expected


def test_a_process_can_use_one_mig_device() -> None:
    found = nvidia(WITH_MIG, f"{MIG3},{MIG1}")
    assert [device.pci_address for device in found.devices] == ["0000:dc:00.0", "0000:0f:00.0"]
    assert (found.count, found.per_process) == (2, 1)
    assert nvidia(WITH_MIG, MIG3).per_process == 1
    assert nvidia(WITH_MIG, "MIG-none").per_process == 0


def test_a_lost_gpu_keeps_its_index() -> None:
    gpus = (Gpu(A, 1), Gpu(B, 2, error=GPU_IS_LOST), Gpu(C, 3, slots=(Mig(MIG3, 1),)))
    assert nvidia(gpus[:2]).devices == (Device("0", "0000:01:00.0"), Device("1", None))
    assert identifiers(nvidia(gpus, "2,1,0")) == [MIG3, "1", "0"]
    assert identifiers(nvidia(gpus, MIG3)) == [MIG3]
    assert identifiers(nvidia(gpus, B)) == []


def test_gpus_that_a_device_cgroup_forbids_do_not_count() -> None:
    gpus = (Gpu(A, 1, error=NO_PERMISSION), Gpu(B, 2), Gpu(C, 3))
    assert nvidia(gpus).devices == (Device("0", "0000:02:00.0"), Device("1", "0000:03:00.0"))
    assert nvidia(gpus, "1").devices == (Device("1", "0000:03:00.0"),)
    assert nvidia(gpus, "2").devices == ()
    assert identifiers(nvidia(gpus, A)) == []


def test_of_several_models_the_place_of_an_index_is_known_in_pci_order_only() -> None:
    gpus, root = (Gpu(A, 1, model="T400"), Gpu(B, 2)), Path("/nonexistent")

    def places(visible: str | None, **environ: str) -> list[str | None]:
        return [device.pci_address for device in nvidia(gpus, visible, root, **environ).devices]

    in_order: list[str | None] = ["0000:01:00.0", "0000:02:00.0"]
    assert places(None) == places("0,1") == places(None, CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert places(None) == [None, None], "CUDA counts the fastest first"
    assert places(None, CUDA_DEVICE_ORDER="PCI_BUS_ID") == in_order
    assert places(f"{B},{A}") == in_order[::-1]


def test_each_worker_is_given_a_mig_device_by_its_name() -> None:
    with listed(WITH_MIG):
        named = name_mig_devices({"CUDA_VISIBLE_DEVICES": "0,1", "A": "b"})
    assert named == {"CUDA_VISIBLE_DEVICES": f"{MIG1},{MIG2},1", "A": "b"}
    with listed(THREE):
        assert name_mig_devices({"A": "b"}) == {"A": "b"}


def test_no_gpu_in_nvml_is_believed(tmp_path: Path) -> None:
    write(tmp_path, {"dev/nvidia0": ""})
    assert nvidia((), root=tmp_path).devices == ()


DEVICE_FILES = {f"dev/nvidia{name}": "" for name in ("3", "12", "ctl", "-uvm", "-modeset")}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["0", "1"]),
        ("1", ["1"]),
        ("0,5", ["0"]),
        ("", []),
        (f"{A},{B}", [A, B]),
        (f"{A},{A}", []),
        (f"{MIG1},0", [MIG1]),
    ],
)
def test_device_files_without_nvml(
    visible: str | None, expected: list[str], tmp_path: Path
) -> None:
    write(tmp_path, DEVICE_FILES)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = find_accelerators(AcceleratorKind.NVIDIA, environ, root=tmp_path)
    assert identifiers(found) == expected
    assert found.source.startswith("device files /dev/nvidia* (without NVML): 2")


def test_no_nvidia(tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": f"{A},0"}
    found = find_accelerators(AcceleratorKind.NVIDIA, environ, root=tmp_path)
    assert found.count == found.per_process == 0


def test_pynvml_is_what_the_protocol_says() -> None:
    pynvml = importlib.import_module("pynvml")

    assert issubclass(pynvml.NVMLError, Exception)
    named = "".join(Path(module.__file__ or "").read_text() for module in (nvml, gpu_facts))
    functions = set(re.findall(r"nvml(?:Device|System|Init|Shutdown)\w*", named))
    assert len(functions) > 20
    for name in functions:
        assert callable(getattr(pynvml, name)), name
    for name in ("NO_PERMISSION", "GPU_IS_LOST", "RESET_REQUIRED"):
        assert getattr(pynvml, f"NVML_ERROR_{name}") == getattr(nvml, name)
        assert nvml.code_of(pynvml.NVMLError(getattr(nvml, name))) == getattr(nvml, name)


TORCH_CASES = st.lists(
    st.sampled_from(
        ["0", "1", "2", "3", "-1", "", " 2", "1x", "x", A, B, C, "GPU-aaaa", "GPU-c", "GPU-d"]
    ),
    max_size=4,
).map(",".join)


@pytest.fixture(scope="module")
def cuda() -> Any:
    """``torch.cuda``, with the private functions that count devices by NVML."""
    module = pytest.importorskip("torch").cuda
    for name in ("_device_count_nvml", "_raw_device_count_nvml", "_raw_device_uuid_nvml"):
        if not hasattr(module, name):
            pytest.skip(f"this torch has no torch.cuda.{name}")
    return module


@given(visible=TORCH_CASES)
def test_counts_as_torch_does(visible: str, cuda: Any) -> None:
    with (
        mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": visible}),
        mock.patch.object(cuda, "_raw_device_count_nvml", return_value=len(THREE)),
        mock.patch.object(cuda, "_raw_device_uuid_nvml", return_value=[A, B, C]),
    ):
        expected = cuda._device_count_nvml()
    assert nvidia(THREE, visible).count == expected


def kfd_node(simds: int, *, minor: int = 0, location: int = 0, unique: int = 0) -> str:
    return (
        f"cpu_cores_count {0 if simds else 64}\nsimd_count {simds}\nvendor_id 4098\n"
        f"location_id {location}\ndomain 1\ndrm_render_minor {minor}\nunique_id {unique}\n"
    )


@pytest.fixture
def amd_root(tmp_path: Path) -> Path:
    """Two CPUs, four GPUs of which the last has no device file here, and one refused node."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(
        tmp_path,
        {
            f"{nodes}/0/properties": kfd_node(0),
            f"{nodes}/1/properties": kfd_node(0),
            f"{nodes}/2/properties": kfd_node(304, minor=128, location=0x0500, unique=0xA1),
            f"{nodes}/3/properties": kfd_node(304, minor=129, location=0x2609, unique=0xB2),
            f"{nodes}/10/properties": kfd_node(304, minor=136, location=0xDC00, unique=0xC3),
            f"{nodes}/11/properties": kfd_node(304, minor=144),
            "dev/dri/renderD128": "",
            "dev/dri/renderD129": "",
            "dev/dri/renderD136": "",
        },
    )
    (tmp_path / nodes / "12/properties").mkdir(parents=True)
    return tmp_path


def amd(root: Path, **environ: str) -> list[str]:
    return identifiers(find_accelerators(AcceleratorKind.AMD, environ, root=root))


def test_amd(amd_root: Path) -> None:
    found = find_accelerators(AcceleratorKind.AMD, {}, root=amd_root)
    assert found.devices == (
        Device("0", "0001:05:00.0"),
        Device("1", "0001:26:01.1"),
        Device("2", "0001:dc:00.0"),
    )
    assert found.source == "AMD GPUs by the kernel: 3"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HIP_VISIBLE_DEVICES": "2,0"}, ["2", "0"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1"}, ["0", "1"]),
        ({"HIP_VISIBLE_DEVICES": "GPU-00000000000000b2"}, ["GPU-00000000000000b2"]),
        ({"ROCR_VISIBLE_DEVICES": "2,1"}, ["0", "1"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000c3"}, ["0"]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "2"}, []),
        ({"ROCR_VISIBLE_DEVICES": "0,9,1"}, ["0"]),
    ],
)
def test_amd_visible_devices(environ: dict[str, str], expected: list[str], amd_root: Path) -> None:
    assert amd(amd_root, **environ) == expected


def test_devices_are_those_of_the_first_kind_that_is_there(amd_root: Path) -> None:
    def found(accelerator: str, nvidia: Sequence[Gpu] = ()) -> list[str | None]:
        with listed(nvidia):
            devices = find_devices(accelerator, {}, root=amd_root)
        return [device.pci_address for device in devices]

    of_amd = ["0001:05:00.0", "0001:26:01.1", "0001:dc:00.0"]
    assert found("auto") == of_amd
    assert found("auto", [Gpu("GPU-a", 7)]) == ["0000:07:00.0"]
    assert found("amd.com/gpu", [Gpu("GPU-a", 7)]) == of_amd
    assert found("xpu") == found("cpu") == []


def test_rocr_devices_keep_their_place(amd_root: Path) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "2,0"}
    found = find_accelerators(AcceleratorKind.AMD, environ, root=amd_root)
    assert found.devices == (Device("0", "0001:dc:00.0"), Device("1", "0001:05:00.0"))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("0,2", ["0", "2"]),
        ("1, 2", ["1"]),
        ("1,-1,2", ["1"]),
        ("1,8", ["1"]),
        ("1,1,2", ["1"]),
        ("", []),
    ],
)
def test_ascend(visible: str | None, expected: list[str], tmp_path: Path) -> None:
    names = ("davinci4", "davinci5", "davinci11", "davinci_manager", "hisi_hdc")
    write(tmp_path, {f"dev/{name}": "" for name in names})
    environ = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    found = find_accelerators(AcceleratorKind.ASCEND, environ, root=tmp_path)
    assert identifiers(found) == expected


def test_xpu(tmp_path: Path) -> None:
    drm = "sys/class/drm"
    write(
        tmp_path,
        {
            "dev/dri/card0": "",
            "dev/dri/renderD128": "",
            "dev/dri/renderD129": "",
            "dev/dri/renderD130": "",
            f"{drm}/renderD128/device/vendor": "0x8086\n",
            f"{drm}/renderD128/device/uevent": "DRIVER=xe\nPCI_SLOT_NAME=0000:4d:00.0\n",
            f"{drm}/renderD129/device/vendor": "0x10de\n",
            f"{drm}/renderD130/device/vendor": "0x8086\n",
            f"{drm}/renderD131/device/vendor": "0x8086\n",
        },
    )
    found = find_accelerators(AcceleratorKind.XPU, {}, root=tmp_path)
    assert found.devices == (Device("0", "0000:4d:00.0"), Device("1", None))


def test_an_empty_machine_has_none(tmp_path: Path) -> None:
    for kind in AcceleratorKind:
        assert find_accelerators(kind, {}, root=tmp_path).devices == ()


def test_choices_are_the_kinds_but_xpu() -> None:
    kinds = {kind.value for kind in AcceleratorKind}
    assert set(ACCELERATOR_CHOICES) == kinds - {"xpu"} | {"auto"}
