"""Reports nodes whose system information differs from the others. No I/O, no clock."""

from collections.abc import Iterator, Mapping
from typing import Final

from .records import CLOCK_FACT, Fact

COMPARED_FACTS: Final = (
    *("ft_run", "python", "torch", "cuda", "hip", "nccl", "driver", "script_sha256"),
    *("gpus", "gpu_models", "nvlinks_up", "ib_ports_active"),
)

_COMPARED: Final = frozenset(COMPARED_FACTS)

CLOCKS_APART_S: Final = 10.0
"""The clock difference to report. An order reaches all nodes at about the same time: a node that
does not answer for a few seconds is lost (``node_timeout``), so its transit explains less."""


def different_facts(facts: Mapping[str, Mapping[str, Fact]]) -> Iterator[tuple[str, str]]:
    """Yield a node and the value, possibly a missing one, in which it differs from most others.

    Without a majority value, the right one is unknown: every node is reported, except the nodes of
    a group that is larger than any other. Nodes without any value are not compared: an earlier
    leader has received theirs.
    """
    facts = {node: mine for node, mine in facts.items() if not mine.keys().isdisjoint(_COMPARED)}
    for name in COMPARED_FACTS:
        groups: dict[Fact | None, list[str]] = {}
        for node, mine in facts.items():
            groups.setdefault(mine.get(name), []).append(node)
        if len(groups) > 1:
            yield from _different_nodes(name, groups)


def _different_nodes(
    name: str, groups: Mapping[Fact | None, list[str]]
) -> Iterator[tuple[str, str]]:
    first, second, *_ = ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    largest = len(first[1])
    has_majority = 2 * largest > sum(map(len, groups.values()))
    for value, nodes in ranked:
        if len(nodes) == largest > len(second[1]):
            continue
        other, others = second if value == first[0] else first
        where = "most other nodes" if has_majority else others[0]
        words = f"{name} is {_word(value)} here and {_word(other)} on {where}"
        yield from ((node, words) for node in nodes)


def _word(value: Fact | None) -> str:
    return "missing" if value is None else str(value)


def different_clocks(facts: Mapping[str, Mapping[str, Fact]]) -> Iterator[tuple[str, str]]:
    """Yield a node and how far its clock is from the median, the farther of two middle clocks.

    All clocks must have been read at the same time.
    """
    by_node = {
        node: float(value)
        for node, mine in facts.items()
        if isinstance(value := mine.get(CLOCK_FACT), int | float)
    }
    clocks = sorted(by_node.values())
    medians = clocks[(len(clocks) - 1) // 2 : len(clocks) // 2 + 1]
    for node, own in by_node.items():
        apart = max((own - median for median in medians), key=abs)
        if abs(apart) > CLOCKS_APART_S:
            side = "ahead of" if apart > 0 else "behind"
            yield node, f"its clock is {abs(apart):.0f} s {side} the others'"
