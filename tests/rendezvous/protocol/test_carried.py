"""Values that outlive a round: the newest of each name applies."""

from ft_run.rendezvous.protocol.carried import CarriedValue, changes, merged, value_of

OLD, NEW = CarriedValue("a", 8, 1), CarriedValue("a", 4, 2, 8)
OTHER = CarriedValue("b", 1)


def test_the_newest_value_of_each_name_applies() -> None:
    assert merged((OLD,), (NEW, OTHER)) == (NEW, OTHER)
    assert merged((NEW, OTHER), (OLD,)) == (NEW, OTHER)


def test_own_values_apply_if_both_are_of_the_same_change() -> None:
    assert merged((OLD,), (CarriedValue("a", 3, 1),)) == (OLD,)


def test_the_number_of_values_is_bounded() -> None:
    many = tuple(CarriedValue(str(number), 1, 1) for number in range(100))
    assert len(merged((OLD,), many)) == 16
    assert merged(merged((OLD,), many), (NEW,))[0] == NEW


def test_values_are_found_by_name_and_by_change() -> None:
    assert value_of((OLD, OTHER), "b") == OTHER
    assert value_of((OLD,), "b") is None
    assert changes((OLD, OTHER)) == (OLD,)
