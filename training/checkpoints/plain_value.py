"""Dictionaries and lists of plain values in the state of a script."""

from copy import deepcopy
from typing import Any

import torch

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.Tensor)


class PlainValue:
    """A dictionary or list, which is restored in place: the script keeps the same object."""

    def __init__(self, name: str, value: "dict[Any, Any] | list[Any]") -> None:
        """Check the values.

        Raises:
            TypeError: there are others than numbers, strings, tensors, and collections of them.
        """
        wrong = _first_wrong(value)
        if wrong is not None:
            raise TypeError(
                f"invalid value of type {type(wrong).__name__} in state[{name!r}]: expected "
                "numbers, strings, tensors, and dictionaries, lists and tuples of them; an object "
                "with state_dict() and load_state_dict() needs an entry of its own in the state"
            )
        self._value = value

    def state_dict(self) -> dict[str, Any]:
        """Return a copy."""
        # DCP stores a tuple as one value, whatever it has inside.
        return {"value": (deepcopy(self._value),)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it, if it was saved."""
        if not state:
            return
        (found,) = state["value"]
        self._value.clear()
        if isinstance(self._value, dict):
            self._value.update(found)
        else:
            self._value.extend(found)


def _first_wrong(value: Any) -> Any:
    """Return a value that is not plain; None: all are."""
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        inner = list(value)
    else:
        return None if isinstance(value, _PLAIN) else value
    return next((one for one in map(_first_wrong, inner) if one is not None), None)
