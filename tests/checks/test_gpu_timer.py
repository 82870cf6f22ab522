"""GPUs timed and given up. In a GPU's place: a clock whose events end when the test says, or never.

Nothing here ran on a GPU.
"""

import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from ft_run.checks.faults import ActiveFaults, parse_faults
from ft_run.checks.measure import BUDGETS, Budget, settled_time_s
from ft_run.checks.records import Level, Phase
from ft_run.checks.worker_config import Order
from ft_run.launcher.machine.locality import near, near_cpus

SHORT = Budget(0.01, 0.01, 0.01, 0.01, 0.01, 64 << 20, 8 << 20)


class FakeGpu:
    """A clock of the host, and one of a GPU that carries out what is launched on it."""

    def __init__(self):
        self.host_s = 0.0
        self.gpu_s = 0.0
        self.blocks = False

    def launch(self, seconds):
        """Work for the GPU; the host goes on at once."""
        self.gpu_s = max(self.gpu_s, self.host_s) + seconds

    def event(self, **_):
        gpu = self

        class Event:
            def record(self):
                self.at_s = max(gpu.gpu_s, gpu.host_s)

            def query(self):
                gpu.host_s += 0.003  # a quota lets the host look now and then only
                return not gpu.blocks and gpu.host_s >= self.at_s

            def elapsed_time(self, other):
                return (other.at_s - self.at_s) * 1e3

        return Event()


@pytest.fixture
def lab(monkeypatch):
    """A fake GPU under the timer. Torch is imported by the tests that use it."""
    from ft_run.checks import gpu_timer

    gpu = FakeGpu()
    monkeypatch.setattr(gpu_timer, "_event", gpu.event)
    monkeypatch.setattr(gpu_timer, "_keep_busy", lambda: gpu.launch(0.0004))
    monkeypatch.setattr("time.sleep", lambda _: None)
    return SimpleNamespace(
        gpu=gpu,
        TimedOutError=gpu_timer.TimedOutError,
        timer=lambda at=1e9: gpu_timer.GpuTimer(at, clock=lambda: gpu.host_s),
    )


def test_time_is_the_gpus_and_not_that_of_a_host_which_is_held_back(lab):
    assert lab.timer().time_s(lambda: lab.gpu.launch(0.001), "work") == pytest.approx(0.001)
    assert lab.gpu.host_s >= 0.003


def test_the_time_in_which_the_host_launches_does_not_count(lab):
    def launch():
        lab.gpu.host_s += 0.0003
        lab.gpu.launch(0.001)

    assert lab.timer().time_s(launch, "work") == pytest.approx(0.001)


def test_a_gpu_that_blocks_is_given_up_with_the_name_of_the_work(lab):
    lab.gpu.blocks = True
    with pytest.raises(lab.TimedOutError, match=r"an all-reduce of 9 bytes timed out after 2 s"):
        lab.timer(2.0).finish("an all-reduce of 9 bytes")


def test_the_boost_clock_of_the_beginning_does_not_count():
    """Pieces become slower as the device gets warm; one at the end is held up by something else."""
    times = iter([1.0, 1.0, 1.0, 1.0, 1.3, 1.4, 1.4, 9.0])
    looks = []
    found = settled_time_s(
        lambda: next(times),
        8.0,
        after=lambda: looks.append(0),
        clock=lambda: float(len(looks)),
    )
    assert found == pytest.approx(1.4)
    assert len(looks) == 8, "each piece is looked at"


def on_gpu(lab, monkeypatch, fault=""):
    """A probe of the fake GPU; its matrices are in host memory."""
    import torch
    from ft_run.checks import measure_device

    faults = ActiveFaults(parse_faults(fault), "n0", 0, Phase.SOLO)
    cpu = torch.device("cpu")
    probe = measure_device.DeviceProbe(cpu, SHORT, 0.3, faults, lab.timer())
    probe._on_gpu = True
    monkeypatch.setattr(measure_device, "_GPU_SIZES", (64, 128))
    products = []
    mm = torch.mm

    def multiply(left, right, *, out):
        mm(left, right, out=out)
        lab.gpu.launch(0.01)
        products.append(out)

    monkeypatch.setattr(torch, "mm", multiply)
    clock = lambda: lab.gpu.host_s  # noqa: E731 - what is replaced is a function's default
    settled = settled_time_s
    monkeypatch.setattr(
        measure_device,
        "settled_time_s",
        lambda timed, budget_s, **more: settled(timed, budget_s, clock=clock, **more),
    )
    return probe, products, measure_device


def test_a_cpu_quota_lowers_no_figure_of_a_gpu(lab, monkeypatch):
    probe, _, _ = on_gpu(lab, monkeypatch)
    assert probe.compute_tflops() == pytest.approx(2 * 64**3 / 0.01 / 1e12)


@pytest.mark.parametrize("hip", [None, "6.2"])
def test_each_product_is_compared_and_bit_by_bit_where_that_is_promised(lab, monkeypatch, hip):
    import torch

    monkeypatch.setattr(torch.version, "hip", hip)
    probe, products, measure_device = on_gpu(lab, monkeypatch)
    mm = torch.mm
    wrong_by = 1e-30 if hip is None else 1000.0

    def wrong_once(left, right, *, out):
        mm(left, right, out=out)
        if len(products) == 7:
            out[3, 3] = wrong_by

    monkeypatch.setattr(torch, "mm", wrong_once)
    with pytest.raises(measure_device.WrongValueError) as error:
        probe.compute_tflops()
    assert len(products) == 7, "seen at once, though all later ones are right"
    assert ("differs between two runs" in str(error.value)) is (hip is None)


