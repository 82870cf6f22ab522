"""What a check worker does without torch."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ft_run.checks.records import Phase, record_from_json
from ft_run.checks.worker import (
    CheckError,
    CheckWorker,
    has_gpu,
    plausible,
)
from ft_run.checks.worker_config import REASON_MAX, CheckWorkerConfig, Delivery, Order, first_words


class SeenGpus:
    """A ``torch.cuda`` that sees so many devices."""

    def __init__(self, count, error=""):
        self._count = count
        self._error = error

    def init(self):
        if self._error:
            raise RuntimeError(self._error)

    def is_available(self):
        return self._count > 0

    def device_count(self):
        return self._count


def facts_order(number, unix_time_s=0.0):
    return Delivery(Order(number, "facts", "light", 0, 1, "", 0, 10.0), unix_time_s)


def test_an_order_reaches_a_worker_as_it_came():
    order = Order(7, "pair", "full", 2, 4, "fd00::1", 29500, 12.5)
    delivery = Delivery(order, 1.8e9)
    line = delivery.to_json()
    assert "\n" not in line
    assert Delivery.from_json(line) == delivery


def test_a_post_survives_the_command_line():
    config = CheckWorkerConfig(
        *("n0", 1, 2, 0, "auto", "--nproc-per-node=gpu", {"nvidia.com/gpu": "by NVML: 2"}, "0,1"),
        *("/logs", None),
    )
    assert CheckWorkerConfig.from_json(config.to_json()) == config


@pytest.fixture
def answers():
    """Have a worker carry out orders until end-of-file; return its answers, split in three."""

    def run(config, *orders):
        orders_from, orders_to = os.pipe()
        answers_from, answers_to = os.pipe()
        os.write(orders_to, "".join(order.to_json() + "\n" for order in orders).encode())
        os.close(orders_to)
        CheckWorker(config, orders_from, answers_to).run()
        os.close(answers_to)
        with os.fdopen(answers_from, encoding="utf-8") as file:
            lines = [line.split(" ", 2) for line in file]
        return [line for line in lines if line[0] == "answer"]

    return run


def test_facts_are_answered_and_end_of_file_ends_it(answers, tmp_path):
    config = CheckWorkerConfig("n0", 0, 1, 0, "cpu", log_dir=str(tmp_path))
    first, second = answers(config, facts_order(7), facts_order(8, unix_time_s=1.8e9))
    assert (first[1], second[1]) == ("7", "8")
    record = record_from_json(second[2])
    assert (record.node, record.phase, record.failure) == ("n0", Phase.FACTS, "")
    assert record.facts["local_world_size"] == 1
    assert record.facts["unix_time_s"] == 1.8e9, "the time at which the order came"


def test_a_fact_that_rules_the_node_out_is_the_failure(answers, tmp_path):
    file = tmp_path / "file"
    file.touch()
    (answer,) = answers(
        CheckWorkerConfig("n0", 0, 1, 0, "cpu", log_dir=f"{file}/logs"), facts_order(1)
    )
    failure = f"the log directory cannot be used: {file} is not writable"
    assert record_from_json(answer[2]).failure == failure


def test_a_fault_that_is_misspelt_fails_the_check(answers, monkeypatch):
    monkeypatch.setenv("FT_RUN_CHECK_FAULT", "hnag")
    order = Order(1, "solo", "light", 0, 1, "", 0, 60.0)
    (answer,) = answers(CheckWorkerConfig("n0", 0, 1, 0, "cpu"), Delivery(order))
    failure = "invalid fault 'hnag' in FT_RUN_CHECK_FAULT: expected one of fail, exit, hang"
    assert failure in record_from_json(answer[2]).failure


@pytest.mark.parametrize(
    ("accelerator", "seen", "local_rank", "answer"),
    [
        ("auto", 0, 0, False),
        ("auto", 2, 1, True),
        ("cpu", 2, 0, False),
        ("nvidia.com/gpu", 2, 1, True),
        ("ascend-npu", 0, 0, False),
    ],
)
def test_what_is_checked_on_which_machine(accelerator, seen, local_rank, answer):
    config = CheckWorkerConfig("n0", local_rank, 2, local_rank, accelerator)
    assert has_gpu(config, SeenGpus(seen), "nvidia.com/gpu") is answer


@pytest.mark.parametrize("option", ["--accelerator=amd.com/gpu", "--nproc-per-node=gpu"])
@pytest.mark.parametrize(
    ("built_for", "why"),
    [(None, "was built without GPU support"), ("amd.com/gpu", "finds no working GPU")],
)
def test_a_gpu_that_was_asked_for_is_not_replaced_by_a_cpu(option, built_for, why):
    with pytest.raises(CheckError) as error:
        has_gpu(CheckWorkerConfig("n0", 0, 1, 0, gpus_asked_by=option), SeenGpus(0), built_for)
    assert str(error.value) == (
        f"{option} requires GPUs, but this torch {why} (--accelerator=cpu checks CPUs)"
    )


def test_gpus_that_torch_was_built_for_are_not_replaced_by_a_cpu():
    config = CheckWorkerConfig(
        "n0", 0, 1, 0, gpus_shown={"nvidia.com/gpu": "NVIDIA GPUs by NVML: 8"}
    )
    with pytest.raises(CheckError) as error:
        has_gpu(config, SeenGpus(0), "nvidia.com/gpu")
    assert str(error.value) == (
        "GPUs found (NVIDIA GPUs by NVML: 8), but this torch, which was built for them, finds no "
        "working GPU (--accelerator=cpu checks CPUs)"
    )
    assert has_gpu(config, SeenGpus(8), "nvidia.com/gpu")
    for built_for in (None, "amd.com/gpu"):
        assert not has_gpu(config, SeenGpus(0), built_for)
    assert not has_gpu(replace(config, accelerator="cpu"), SeenGpus(0), "nvidia.com/gpu")


def test_fewer_gpus_than_workers():
    with pytest.raises(CheckError, match="no GPU for local rank 1: 1 visible"):
        has_gpu(CheckWorkerConfig("n0", 1, 2, 1), SeenGpus(1), "nvidia.com/gpu")


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_metric_that_no_measurement_can_give(value):
    assert plausible({"compute_tflops": 1.0}) == {"compute_tflops": 1.0}
    with pytest.raises(CheckError, match="latency_us was measured as"):
        plausible({"latency_us": value})


def test_why_cuda_does_not_start_is_a_part_of_the_reason():
    """As torch says it where the fabric manager of an NVSwitch machine is down."""
    said = (
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
        " NumCudaDevices() that might have already set an error? Error 802: system not yet"
        " initialized"
    )
    config = CheckWorkerConfig("n0", 0, 1, 0, gpus_asked_by="--nproc-per-node=gpu")
    with pytest.raises(CheckError) as error:
        has_gpu(config, SeenGpus(0, said), "nvidia.com/gpu")
    assert str(error.value) == (
        "--nproc-per-node=gpu requires GPUs, but this torch finds no working GPU: Error 802:"
        " system not yet initialized (is nvidia-fabricmanager running?)"
        " (--accelerator=cpu checks CPUs)"
    )


def test_the_last_error_of_nccl_is_a_part_of_the_reason():
    """As torch 2.13 words it."""
    text = (
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system"
        " error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n"
        "Last error:\nsocketPollConnect: connect to 10.0.0.7<4242> returned\n Connection refused\n"
    )
    words = first_words(text)
    assert words.startswith("NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77")
    assert words.endswith(
        " (last error: socketPollConnect: connect to 10.0.0.7<4242> returned Connection refused)"
    )
    assert len(words) < REASON_MAX
    assert len(first_words("x" * 999 + "\nLast error:\nrefused")) < REASON_MAX, "or its end is cut"
    assert first_words("one\ntwo") == "one"
    assert first_words("") == ""


GPU_THAT_FAILS = """
import os, sys, threading, time
from ft_run.checks import worker
from ft_run.checks.worker_config import CheckWorkerConfig, Delivery, Order

