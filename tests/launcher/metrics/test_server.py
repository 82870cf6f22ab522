"""The endpoint of ``--metrics``, asked over real connections."""

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.events.event import Event
from ft_run.events.metrics import MetricsListening
from ft_run.launcher.metrics import catalogue as c
from ft_run.launcher.metrics import opening, server
from ft_run.launcher.metrics.catalogue import Samples
from ft_run.launcher.metrics.on_loop import NotReadyError
from ft_run.launcher.metrics.server import MetricsServer
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.trust.credentials import TokenTrust
from ft_run.rendezvous.trust.key_pair import WIRE_NAME
from ft_run.rendezvous.trust.source import TrustOptions
from ft_run.rendezvous.trust.token import Token, new_token

LOOPBACK = Endpoint("127.0.0.1", 0)
ANYWHERE = Endpoint("0.0.0.0", 0)


def samples() -> Samples:
    found = Samples()
    found.put(c.ROUND, 3)
    found.put(c.RESTARTS, 2, "node_lost")
    return found


@pytest.fixture
def serving() -> Iterator[MetricsServer]:
    one = MetricsServer(LOOPBACK)
    one.serve(samples)
    yield one
    one.close()


def port_of(one: MetricsServer) -> int:
    return int(one.url.rpartition(":")[2].partition("/")[0])


def get(port: int, path: str = "/metrics", **headers: str | bytes) -> tuple[int, str, str]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request("GET", path, headers=headers)
    reply = client.getresponse()
    text = reply.read().decode()
    client.close()
    return reply.status, reply.getheader("Content-Type", ""), text


def test_a_scrape(serving: MetricsServer) -> None:
    status, kind, text = get(port_of(serving))
    assert status == 200
    assert kind.startswith("text/plain; version=")
    assert "# TYPE ftrun_restarts_total counter" in text
    assert 'ftrun_restarts_total{cause="node_lost"} 2.0' in text
    assert text.index("ftrun_restarts_total") < text.index("ftrun_round 3.0")


def test_openmetrics_for_those_who_ask(serving: MetricsServer) -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    status, kind, text = get(port_of(serving), Accept=accept)
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_another_path(serving: MetricsServer) -> None:
    assert get(port_of(serving), "/")[0] == 404
    assert get(port_of(serving), "/metrics?name=x")[0] == 200


def test_values_that_cannot_be_read() -> None:
    def fails() -> Samples:
        raise NotReadyError("this process ends")

    one = MetricsServer(LOOPBACK)
    one.serve(fails)
    status, _, text = get(port_of(one))
    one.close()
    assert (status, text) == (503, "503: this process ends\n")


def test_silent_clients_keep_no_scrape_waiting(serving: MetricsServer) -> None:
    port = port_of(serving)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    assert get(port)[0] == 200
    for one in silent:
        one.close()


def test_a_crowd_is_turned_away_and_forgotten(
    serving: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 0.2)
    port = port_of(serving)
    crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for one in crowd:
        one.settimeout(30)
        assert one.recv(1) == b""  # closed: at once, or when it was silent for too long
        one.close()
    assert get(port)[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.0\r\nX-Slow: z"])
def test_clients_that_send_no_whole_request_block_no_scrape(
    serving: MetricsServer, sent: bytes
) -> None:
    """They are never silent for long, so that no timeout ends them."""
    port = port_of(serving)
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * server._CLIENTS_MAX)]
    for one in slow:
        with suppress(OSError):
            one.sendall(sent)
    for _ in range(5):
        assert get(port)[0] == 200
        for one in slow:
            with suppress(OSError):
                one.sendall(b"z")
    for one in slow:
        one.close()


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=\xfe",
        "application/openmetrics-text;version=" + "9" * 5000,
        "application/openmetrics-text;version=1.0.0;escaping=\xfe",
        "text/plain;version=\xb2",
        "text/plain;version=1..0",
        ";;=,=;version",
    ],
)
def test_any_accept_header_is_answered(serving: MetricsServer, accept: str) -> None:
    status, kind, text = get(port_of(serving), Accept=accept.encode("latin-1"))
    assert status == 200
    assert kind.startswith(("text/plain; version=", "application/openmetrics-text; version="))
    assert "ftrun_round 3.0" in text


