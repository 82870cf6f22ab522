"""Measurements of ``--auto-tune advise`` on a node: a few reads with each progress report."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...events.tuning import TuningMeasured
from ...rendezvous.protocol.messages import Assignment
from ..machine.accelerators import Device
from ..machine.cpu_limit import allowed_cpus
from ..machine.idle_cpus import IdleCpus
from ..machine.numa import find_gpu_node, read_topology
from ..processes.worker_watch import WorkerWatch

_PROCESSOR = 36
"""Index in ``/proc/PID/stat``, after the name, of the CPU on which a thread ran last (field 39)."""


class Measuring:
    """Reads how the workers of this node use its CPUs and wait for data."""

    def __init__(
        self, environ: Mapping[str, str], devices: Sequence[Device], root: Path = Path("/")
    ) -> None:
        self._proc, self._idle = root / "proc", IdleCpus(root)
        threads = environ.get("OMP_NUM_THREADS", "")
        self._omp_num_threads = int(threads) if threads.isdecimal() else 0
        topology = read_topology(root)
        self._socket_of = topology.socket_of
        mask = allowed_cpus()
        self._near: list[frozenset[int]] = []
        """The sockets of each GPU; empty if unknown, or no CPU there is allowed."""
        for device in devices:
            node = find_gpu_node(device.pci_address, root)
            cpus = topology.node_cpus.get(node, frozenset()) if node is not None else frozenset()
            self._near.append(frozenset(topology.socket_of[cpu] for cpu in cpus & mask))
        self._samples = self._far = 0

    def measure(
        self,
        at: Assignment,
        watches: Sequence[WorkerWatch | None],
        training_s: float,
        steps: int,
    ) -> TuningMeasured:
        """Return the sums of this round."""
        loading = [watch.loading() for watch in watches if watch is not None]
        slowest = max(filter(None, loading), key=lambda one: one.wait_s, default=None)
        first = watches[0].computing() if watches[0] is not None else None
        self._sample(watches)
        return TuningMeasured(
            at.round,
            at.node_rank,
            workers=len(watches),
            training_s=training_s,
            steps=steps,
            batches=slowest.batches if slowest is not None else 0,
            wait_s=round(slowest.wait_s, 6) if slowest is not None else 0.0,
            first_wait_s=round(slowest.first_wait_s, 6) if slowest is not None else 0.0,
            squares_s2=round(slowest.squares_s2, 9) if slowest is not None else 0.0,
            num_workers=slowest.processes if slowest is not None else 0,
            prefetch_factor=slowest.prefetch if slowest is not None else 0,
            cpus=self._idle.cpus,
            cores=self._idle.cores,
            idle_cpu_s=round(self._idle.read(), 3),
            worker_cpu_s=round(first.cpu_s, 3) if first is not None else 0.0,
            worker_s=round(first.seconds, 3) if first is not None else 0.0,
            omp_num_threads=self._omp_num_threads,
            uses_device=first is not None and first.uses_device,
            samples=self._samples,
            far_samples=self._far,
        )

    def _sample(self, watches: Sequence[WorkerWatch | None]) -> None:
        """Count the workers that run on a different socket than their GPU."""
        for watch, near in zip(watches, self._near, strict=False):
            computing = watch.computing() if watch is not None and near else None
            if computing is None:
                continue
            with suppress(OSError, ValueError, IndexError):
                text = (self._proc / str(computing.pid) / "stat").read_text()
                cpu = int(text.rpartition(")")[2].split()[_PROCESSOR])
                if cpu in self._socket_of:
                    self._samples += 1
                    self._far += self._socket_of[cpu] not in near
