"""Digests of tensors."""

import struct
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ft_run.training.checkpoints import values as module
from ft_run.training.checkpoints.values import digest, digests
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def expected(data: bytes) -> int:
    """Return the digest of bytes, by its definition."""
    data += b"\0" * (-len(data) % 8)
    words = [int(word) for (word,) in struct.iter_unpack("<q", data)]
    total = sum(words) % (1 << 64)
    return total - (1 << 64) if total >= 1 << 63 else total


def data_of(tensor: torch.Tensor) -> bytes:
    """Return the elements of a tensor in their logical order."""
    flat = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(flat.view(-1).view(torch.uint8).tolist())


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    base = torch.randn(7, 5, 3)
    return [
        torch.randn(1000),
        torch.randn(3),
        torch.tensor(2.5),
        torch.tensor(True),
        torch.zeros(0),
        torch.zeros(0, 3).t(),
        torch.full((100,), -1, dtype=torch.int64),
        torch.full((3,), 1 << 62, dtype=torch.int64),
        torch.randn(13).to(torch.bfloat16),
        torch.randn(13).to(torch.float8_e4m3fn),
        torch.rand(11) > 0.5,
        torch.randn(5, dtype=torch.complex64),
        torch.randn(5, dtype=torch.complex64).conj(),
        base.permute(2, 0, 1),
        base[:, 1],
        base.view(-1)[1:],
        torch.randint(0, 200, (33,), dtype=torch.uint8)[3:],
        torch.tensor([1.0, 2.0])[1],
        torch.tensor(3.0).expand(4, 5),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.nn.Parameter(torch.randn(4, 4)),
    ]


@pytest.mark.parametrize("index", range(len(tensors())))
def test_the_digest_is_the_sum_of_words(index: int) -> None:
    tensor = tensors()[index]
    assert digest(tensor).item() == expected(data_of(tensor))


def test_digests_are_those_of_each_tensor() -> None:
    assert digests(tensors()) == [digest(tensor).item() for tensor in tensors()]
    assert digests([]) == []


def test_pieces_of_a_large_transposed_tensor_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = torch.randn(3, 50, dtype=torch.float32).t()[:, :3]
    monkeypatch.setattr(module, "_DIGEST_BYTES", 100)
    assert digest(tensor).item() == expected(data_of(tensor))


def test_a_flipped_bit_changes_the_digest() -> None:
    tensor = torch.randn(1001)
    before = digest(tensor).item()
    for place in (0, 500, 1000):
        data = tensor.view(torch.int32)
        data[place] ^= 1 << 30
        assert digest(tensor).item() != before
        data[place] ^= 1 << 30
    assert digest(tensor).item() == before


def test_inference_tensors_and_deterministic_algorithms() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
    torch.use_deterministic_algorithms(True)
    try:
        assert digest(tensor).item() == expected(data_of(torch.ones(3)))
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_default_device_plays_no_part() -> None:
    torch.set_default_device("meta")
    try:
        assert digest(torch.ones(3, device="cpu")).item() == expected(struct.pack("<3f", 1, 1, 1))
    finally:
        torch.set_default_device(None)


def test_of_a_sharded_tensor_it_is_this_ranks_part(tmp_path: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        whole = torch.randn(6, 4)
        sharded = distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Shard(0)])
        assert digest(sharded).item() == digest(whole).item()
    finally:
        dist.destroy_process_group()


class _Wrapped(torch.Tensor):
    """A tensor whose data is in two others, like those of 8-bit optimizers."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> "_Wrapped":
        made: Any = torch.Tensor._make_wrapper_subclass(cls, codes.shape)
        made.codes, made.scale = codes, scale
        return made  # type: ignore[no-any-return]  # torch has no type for it

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, *_: Any) -> "_Wrapped":
        return _Wrapped(parts["codes"], parts["scale"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own has other types
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(func)


def test_of_a_wrapper_it_is_that_of_its_parts() -> None:
    codes, scale = torch.arange(16, dtype=torch.uint8), torch.tensor([2.5])
    assert digest(_Wrapped(codes, scale)).item() == sum(digests([codes, scale]))
    assert digest(_Wrapped(codes, scale * 2)).item() != sum(digests([codes, scale]))


def without_storage() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(4, device="meta"), without_storage(), torch.eye(3).to_sparse()],
    ids=["meta", "without storage", "sparse"],
)
def test_a_tensor_without_data_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^invalid tensor of type Tensor .*dense one"):
        digest(tensor)
