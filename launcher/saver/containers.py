"""Mends the checksums in a snapshot's file: its tensors are overwritten in place, they are not.

Each value is a container of ``torch.save``, which is a zip archive without compression. torch does
not look at the checksums; ``unzip -t`` does.
"""

import struct
import zlib
from collections.abc import Iterator

_END = b"PK\x05\x06"
_END_BYTES = 22
_COMMENT_MAX = 65535
_ENTRY = struct.Struct("<4s2x2xHH4x III HHH 8x I")
_ENTRY_MAGIC = b"PK\x01\x02"
_FLAGS_CRC_BYTES = 16
_LOCAL_BYTES = 30
_LOCAL_LENGTHS = struct.Struct("<HH")
_HAS_DESCRIPTOR = 0x8
_ABSENT = 0xFFFFFFFF
"""A number that is in the extra field instead, as it is 4 GiB or more."""
_CRC = struct.Struct("<I")


def mend(container: memoryview) -> None:
    """Correct the checksums of all files in a container.

    Raises:
        ValueError: it is no container.
    """
    for at, flags, size, local in _entries(container):
        start = local + _LOCAL_BYTES + sum(_LOCAL_LENGTHS.unpack_from(container, local + 26))
        crc = zlib.crc32(container[start : start + size])
        _CRC.pack_into(container, at + _FLAGS_CRC_BYTES, crc)
        # With a descriptor, which follows the data, the local header has none.
        _CRC.pack_into(container, start + size + 4 if flags & _HAS_DESCRIPTOR else local + 14, crc)


def _entries(container: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield of each file where its entry is, its flags, its size, and where its header is."""
    tail = bytes(container[max(0, len(container) - _END_BYTES - _COMMENT_MAX) :])
    found = tail.rfind(_END)
    if found < 0:
        raise ValueError("a value in the snapshot is not a torch.save archive")
    end = len(container) - len(tail) + found
    count, _, at = struct.unpack_from("<HII", container, end + 10)
    if at == _ABSENT or count == 0xFFFF:
        # The last number but one of the record before says where there is a larger one.
        (large,) = struct.unpack_from("<Q", container, end - 12)
        count, _, at = struct.unpack_from("<QQQ", container, large + 32)
    for _ in range(count):
        magic, flags, _, _, size, whole, name, extra, comment, local = _ENTRY.unpack_from(
            container, at
        )
        if magic != _ENTRY_MAGIC:
            raise ValueError("a value in the snapshot is not a torch.save archive")
        begin = at + 46 + name
        if _ABSENT in (size, whole, local):
            size, local = _large(container[begin : begin + extra], size, whole, local)
        yield at, flags, size, local
        at = begin + extra + comment


def _large(extra: memoryview, size: int, whole: int, local: int) -> tuple[int, int]:
    """Return the size and the place of a file's header, where they need more than 32 bits."""
    at = 0
    while at < len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            if whole == _ABSENT:
                next(numbers)
            if size == _ABSENT:
                size = next(numbers)
            return size, next(numbers) if local == _ABSENT else local
        at += 4 + length
    raise ValueError("a value in the snapshot is not a torch.save archive")
