"""Corrects the checksums in a snapshot's file, whose tensors were overwritten in place.

Each value is a ``torch.save`` archive: a zip file without compression. torch ignores the checksums;
``unzip -t`` does not.
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
"""Marks a number of 4 GiB or more, which is in the extra field instead."""
_CRC = struct.Struct("<I")


def fix_checksums(container: memoryview) -> None:
    """Correct the checksums of all files in an archive.

    Raises:
        ValueError: it is not an archive.
    """
    for at, flags, size, local in _entries(container):
        start = local + _LOCAL_BYTES + sum(_LOCAL_LENGTHS.unpack_from(container, local + 26))
        crc = zlib.crc32(container[start : start + size])
        _CRC.pack_into(container, at + _FLAGS_CRC_BYTES, crc)
        # With a descriptor after the data, the local header has no checksum.
        _CRC.pack_into(container, start + size + 4 if flags & _HAS_DESCRIPTOR else local + 14, crc)


def _entries(container: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each file the offset of its entry, flags, size and the offset of its header."""
    tail = bytes(container[max(0, len(container) - _END_BYTES - _COMMENT_MAX) :])
    found = tail.rfind(_END)
    if found < 0:
        raise ValueError("a value in the snapshot is not a torch.save archive")
    end = len(container) - len(tail) + found
    count, _, at = struct.unpack_from("<HII", container, end + 10)
    if at == _ABSENT or count == 0xFFFF:
        # The zip64 locator just before has the offset of the zip64 record.
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
    """Return the size and header offset of a file from its zip64 extra field."""
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
