"""``seeded``: random augmentation that depends on the sample alone."""

from contextlib import nullcontext
from typing import Any, TypeVar

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..random_numbers import generators_kept, seed_generators
from .hashing import key_of
from .sample import epoch_of, index_of

Item = TypeVar("Item", covariant=True)  # torch's name
_ITEMS = 1
"""Distinguishes seeds of items from those of steps, which also come from three numbers."""


def seeded(dataset: "Dataset[Item]", seed: int = 0) -> "Seeded[Item]":
    """Return a dataset whose random items depend on the index and the epoch alone.

    Before each item, Python's ``random``, NumPy's global generator and torch's are seeded from
    (seed, epoch, index), regardless of the process that makes the item. Use it as the outermost
    dataset, for the loader and for ``ElasticBatches``, which passes the epoch. The dataset's own
    generators are not seeded.

    Args:
        dataset: dataset with ``__getitem__`` and ``__len__``.
        seed: seed of the items.

    Raises:
        TypeError: If it is an ``IterableDataset``.
    """
    return Seeded(dataset, seed)


class Seeded(Dataset[Item]):
    """See ``seeded``."""

    def __init__(self, dataset: "Dataset[Item]", seed: int) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError(
                "invalid value of type IterableDataset for dataset: its items have no index: "
                "expected a dataset with __getitem__"
            )
        self.dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        size: Any = self.dataset
        return len(size)

    def __getitem__(self, sample: int) -> Item:
        """Return the item of a sample of ``ElasticBatches``, or of an index in epoch 0."""
        sample = int(sample)  # operators of NumPy's or torch's numbers have 64 bits
        index, epoch = index_of(sample), epoch_of(sample)
        # In the main process, training uses the same generators; a worker has its own.
        with nullcontext() if get_worker_info() is not None else generators_kept():
            seed_generators(key_of(self._seed, epoch, index, _ITEMS), with_devices=False)
            return self.dataset[index]
