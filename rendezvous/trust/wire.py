"""Opens channels and ports: in plain text, or with mutual TLS."""

from collections.abc import Sequence

import grpc
import grpc.aio

from ..protocol.endpoint import Endpoint, join_host_port
from .credentials import FileTrust, Trust
from .key_pair import KeyPair

Options = Sequence[tuple[str, int]]

_ATTEMPT, _ATTEMPT_MS = "grpc.min_reconnect_backoff_ms", 2_000
"""Time limit of a connection attempt. A handshake costs the master some 0.75 ms of CPU time: when
all nodes of a large job connect simultaneously, the last ones wait, and a handshake that they
abandon is wasted. A longer limit would delay the attempt at a host's new address."""


def open_channel(
    target: Endpoint, options: Options, trust: Trust | None, name: str = ""
) -> grpc.aio.Channel:
    """Return a channel to a master; it connects when it is used.

    ``trust`` is None for plain text, which a master with a token refuses; ``name`` is the host name
    in the master's certificate, if the target is an address.
    """
    if trust is None:
        return grpc.aio.insecure_channel(str(target), options=list(options))
    mine: list[tuple[str, int | str]] = [(_ATTEMPT, _ATTEMPT_MS)]
    if wire_name := trust.wire_name or (name if name != target.host else ""):
        mine.append(("grpc.ssl_target_name_override", wire_name))
    rest = (option for option in options if option[0] != _ATTEMPT)
    shown = trust.current()
    credentials = grpc.ssl_channel_credentials(shown.authority, shown.key, shown.certificate)
    return grpc.aio.secure_channel(str(target), credentials, options=[*mine, *rest])


def listen(server: grpc.aio.Server, address: Endpoint, trust: Trust | None) -> int:
    """Make a server listen at an address, or raise ``RuntimeError``; return the port."""
    where = join_host_port(address.host, address.port)
    if trust is None:
        return server.add_insecure_port(where)
    return server.add_secure_port(where, _server_credentials(trust))


def _server_credentials(trust: Trust) -> grpc.ServerCredentials:
    shown = trust.current()
    if not isinstance(trust, FileTrust):
        return grpc.ssl_server_credentials(
            [(shown.key, shown.certificate)], shown.authority, require_client_auth=True
        )

    def if_changed() -> grpc.ServerCertificateConfiguration | None:
        """Check the files, for each connection."""
        nonlocal shown
        before, shown = shown, trust.current()
        return _configuration(shown) if shown != before else None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        if_changed,  # type: ignore[arg-type]  # None: unchanged, says its documentation
        True,
    )


def _configuration(shown: KeyPair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(shown.key, shown.certificate)], shown.authority
    )
