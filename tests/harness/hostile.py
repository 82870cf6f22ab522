"""Messages that no agent sends, and bytes that are none: for attacks on a master."""

import random
from typing import Any

from ft_run.protos import rendezvous_pb2 as pb
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_EDGES = {
    FieldDescriptor.TYPE_UINT32: (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), -1, 0, 1, 255, 2**31 - 1),
    FieldDescriptor.TYPE_SINT64: (-1, 0, 2**62, -(2**63), 2**53, 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**32, 2**63, 2**64 - 1),
    FieldDescriptor.TYPE_DOUBLE: (0.0, -1.0, 1e9, 1e308, float("inf"), float("nan")),
    FieldDescriptor.TYPE_BOOL: (False, True),
}
_TEXTS = ("", "x", "\x1b]0;title\x07", "\x00", "é", "[" * 1000, "{}", "a\nb", "x" * 5000, "%s{}")
_MOST_ENTRIES = 20


class Hostile:
    """A source of messages: reproducible, of known names and numbers here and there."""

    def __init__(self, seed: int, **known: tuple[Any, ...]) -> None:
        """Create a source.

        Args:
            seed: of the random numbers.
            known: values by the name of a field, which is then mostly one of these.
        """
        self.random = random.Random(seed)
        self._known = known

    def message(self, *kinds: str) -> bytes:
        """Return a message of one of these kinds (fields of ``NodeMessage``), or of any."""
        bodies = kinds or tuple(field.name for field in pb.NodeMessage.DESCRIPTOR.fields)
        message = pb.NodeMessage()
        body = getattr(message, self.random.choice(bodies))
        body.SetInParent()
        self.fill(body)
        return message.SerializeToString()

    def garbage(self) -> bytes:
        """Return random bytes, or a message with some of them changed or missing."""
        if self.random.random() < 0.5:
            return self.random.randbytes(self.random.randrange(200))
        data = bytearray(self.message())
        for _ in range(self.random.randrange(1, 4)):
            if data:
                data[self.random.randrange(len(data))] = self.random.randrange(256)
        return bytes(data[: self.random.randrange(len(data) + 1)])

    def fill(self, message: Message) -> None:
        """Give every field of a message a value, or leave it out."""
        # Most messages are odd in few places: one that is odd in all gets through no door.
        oddness = self.random.choice((0.0, 0.02, 0.1, 0.5))
        for field in message.DESCRIPTOR.fields:
            if self.random.random() < oddness / 2:
                continue
            is_repeated = isinstance(getattr(type(message)(), field.name), _repeated_types())
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                self._fill_part(message, field, is_repeated)
            elif is_repeated:
                count = self.random.choice((0, 0, 1, 3, _MOST_ENTRIES))
                values = [self._value(field, oddness) for _ in range(count)]
                getattr(message, field.name).extend(values)
            else:
                setattr(message, field.name, self._value(field, oddness))

    def _fill_part(self, message: Message, field: Any, is_repeated: bool) -> None:
        part: Any = getattr(message, field.name)
        if is_repeated:
            for _ in range(self.random.choice((0, 0, 0, 1, 2, _MOST_ENTRIES))):
                self.fill(part.add())
        elif self._known.get(field.name) != () and self._is_there(field):
            part.SetInParent()
            self.fill(part)

    def _is_there(self, field: Any) -> bool:
        is_optional = field.containing_oneof is not None
        return not is_optional or self.random.random() < 0.5

    def _value(self, field: Any, oddness: float) -> Any:
        is_odd = self.random.random() < oddness
        known = self._known.get(field.name, ())
        if known and not is_odd:
            return self.random.choice(known)
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.random.choice(_TEXTS) if is_odd else str(self.random.randrange(50))
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self.random.choice([value.number for value in field.enum_type.values[1:]])
        if field.type in (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_DOUBLE) or is_odd:
            return self.random.choice(_EDGES[field.type][: 6 if is_odd else 2])
        return self.random.choice((0, 1, 2, 3))


def _repeated_types() -> tuple[type, ...]:
    form = pb.Claim()
    return (type(form.failures), type(pb.Past().excluded))
