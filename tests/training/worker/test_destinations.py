"""Destinations of checkpoints on the page, to which a script can write anything."""

import json
import zlib

import pytest
from ft_run.training.worker import snapshot_page


@pytest.mark.parametrize(
    "data",
    [
        *(b"[", b"7", b"[" * 3_000, b"[[1]]", b'[["x",["/a",1,true]]]', b"[[[],[]]]"),
        *(
            json.dumps([[1, fields]]).encode()
            for fields in (["/a", "1", True], [1, 1, True], ["/a"])
        ),
    ],
)
def test_wrong_json_with_a_right_checksum_is_no_destination(data: bytes) -> None:
    page = memoryview(bytearray(snapshot_page.PAGE_BYTES))
    start = snapshot_page._DESTINATIONS_START
    whole = snapshot_page._LENGTH.pack(len(data), zlib.crc32(data)) + data
    page[start : start + len(whole)] = whole
    assert snapshot_page.read_destinations(page) == {}
