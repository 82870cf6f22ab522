"""The project's dataclasses are those of the standard library, in less time."""

import copy
import dataclasses
import math
import pickle
import subprocess
import sys
from typing import Any

import pytest
from ft_run import values


@values.dataclass(frozen=True, slots=True)
class Ours:
    """The two have the same qualified name, so that what they print can be compared."""

    name: str
    number: float = 1.5
    items: list[int] = values.field(default_factory=list)
    remark: str = values.field(default="", compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    name: str
    number: float = 1.5
    items: list[int] = dataclasses.field(default_factory=list)
    remark: str = dataclasses.field(default="", compare=False)


@values.dataclass(slots=True)
class Changing:
    count: int = 0


@values.dataclass(frozen=True, slots=True)
class One:
    number: float


@values.dataclass(frozen=True, slots=True)
class Nothing:
    pass


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("a",), {}),
        (("a", 2.0, [1], "r"), {}),
        ((), {"remark": "r", "name": "a"}),
        ((), {}),
        (("a",), {"name": "b"}),
        (("a",), {"unknown": 1}),
        (("a", 1.0, [], "r", "more"), {}),
    ],
)
def test_instances_are_made_as_by_the_standard_library(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    def made(kind: Any) -> str:
        try:
            return repr(kind(*args, **kwargs))
        except TypeError as error:
            return str(error)

    assert made(Ours) == made(Theirs).replace("Theirs", "Ours")


def test_every_instance_has_its_own_default() -> None:
    assert Ours("a").items is not Ours("a").items


def test_instances_are_equal_as_in_the_standard_library() -> None:
    for kind in (Ours, Theirs):
        one: Any = kind("a", math.nan)
        assert one == kind("a", math.nan)
        assert one == kind("a", math.nan, remark="other")
        assert one != kind("b", math.nan)
        assert one != ("a", math.nan, [], "")
    assert One(math.nan) == One(math.nan)
    assert One(1.0) != One(2.0)
    assert Nothing() == Nothing()
    assert Changing(1) == Changing(1)


def test_what_is_frozen_can_be_hashed_and_the_other_cannot() -> None:
    assert len({One(1.0), One(1.0), One(2.0)}) == 2
    assert len({Nothing(), Nothing()}) == 1
    with pytest.raises(TypeError, match="unhashable type: 'Changing'"):
        hash(Changing())


def test_nothing_is_set_in_what_is_frozen() -> None:
    one: Any = One(1.0)
    for name in ("number", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, 2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.number
    changing: Any = Changing()
    changing.count = 3
    assert changing == Changing(3)
    with pytest.raises(AttributeError):
        changing.other = 3


def test_a_copy_has_other_values_in_some_fields() -> None:
    one = Ours("a", remark="r")
    assert repr(values.replace(one, number=2.0)) == repr(Ours("a", 2.0, [], "r"))
    assert values.replace(Theirs("a"), name="b") == Theirs("b")
    with pytest.raises(TypeError, match="unknown"):
        values.replace(one, unknown=1)  # type: ignore[call-arg]  # this is what is tested


def test_instances_are_copied_and_pickled() -> None:
    one = Ours("a", 2.0, [1], "r")
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert repr(other) == repr(one)


def test_the_functions_of_the_standard_library_take_them() -> None:
    assert dataclasses.is_dataclass(Ours)
    for ours, theirs in zip(dataclasses.fields(Ours), dataclasses.fields(Theirs), strict=True):
        for about in ("name", "type", "default", "default_factory", "compare", "init"):
            assert getattr(ours, about) == getattr(theirs, about), about
    assert dataclasses.asdict(Ours("a")) == dataclasses.asdict(Theirs("a"))
    assert dataclasses.replace(Ours("a"), name="b") == Ours("b")


def test_matching_by_position() -> None:
    match Ours("a", 2.0):
        case Ours(name, number):
            assert (name, number) == ("a", 2.0)


def test_fields_are_inherited_as_in_the_standard_library() -> None:
    @values.dataclass(frozen=True, slots=True)
    class OurChild(Ours):
        more: int = 0

    @dataclasses.dataclass(frozen=True, slots=True)
    class TheirChild(Theirs):
        more: int = 0

    args = ("a", 2.0, [1], "r", 3)
    assert repr(OurChild(*args)).split("(")[1] == repr(TheirChild(*args)).split("(")[1]
    assert OurChild("a", more=1) == OurChild("a", more=1, remark="r") != OurChild("a")
    assert values.replace(OurChild(*args), name="b").more == 3
    ours, theirs = dataclasses.fields(OurChild), dataclasses.fields(TheirChild)
    assert [one.name for one in ours] == [one.name for one in theirs] == [*values.names(OurChild)]
    with pytest.raises(AttributeError):
        object.__setattr__(OurChild(*args), "other", 1)


def test_a_family_needs_no_decorator() -> None:
    class Family(metaclass=values.Values):
        @property
        def words(self) -> str:
            return "none"

    class Member(Family):
        number: int
        words = "of one"

    assert repr(Member(1)).endswith(".Member(number=1)")
    assert (Family().words, Member(1).words) == ("none", "of one")
    assert values.is_value(Member)
    assert Member(1) == Member(1) != Member(2)
    one: Any = Member(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.other = 1
    assert not hasattr(one, "__dict__")


def test_a_class_that_needs_more_is_refused() -> None:
    class Base:
        pass

    class Derived(Base):
        pass

    class Late:
        def __post_init__(self) -> None:
            pass

    class Plain:
        pass

    for kind in (Derived, Late):
        with pytest.raises(TypeError, match="standard dataclasses"):
            values.dataclass(frozen=True, slots=True)(kind)
    with pytest.raises(TypeError, match="standard dataclasses"):
        values.dataclass(frozen=True, slots=False)(Plain)


def test_a_class_costs_no_compilation_until_it_has_an_instance() -> None:
    program = (
        "import sys\n"
        "from ft_run.rendezvous.protocol import messages\n"
        "assert 'dataclasses' not in sys.modules\n"
        "before = messages.Heard.__init__\n"
        "heard = messages.Heard(*range(len(messages.Heard.__match_args__)))\n"
        "assert messages.Heard.__init__ is not before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_class_is_prepared_once_and_makes_the_same() -> None:
    @values.dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2

    values.prepare(Point)
    made = Point.__init__
    assert made is not values._first_init
    assert Point(1) == Point(1, 2)
    values.prepare(Point)
    assert Point.__init__ is made
