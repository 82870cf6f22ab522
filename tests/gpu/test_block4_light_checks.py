"""Block 4: what is read of a GPU, and the light checks (docs/internals/gpu.md)."""

import pytest
from ft_run.tests.gpu.machine import Tell, check, five_checks_agree, in_torch, smi

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_facts_are_those_of_nvidia_smi(record_property: Tell) -> None:
    _, node = check()
    facts = node["facts"]
    assert isinstance(facts, dict)
    for index, (name, driver, total, uncorrected) in enumerate(
        smi("gpu=name,driver_version,memory.total,ecc.errors.uncorrected.volatile.total")
    ):
        assert (facts[f"gpu{index}_name"], facts["driver"]) == (name, driver)
        assert facts[f"gpu{index}_memory_gb"] == pytest.approx(float(total) * 1.048576e-3, rel=0.02)
        if uncorrected.isdecimal():
            assert facts[f"gpu{index}_ecc_uncorrected"] == int(uncorrected)
        record_property("gpu", f"{name}, driver {driver}: facts as nvidia-smi has them")


@pytest.mark.parametrize(
    "visible", ["0", "", "-1", "0,0", "0,-1", "7", "GPU-", "uuid", "prefix", "uuid,uuid"]
)
def test_what_is_visible_is_what_torch_counts(visible: str, record_property: Tell) -> None:
    uuid = smi("gpu=uuid")[0][0]
    value = visible.replace("uuid", uuid).replace("prefix", uuid[:12])
    seen = in_torch("import torch; print(torch.cuda.device_count())", CUDA_VISIBLE_DEVICES=value)
    ours = in_torch(
        "import os; from ft_run.launcher.machine.accelerators import *;"
        "print(find_accelerators(AcceleratorKind.NVIDIA, os.environ).count)",
        CUDA_VISIBLE_DEVICES=value,
    )
    record_property("gpu", f"CUDA_VISIBLE_DEVICES={visible!r}: {ours} here, {seen} for torch")
    assert ours == seen


def test_two_hundred_products_are_verified(record_property: Tell) -> None:
    said = in_torch(
        "import torch\n"
        "from ft_run.checks.measure_device import Product\n"
        "gpu, kind = torch.device('cuda'), torch.bfloat16\n"
        "product = Product(8192, gpu, dtype=kind, repeats_exactly=True)\n"
        "for _ in range(200): product.run(); product.verify(); product.compare()\n"
        "print('200 products of 8192 x 8192: right, and the same bit for bit')"
    )
    record_property("gpu", said)


def test_five_light_checks_agree(record_property: Tell) -> None:
    five_checks_agree("light", record_property)
