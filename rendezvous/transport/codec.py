"""Conversion between the plain values of ``messages`` and their protobuf forms.

Both have the same names and fields, so the conversion is derived from the classes once, at import.
Messages from the network are validated here: unknown enum values and missing parts raise
``WireError``.
"""

import enum
import types
import typing
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct, StructMeta

from ...protos import rendezvous_pb2 as pb
from ..protocol.lease_messages import LeaseAnswer, LeaseAsk, SuccessionSpec
from ..protocol.messages import MasterMessage, NodeMessage, RoomMessage
from ..work.messages import WorkGrant, WorkReport

T = typing.TypeVar("T")


class WireError(Exception):
    """Raised if a message from the network is invalid."""


_Encode = Callable[[Any], Any]
_Decode = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _text(value: str) -> str:
    """Return a string that protobuf accepts: invalid UTF-8 becomes visible escapes."""
    return value if value.isascii() else value.encode(errors="backslashreplace").decode()


class _Codec:
    """Converts one class and the protobuf message of the same name."""

    def __init__(self, plain: type[Struct]) -> None:
        self.plain = plain
        self.proto: Callable[..., Message] = getattr(pb, plain.__name__)
        self._last: tuple[Any, Any] = (None, None)
        """The last value and its result, because one message is often sent to thousands of
        nodes."""
        self._as_it_is: list[str] = []
        self._converted: list[tuple[str, _Encode]] = []
        self._optional: dict[str, _Encode] = {}
        """Fields that can be None."""
        self._decoded: list[tuple[str, _Decode, bool]] = []
        """With whether the field can be absent; others have at least protobuf's default."""
        hints = typing.get_type_hints(plain)
        for name in plain.__struct_fields__:
            hint = hints[name]
            is_optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
            if is_optional:
                (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
            encode, decode = _converters(hint)
            self._decoded.append((name, decode, is_optional or isinstance(hint, StructMeta)))
            if is_optional:
                self._optional[name] = encode
            elif encode is _same:
                self._as_it_is.append(name)
            else:
                self._converted.append((name, encode))

    def encode(self, value: Any) -> Any:
        last, encoded = self._last
        if last is value:
            return encoded
        given = {name: getattr(value, name) for name in self._as_it_is}
        for name, encode in self._converted:
            given[name] = encode(getattr(value, name))
        for name, encode in self._optional.items():
            inner = getattr(value, name)
            if inner is not None:
                given[name] = encode(inner)
        message = self.proto(**given)
        self._last = (value, message)
        return message

    def decode(self, message: Any) -> Any:
        given = {}
        for name, decode, may_be_absent in self._decoded:
            if not may_be_absent or message.HasField(name):
                given[name] = decode(getattr(message, name))
            elif name in self._optional:
                given[name] = None
            else:
                raise WireError(f"{self.plain.__name__} without {name}")
        return self.plain(**given)


_CODECS: dict[type, _Codec] = {}


def _codec(plain: type) -> _Codec:
    codec = _CODECS.get(plain)
    if codec is None:
        codec = _CODECS[plain] = _Codec(plain)
    return codec


def _converters(hint: Any) -> tuple[_Encode, _Decode]:
    if typing.get_origin(hint) is tuple:
        encode, decode = _converters(typing.get_args(hint)[0])
        return (lambda items: [encode(i) for i in items], lambda items: tuple(map(decode, items)))
    if issubclass(hint, enum.Enum):
        return (lambda member: member.value, _enum_decoder(hint))
    if isinstance(hint, StructMeta):
        codec = _codec(hint)
        return (codec.encode, codec.decode)
    return (_text if hint is str else _same, _same)


def _enum_decoder(kind: type[enum.Enum]) -> _Decode:
    members = {member.value: member for member in kind}

    def decode(value: int) -> enum.Enum:
        try:
            return members[value]
        except KeyError:
            raise WireError(f"unknown {kind.__name__} {value}") from None

    return decode


class _Envelope:
    """Converts the union of the messages of one side, a ``oneof`` named ``body`` in protobuf."""

    def __init__(
        self, wrapper: Callable[..., Message], union: Any, *others: type[RoomMessage]
    ) -> None:
        self._wrapper = wrapper
        plains = [*(one for one in typing.get_args(union) if one is not RoomMessage), *others]
        self._names = {plain: plain.__name__.lower() for plain in plains}
        self._codecs = {plain.__name__.lower(): _codec(plain) for plain in plains}
        self._last: tuple[Any, bytes] = (None, b"")

    def encode(self, value: Any) -> bytes:
        last, data = self._last
        if last is not value:
            name = self._names[type(value)]
            data = self._wrapper(**{name: self._codecs[name].encode(value)}).SerializeToString()
            self._last = (value, data)
        return data

    def decode(self, data: bytes) -> Any:
        message: Any = self._wrapper()
        message.ParseFromString(data)
        name = message.WhichOneof("body")
        if name is None:
            raise WireError("an empty message, or one from a newer version")
        return self._codecs[name].decode(getattr(message, name))


_NODE = _Envelope(pb.NodeMessage, NodeMessage, WorkReport)
_MASTER = _Envelope(pb.MasterMessage, MasterMessage, WorkGrant)


def encode_node(message: NodeMessage) -> bytes:
    """Serialize a node's message."""
    return _NODE.encode(message)


def decode_node(data: bytes) -> NodeMessage:
    """Parse a node's message.

    Raises:
        WireError: If it is invalid.
        google.protobuf.message.DecodeError: If it is not protobuf.
    """
    message: NodeMessage = _NODE.decode(data)
    return message


def part_of(value: object) -> Any:
    """Return a value as a part of a message, for ``CopyFrom``."""
    return _codec(type(value)).encode(value)


def from_part(kind: type[T], message: Any) -> T:
    """Convert the result of ``part_of`` back; raises like ``decode_node``."""
    value: T = _codec(kind).decode(message)
    return value


def encode(message: LeaseAsk | LeaseAnswer | SuccessionSpec) -> bytes:
    """Serialize a message between listed hosts."""
    data: bytes = part_of(message).SerializeToString()
    return data


def decode(kind: type[T], data: bytes) -> T:
    """Parse a result of ``encode`` of this kind; raises like ``decode_node``."""
    message = _codec(kind).proto()
    message.ParseFromString(data)
    return from_part(kind, message)


def encode_master(message: MasterMessage) -> bytes:
    """Serialize a message of the master."""
    return _MASTER.encode(message)


def decode_master(data: bytes) -> MasterMessage:
    """Parse a message of the master; raises like ``decode_node``."""
    message: MasterMessage = _MASTER.decode(data)
    return message
