"""The layout of the page of a watched worker."""

from collections import Counter

from ft_run.training.worker import imported, page_layout, phases

AREAS = {
    "sums of phases": (8 * page_layout.SUMS, 8 * page_layout.PHASES_MAX),
    "names": (page_layout.NAMES_AT, page_layout.PHASES_MAX * page_layout.NAME_BYTES),
    "backends": (page_layout.BACKENDS_AT, page_layout.BACKENDS_BYTES),
    "trial": (page_layout.TRIAL_AT, page_layout.TRIAL_BYTES),
}
"""Offset and size."""
OTHERS = {"PAGE_BYTES", "PHASES_MAX", "NAME_BYTES", "SUMS", "NAMES_AT"}
OTHERS |= {"BACKENDS_AT", "BACKENDS_BYTES", "TRIAL_AT", "TRIAL_BYTES", "TYPE_CHECKING"}


def words() -> dict[str, int]:
    """Return the indexes of single words by name."""
    numbers = vars(page_layout).items()
    return {name: one for name, one in numbers if isinstance(one, int) and name not in OTHERS}


def test_each_word_has_one_name() -> None:
    assert set(Counter(words().values()).values()) == {1}


def test_words_and_areas_do_not_overlap() -> None:
    used = Counter(byte for word in words().values() for byte in range(8 * word, 8 * word + 8))
    for at, size in AREAS.values():
        used.update(range(at, at + size))
    assert set(used.values()) == {1}
    assert max(used) < page_layout.PAGE_BYTES


def test_areas_are_large_enough() -> None:
    assert len(imported.FORKABLE) <= 64
    assert len(phases.NAMES) < page_layout.PHASES_MAX
