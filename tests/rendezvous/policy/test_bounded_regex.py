"""Expressions mean what they mean to Python's ``re``, and take no time to speak of."""

import random
import re
import time
import warnings

import pytest
from ft_run.rendezvous.policy.bounded_regex import Expression, UnboundedError, read

ATOMS = (
    *("a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\d", "é", "E", "_", " ", r"\s", "[a-c]"),
    *(r"[^\Wb]", r"\.", "[]a]", r"[\]a-]", r"\D", r"\x41", r"[\u0041-C]", "\u212a"),
)
GUARDS = ("^", "$", r"\b", r"\B", r"\A", r"\Z")
REPETITIONS = ("*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{0,1}?", "{2,}", "{0}")
GROUPS = ("(", "(?:", "(?i:", "(?a:", "(?s:", "(?i-s:", "(?m:")
LETTERS = "aabbcEeéÉ_ .1Ak\u212a"


def random_expression(chance: random.Random, depth: int = 0) -> str:
    """Return something that looks like a regular expression."""

    def piece() -> str:
        if chance.random() < 0.1:
            return chance.choice(GUARDS)
        if depth < 4 and chance.random() < 0.4:
            text = f"{chance.choice(GROUPS)}{random_expression(chance, depth + 1)})"
        else:
            text = chance.choice(ATOMS)
        return text + (chance.choice(REPETITIONS) if chance.random() < 0.4 else "")

    branches = range(chance.choice((1, 1, 1, 2, 3)))
    return "|".join("".join(piece() for _ in range(chance.randrange(4))) for _ in branches)


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_what_re_finds(seed: int) -> None:
    chance = random.Random(seed)
    hits = misses = 0
    for _ in range(300):
        text = chance.choice(("", "", "(?i)", "(?a)", "(?s)")) + random_expression(chance)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a nested set, say: what is right is up to re
            ours, theirs = Expression(text), re.compile(text)
        for _ in range(8):
            line = "".join(chance.choices(LETTERS, k=chance.randrange(1, 9)))
            found = theirs.search(line) is not None
            assert ours.search(line) is found, (text, line)
            hits, misses = hits + found, misses + (not found)
    assert min(hits, misses) > 400


@pytest.mark.parametrize(
    "text",
    [
        "(a|a)*b", "(a|b|ab)*c", "(a+)+$b", "(a*)*b", "(a?){20}a{20}b", "a?" * 60 + "a" * 60 + "b",
        "(.*)*x", "a*a*a*a*a*a*a*a*b", "(a|aa)+$b", ".*.*.*.*=.*b",
    ],
)  # fmt: skip
def test_no_expression_takes_for_ever(text: str) -> None:
    began = time.process_time()
    for length in range(400, 500, 20):
        assert not read(text).search("a" * length)

    # Not a matter of the machine's speed: tried way by way, this would take years.
    assert time.process_time() - began < 60


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "nothing",
    ["(){4000000000}", "(?:){4000000000,}", "((){60000}){60000}", "(?i:(a{0}){4000000000})"],
)
def test_what_is_empty_is_not_written_out(nothing: str) -> None:
    # Not a matter of the machine's speed: written out, this would take hours.
    expression = read(f"^b{nothing}c$")
    assert expression.search("bc")
    assert not expression.search("bac")


def test_what_was_met_is_forgotten_when_it_becomes_too_much() -> None:
    expression = Expression(r"\bx[a-f]*y")
    chance = random.Random(1)
    for _ in range(40):
        expression.search("".join(map(chr, chance.sample(range(0x4E00, 0x9FFF), 200))))
    assert len(expression._met) <= 5000
    assert expression.search("?xaby")
    assert not expression.search("axaby")


def test_one_text_is_read_once() -> None:
    assert read("a+b") is read("a+b")
    assert Expression("a") == Expression("a") != Expression("b")
    assert len({Expression("a"), Expression("a")}) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r"(?P<x>a)(?P=x)", "a look back at a group"),
        (r"(a)?(?(1)b|c)", "a look back at a group"),
        ("(?=a)", "a look ahead or behind"),
        ("(?<!a)b", "a look ahead or behind"),
        ("a{1001}", "too large"),
    ],
)
def test_what_cannot_be_bounded(text: str, why: str) -> None:
    with pytest.raises(UnboundedError, match=why):
        read(text)


@pytest.mark.parametrize("text", ["(", "a{99999999999}", "[z-a]", "(?P<1>a)"])
def test_what_is_no_expression_of_python(text: str) -> None:
    with pytest.raises((re.error, OverflowError)):
        read(text)