def test_its_end_is_quick_and_frees_the_port(serving: MetricsServer) -> None:
    port = port_of(serving)
    serving.close()
    with pytest.raises(ConnectionRefusedError):
        get(port)
    assert not [one for one in threading.enumerate() if one.name == "ft-run metrics"]


# --- opening ---------------------------------------------------------------------------------


def opened(address: Endpoint, trust: TrustOptions | None = None) -> tuple[object, list[Event]]:
    events: list[Event] = []
    found = opening.open_metrics(address, trust, events.append)
    if found is not None:
        found.serve(samples)
    return found, events


def test_where_it_listens_is_an_event() -> None:
    one, events = opened(LOOPBACK)
    assert isinstance(one, MetricsServer)
    assert events == [MetricsListening(one.url, has_token=False)]
    one.close()


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot serve metrics at 192\.0\.2\.77:0: "):
        opened(Endpoint("192.0.2.77", 0))
    with pytest.raises(UsageError, match=r"no\.invalid:9400: the host is unknown"):
        opened(Endpoint("no.invalid", 9400))


def test_a_missing_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'ft-run\[metrics\]'"):
        opened(LOOPBACK)


def https(one: MetricsServer, ca: bytes, **headers: str) -> int:
    """Ask as Prometheus does with ``ca_file`` and ``server_name``."""
    context = ssl.create_default_context(cadata=ca.decode())
    with (
        socket.create_connection(("127.0.0.1", port_of(one)), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=WIRE_NAME) as connection,
    ):
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"GET /metrics HTTP/1.1\r\n{lines}\r\n".encode())
        return int(connection.recv(65536).split()[1])


def test_other_hosts_need_the_token() -> None:
    token = new_token()
    one, events = opened(ANYWHERE, TrustOptions(token=token))
    assert isinstance(one, MetricsServer)
    assert events == [MetricsListening(one.url, has_token=True)]
    assert one.url.startswith("https://0.0.0.0:")
    ca = TokenTrust(token).ca  # each process makes its own certificate of the same authority
    assert https(one, ca) == 401
    assert https(one, ca, Authorization="Bearer " + "0" * 64) == 401
    assert https(one, ca, Authorization=f"Bearer {token.reveal()}") == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        https(one, TokenTrust(new_token()).ca)
    with pytest.raises((http.client.HTTPException, OSError)):
        get(port_of(one))  # plain text
    one.close()


def test_on_loopback_the_token_is_not_needed() -> None:
    one, events = opened(LOOPBACK, TrustOptions(token=Token("a" * 64)))
    assert isinstance(one, MetricsServer)
    assert events == [MetricsListening(one.url, has_token=False)]
    assert get(port_of(one))[0] == 200
    one.close()


def test_with_certificates_other_hosts_need_one(tmp_path: Path) -> None:
    trust = TokenTrust(new_token())
    pair = trust._key_pair
    paths = [tmp_path / name for name in ("cert", "key", "ca")]
    for path, text in zip(paths, (pair.certificate, pair.key, pair.authority), strict=True):
        path.write_bytes(text)
        path.chmod(0o600)
    cert, key, ca = map(str, paths)
    one, events = opened(ANYWHERE, TrustOptions(tls_cert=cert, tls_key=key, tls_ca=ca))
    assert isinstance(one, MetricsServer)
    assert events == [MetricsListening(one.url, has_token=False)]
    with pytest.raises((OSError, IndexError)):
        https(one, pair.authority)
    context = ssl.create_default_context(cadata=pair.authority.decode())
    context.load_cert_chain(cert, key)
    with (
        socket.create_connection(("127.0.0.1", port_of(one)), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=WIRE_NAME) as connection,
    ):
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert connection.recv(65536).split()[1] == b"200"
    one.close()


def test_handshakes_that_do_not_end_block_no_scrape() -> None:
    token = new_token()
    one, _ = opened(ANYWHERE, TrustOptions(token=token))
    assert isinstance(one, MetricsServer)
    port = port_of(one)
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(server._CLIENTS_MAX)]
    for client in slow:
        client.sendall(b"\x16")
    ca, bearer = TokenTrust(token).ca, f"Bearer {token.reveal()}"
    assert https(one, ca, Authorization=bearer) == 200
    for client in slow:
        client.close()
    one.close()
