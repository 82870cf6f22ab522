"""One device measured, with torch on the CPU: what a wrong product is, and that it is seen."""

from types import SimpleNamespace

import pytest
from ft_run.checks.faults import ActiveFaults, parse_faults
from ft_run.checks.measure import Budget
from ft_run.checks.records import Phase

SHORT = Budget(0.01, 0.01, 0.01, 0.01, 0.01, 1 << 20, 8 << 20)


@pytest.fixture
def lab():
    """What is measured with. Torch is imported by the tests that use it, not by all of pytest."""
    import torch
    from ft_run.checks import measure_device

    def probe(fault="", phase=Phase.SOLO, share=1.0):
        faults = ActiveFaults(parse_faults(fault), "n0", 0, phase)
        return measure_device.DeviceProbe(torch.device("cpu"), SHORT, share, faults)

    def product(size=64, dtype="float32", **options):
        cpu = torch.device("cpu")
        return measure_device.Product(size, cpu, dtype=getattr(torch, dtype), **options)

    count = torch.get_num_threads()
    yield SimpleNamespace(
        torch=torch,
        module=measure_device,
        probe=probe,
        product=product,
        Product=measure_device.Product,
        WrongValueError=measure_device.WrongValueError,
    )
    torch.set_num_threads(count)  # a probe gives torch one


def test_a_healthy_device(lab):
    device = lab.probe()
    assert device.compute_tflops() > 0
    assert device.memory_gb_per_s() > 0
    device.close()


@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_product(lab, size, dtype):
    right = lab.product(size, dtype=dtype)
    for _ in range(2):
        right.run()
        right.verify()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("wrong", [300.0, -300.0, float("nan"), float("inf")])
def test_one_wrong_entry_is_seen(lab, dtype, wrong):
    one = lab.product(dtype=dtype)
    one.run()
    one.result[63, 0] += wrong
    with pytest.raises(lab.WrongValueError, match=r"product of two 64 × 64 matrices is off by"):
        one.verify()


def test_a_product_of_something_else_is_seen(lab):
    one = lab.product()
    one.run()
    one.result.copy_(one.result.T.clone())
    with pytest.raises(lab.WrongValueError, match="is off by"):
        one.verify()


@pytest.mark.parametrize("repeats_exactly", [False, True])
def test_a_bit_that_differs_from_the_first_time(lab, repeats_exactly):
    one = lab.product(repeats_exactly=repeats_exactly)
    one.run()
    one.verify()
    one.result.view(lab.torch.int32)[5, 7] ^= 1
    if repeats_exactly:
        with pytest.raises(lab.WrongValueError, match="differs between two runs"):
            one.verify()
    else:
        one.verify()


@pytest.mark.parametrize("is_wrong_first", [True, False])
def test_a_device_that_is_wrong_before_or_after_the_measurement(lab, monkeypatch, is_wrong_first):
    verified = []
    verify, mm = lab.Product.verify, lab.torch.mm

    def counted(self):
        verify(self)
        verified.append(self)

    def unsteady(left, right, *, out):
        mm(left, right, out=out)
        if is_wrong_first != bool(verified):
            out[0, 0] += 1000

    monkeypatch.setattr(lab.Product, "verify", counted)
    monkeypatch.setattr(lab.torch, "mm", unsteady)
    with pytest.raises(lab.WrongValueError, match="is off by"):
        lab.probe().compute_tflops()
    assert len(verified) == (0 if is_wrong_first else 1)


def test_a_cpu_quota_counts_also_where_a_busy_machine_leaves_less_than_it(lab, monkeypatch):
    """Others have the CPU for most of the time: the quota of a quarter is never used up."""
    monkeypatch.setattr(lab.module, "best_time_s", lambda *_: 0.001)
    whole, quarter = lab.probe(), lab.probe(share=0.25)
    assert quarter.memory_gb_per_s() == pytest.approx(whole.memory_gb_per_s() / 4)
    assert quarter._product_time_s(64) == whole._product_time_s(64) == pytest.approx(0.001)
    assert quarter.compute_tflops() == pytest.approx(whole.compute_tflops() / 4)


def test_a_wrong_product_can_be_injected(lab):
    with pytest.raises(lab.WrongValueError, match="is off by"):
        lab.probe("wrong-value@phase=solo").compute_tflops()
    assert lab.probe("wrong-value@phase=pair").compute_tflops() > 0
