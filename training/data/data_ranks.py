"""The ranks with different samples, and sums over them."""

import os
from typing import Any

import torch
import torch.distributed as dist


class DataRanks:
    """The ranks of data parallelism: all of the job, or those of a mesh."""

    def __init__(self, mesh: Any = None) -> None:
        """Look up this rank.

        ``mesh``: ``DeviceMesh`` of the dimensions over which samples differ; None for all ranks.

        Raises:
            RuntimeError: If the job has several ranks, and no process group was initialized.
            ValueError: If ``mesh`` is not a mesh with this rank.
        """
        self.mesh = mesh
        self.rank, self.size = 0, 1
        self.is_first = True
        """Whether this is rank 0 of the job."""
        is_initialized = dist.is_available() and dist.is_initialized()
        if is_initialized:
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self.is_first = self.rank == 0
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError(
                "ElasticBatches was created before torch.distributed.init_process_group(): in a "
                "job of several ranks, create it afterwards"
            )
        self._groups: list[Any] = []
        if mesh is None and is_initialized:
            self._groups = [dist.group.WORLD]
        elif mesh is not None:
            coordinate = getattr(mesh, "get_coordinate", lambda: None)()
            if coordinate is None:
                raise ValueError(
                    f"invalid value {mesh!r} for mesh: expected a DeviceMesh that has this rank, "
                    "e.g. world_mesh['dp']"
                )
            self.rank, self.size = 0, mesh.size()
            for place, length in zip(coordinate, mesh.mesh.shape, strict=True):
                self.rank = self.rank * length + place
            self._groups = [mesh.get_group(number) for number in range(mesh.ndim)]

    def gather(self, number: float) -> list[float]:
        """Return the number of each rank, by rank; all ranks call it together."""
        mine = [0.0] * self.size
        mine[self.rank] = number
        return self._sums(mine)

    def total(self, number: float) -> float:
        """Return the sum of a number over all ranks, which call it together."""
        return self._sums([number])[0]

    def _sums(self, numbers: list[float]) -> list[float]:
        if self.size == 1:
            return numbers
        values = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        for group in self._groups:
            values = values.to(_device_of(group))
            dist.all_reduce(values, group=group)
        return [float(value) for value in values.tolist()]


def _device_of(group: Any) -> torch.device:
    """Return the device of a group's collectives: NCCL does not support the CPU."""
    if "gloo" in str(dist.get_backend_config(group)) or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