def test_a_slow_device_can_be_injected(lab, monkeypatch):
    probe, _, _ = on_gpu(lab, monkeypatch, "slow-compute=3")
    assert probe.compute_tflops() == pytest.approx(2 * 64**3 / 0.03 / 1e12)


# --- where a copy starts ---------------------------------------------------------------------


def test_a_copy_starts_on_the_cpus_near_its_gpu(tmp_path):
    mine = os.sched_getaffinity(0)
    first = min(mine)
    folder = tmp_path / "sys/bus/pci/devices/0000:1a:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text(f"{first},5000-5003\n")
    assert near_cpus("0000:1a:00.0", tmp_path) == {first, 5000, 5001, 5002, 5003}
    with near("0000:1a:00.0", tmp_path):
        assert os.sched_getaffinity(0) == {first}
    (folder / "local_cpulist").write_text("5000\n")
    for address in ("0000:1a:00.0", "0000:ff:00.0", None):
        with near(address, tmp_path):
            assert os.sched_getaffinity(0) == mine
    assert os.sched_getaffinity(0) == mine


def test_the_memory_that_is_copied_from_is_near_the_gpu(lab, monkeypatch):
    probe, _, measure_device = on_gpu(lab, monkeypatch)
    where = []

    @contextmanager
    def near_noted(address):
        where.append(address)
        yield
        where.append("back")

    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1A, pci_device_id=0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: place)
    monkeypatch.setattr(measure_device, "near", near_noted)
    monkeypatch.setattr(probe, "_near_copy_gb_per_s", lambda: where.append("copies"))
    probe.copy_gb_per_s()
    assert where == ["0000:1a:00.0", "copies", "back"]


# --- the size of a large all-reduce ----------------------------------------------------------


class LazyGroup:
    """Two ranks of NCCL: the first call of all takes 3 s, the first of each size half of one."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.seen = set()
        self.sizes = []

    def all_reduce(self, tensor, op=None):
        size = tensor.nbytes
        slow_s = 3.0 if not self.seen else 0.5 if size not in self.seen else 0.0
        self.seen.add(size)
        self.sizes.append(size)
        self.gpu.host_s += slow_s  # the host makes the communicator
        self.gpu.launch(20e-6 + size / 400e9)
        if op is None:
            tensor.mul_(3)  # rank 0 has added its number, and rank 1 the double


@pytest.fixture
def group(lab, monkeypatch):
    """A group that has formed, of which this is rank 0."""
    import torch
    from ft_run.checks import measure_group

    lazy = LazyGroup(lab.gpu)
    monkeypatch.setattr("torch.distributed.all_reduce", lazy.all_reduce)
    monkeypatch.setattr(measure_group, "time", SimpleNamespace(perf_counter=lambda: lab.gpu.host_s))
    order = Order(1, "pair", "light", 0, 2, "127.0.0.1", 1, 9.0)
    faults = ActiveFaults((), "n0", 0, Phase.PAIR)
    device, timer = torch.device("cpu"), lab.timer()
    probe = measure_group.GroupProbe(order, 0, 9.0, device, SHORT, faults, timer)
    probe._on_gpu = True
    return SimpleNamespace(probe=probe, lazy=lazy, module=measure_group, torch=torch, gpu=lab.gpu)


def test_a_communicator_that_takes_seconds_does_not_end_the_search_for_a_size(group):
    largest = BUDGETS[Level.LIGHT].message_max_bytes
    assert largest == SHORT.message_max_bytes
    found = group.probe.bandwidth_gb_per_s()
    assert max(group.lazy.sizes) == largest
    assert found == pytest.approx(largest / (20e-6 + largest / 400e9) / 1e9)


def test_small_all_reduces_are_timed_in_a_row_and_each_is_verified(group, monkeypatch):
    def all_reduce(tensor, op=None):
        group.gpu.host_s += 15e-6  # its launch
        group.lazy.all_reduce(tensor, op)
        if group.lazy.sizes.count(32) == wrong:
            tensor[3] = 0

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    wrong = -1
    assert group.probe.latency_us() == pytest.approx(20, rel=1e-3)
    wrong = group.lazy.sizes.count(32) + 7
    with pytest.raises(Exception, match=r"of 32 bytes among 2 workers returned 1 wrong value\(s\)"):
        group.probe.latency_us()


def test_what_goes_wrong_is_told_where_a_group_of_gpus_would_not_come_down(group, monkeypatch):
    """``destroy_process_group`` waits for kernels; a broken context raises in ``empty_cache``."""
    calls = []
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: calls.append("waits"))
    monkeypatch.setattr(group.torch.cuda, "empty_cache", lambda: calls.append("raises"))
    reason = ValueError("unhandled cuda error")
    group.probe.__exit__(ValueError, reason, None)
    assert calls == []


def test_a_collective_that_hangs_is_named(group):
    group.probe._timer = type(group.probe._timer)(2.0, clock=lambda: group.gpu.host_s)
    group.gpu.blocks = True
    with pytest.raises(Exception, match=r"all-reduce of 32 bytes among 2 workers timed out|memory"):
        group.probe.latency_us()


def test_nccl_is_told_its_device_where_torch_knows_how(group):
    assert group.probe._bound_device() == {"device_id": group.torch.device("cpu")}
    group.probe._on_gpu = False
    assert group.probe._bound_device() == {}