class Failing(worker.CheckWorker):
    def _import_torch(self): self._has_torch = True
    def _solo(self, order):
        self._enter("memory")
        self._on_gpu = True
        raise RuntimeError("an illegal memory access")

def never(): time.sleep(600)
threading._register_atexit(never)  # what waits for kernels when an interpreter ends in order
orders, to = os.pipe()
line = Delivery(Order(1, "solo", "light", 0, 1, "", 0, 1.0)).to_json().encode() + b"\\n"
os.write(to, line * 2)
Failing(CheckWorkerConfig("n0", 0, 1, 0), orders, 1).run()
os._exit(0)
"""


def test_a_worker_whose_gpu_fails_tells_it_and_ends():
    """In the GPU's place: an exception, and an end in order that never comes."""
    done = subprocess.run(
        [sys.executable, "-c", GPU_THAT_FAILS], capture_output=True, text=True, check=True
    )
    _, last = done.stdout.splitlines()
    word, number, record = last.split(" ", 2)
    assert (word, number) == ("farewell", "1")
    failure = "memory: RuntimeError: an illegal memory access"
    assert record_from_json(record).failure == failure


def test_an_order_that_has_waited_has_less_time_left():
    delivery = facts_order(1, unix_time_s=time.time() - 4)
    assert 4 <= delivery.age_s <= 10
    assert facts_order(1, unix_time_s=0.0).age_s == 0
    assert facts_order(1, unix_time_s=1.0).age_s == 10


@pytest.mark.parametrize("is_mig", [False, True])
def test_copies_begin_together_and_heat_is_looked_at_right_after_the_product(monkeypatch, is_mig):
    """In the GPU's place: a probe and a group that note what is asked of them."""
    from ft_run.checks import measure_device, measure_group, worker

    did, met_on = [], []

    class Noted:
        def __init__(self, *_):
            pass

        def __getattr__(self, name):
            def note():
                did.append(name)
                return 1.0

            return note

    @contextmanager
    def group(*args):
        met_on.append(args[3].type)
        yield Noted()

    def heat(uuid):
        did.append(uuid)
        return "heat"

    device = SimpleNamespace(type="cuda")
    monkeypatch.setattr(measure_device, "DeviceProbe", Noted)
    monkeypatch.setattr(worker, "throttled_by", heat)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(uuid="a1"))
    orders, answers = os.pipe(), os.pipe()
    config = CheckWorkerConfig("n0", 3, 8, 3, devices="MIG-a,MIG-b" if is_mig else None)
    one = CheckWorker(config, orders[0], answers[1])
    monkeypatch.setattr(one, "_begin", lambda _: (device, None))
    monkeypatch.setattr(measure_group, "GroupProbe", group)
    metrics, facts = one._solo(Order(1, "solo", "light", 3, 8, "", 0, 10.0))
    assert did == [
        *("compute_tflops", "GPU-a1", "memory_gb_per_s", "meet", "copy_gb_per_s"),
        *([] if is_mig else ["bandwidth_gb_per_s"]),
        "close",
    ]
    assert met_on == ["cpu" if is_mig else "cuda"]
    assert ("intra_gb_per_s" in metrics) is not is_mig
    assert facts == {"local_rank3_throttled_by": "heat"}
    one._orders.close()
    for fd in (orders[1], *answers):
        os.close(fd)
