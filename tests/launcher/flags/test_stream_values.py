"""The grammar of --redirects, --tee and the filters."""

import pytest
from ft_run.launcher.flags.stream_values import Streams, filters, local_ranks, streams
from ft_run.launcher.flags.values import BadValue
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", Streams.NONE), ("1", Streams.OUT), ("2", Streams.ERR), ("3", Streams.BOTH)],
)
def test_a_digit_holds_for_every_local_rank(text: str, expected: Streams) -> None:
    selection = streams(text)
    assert selection.of(0) is expected
    assert selection.of(123) is expected


def test_pairs_hold_for_the_local_ranks_they_name_also_above_nine() -> None:
    selection = streams("0:1,1:0,10:3,255:2")
    assert selection.of(0) is Streams.OUT
    assert selection.of(1) is Streams.NONE
    assert selection.of(2) is Streams.NONE
    assert selection.of(10) is Streams.BOTH
    assert selection.of(255) is Streams.ERR


def test_of_a_repeated_local_rank_the_last_pair_counts() -> None:
    assert streams("0:1,0:2").of(0) is Streams.ERR


@pytest.mark.parametrize(
    "text",
    ["", " ", "4", "-1", "33", "0:4", "0:", ":1", "0:1,", ",0:1", "0:1:1", "a:1", "-1:1", "٣",
     "٣:1", "0:٣", "0=1", "1,3", "100000:1"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match=r"0 \(none\), 1 \(stdout\).*e.g. 0:1,10:3"):
        streams(text)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(0, 65535), st.sampled_from(Streams), min_size=1, max_size=8))
def test_every_selection_by_local_rank_can_be_written(selection: dict[int, Streams]) -> None:
    text = ",".join(f"{rank}:{int(which)}" for rank, which in selection.items())
    assert streams(text).by_local_rank == selection


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), (" ", None), ("0", {0}), ("0,1,2", {0, 1, 2}), ("10, 0,10", {0, 10})],
)
def test_local_ranks_filter(text: str, expected: set[int] | None) -> None:
    assert local_ranks(text) == expected


@pytest.mark.parametrize("text", ["a", "0,", ",", "0;1", "-1", "1.5", "٣"])
def test_a_local_ranks_filter_of_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match=r"ranks separated by commas, e\.g\. 0,17"):
        local_ranks(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("apple", ("apple",)),
        ("apple,orange", ("apple", "orange")),
        ("a,,b", ("a,b",)),
        ("a,,,b", ("a,", "b")),
        ("a,,b,c d", ("a,b", "c d")),
        (",,", (",",)),
        ("apple,", ("apple",)),
        (",", ()),
    ],
)
def test_filters_are_split_at_commas_and_a_double_comma_is_one(
    text: str, expected: tuple[str, ...]
) -> None:
    assert filters(text) == expected
