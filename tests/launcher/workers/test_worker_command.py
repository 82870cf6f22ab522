"""Which device each worker is shown under ``--virtual-local-rank``."""

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.workers.worker_command import virtual_devices

CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ({CUDA: "0"}, {CUDA: "1"})),
        ({CUDA: "5, GPU-1,7"}, ({CUDA: "5"}, {CUDA: "GPU-1"})),
        ({HIP: "7, 4"}, ({HIP: "7", CUDA: "7"}, {HIP: "4", CUDA: "4"})),
        # ROCm does not read CUDA's variable where its own is set.
        ({HIP: "7,4", CUDA: "1"}, ({HIP: "7", CUDA: "7"}, {HIP: "4", CUDA: "4"})),
        ({HIP: "", CUDA: "1,2"}, ({CUDA: "1"}, {CUDA: "2"})),
    ],
)
def test_each_worker_has_its_own_device(
    environ: dict[str, str], expected: tuple[dict[str, str], ...]
) -> None:
    assert virtual_devices(True, 2, environ) == expected
    assert virtual_devices(False, 2, environ) == ()


def test_too_few_devices_are_refused_by_the_variable_that_counts() -> None:
    with pytest.raises(UsageError, match="one device of HIP_VISIBLE_DEVICES='3', which lists 1"):
        virtual_devices(True, 2, {HIP: "3", CUDA: "0,1"})
