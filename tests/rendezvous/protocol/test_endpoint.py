"""Tests of addresses as people write them."""

import pytest
from ft_run.errors import UsageError
from ft_run.rendezvous.protocol.endpoint import Endpoint, is_host, is_ipv6, join_host_port
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node0", "node0", 29400),
        (" node0:1 ", "node0", 1),
        ("job-node-0-0.job.ns.svc:65535", "job-node-0-0.job.ns.svc", 65535),
        ("10.0.0.1:0", "10.0.0.1", 0),
        ("[fd00::1]", "fd00::1", 29400),
        ("[fd00::1]:29500", "fd00::1", 29500),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("[::ffff:10.0.0.1]:1", "::ffff:10.0.0.1", 1),
        ("fd00::1", "fd00::1", 29400),
        ("::1", "::1", 29400),
        ("fd00::1:29500", "fd00::1", 29500),  # no group of an address has five digits
        ("fd00:0:0:0:0:0:0:1:80", "fd00:0:0:0:0:0:0:1", 80),
    ],
)
def test_endpoints(text: str, host: str, port: int) -> None:
    assert Endpoint.parse(text) == Endpoint(host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":", ":1", "node0:", "node0:x", "node0:-1", "node0:65536", "node0:" + "9" * 5000,
     "node0:٣", "node0:1 2", "http://x:1", "http://x", "a b", "a:1,b:2", "node0:1:2", "[::1",
     "::1]", "[::g]:1", "[node0]:1", "[::1]1", "[::1]:", "[::1]:x", "[fe80::1%]", "a\nb", "a/b",
     "[::1]:1\n2", "\0"],
)  # fmt: skip
def test_what_is_not_an_endpoint(text: str) -> None:
    with pytest.raises(UsageError) as error:
        Endpoint.parse(text)
    assert ": expected HOST[:PORT], e.g. node0" in error.value.sentence
    assert len(error.value.sentence) < 300


NAMES = st.from_regex(r"[a-z0-9-]{1,10}(\.[a-z]{1,5})?", fullmatch=True)


@given(NAMES | st.ip_addresses().map(str), st.integers(0, 65535))
def test_an_endpoint_is_read_as_it_is_written(host: str, port: int) -> None:
    endpoint = Endpoint(host, port)
    assert Endpoint.parse(str(endpoint)) == endpoint


@given(st.text(alphabet="0123456789:.[]%-af/ é\0\n", max_size=24))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        endpoint = Endpoint.parse(text)
    except UsageError:
        return
    assert is_host(endpoint.host)
    assert 0 <= endpoint.port <= 65535
    assert Endpoint.parse(str(endpoint)) == endpoint


def test_addresses_with_a_zone() -> None:
    assert is_ipv6("fe80::1%eth0")
    assert not is_ipv6("fe80::1%")
    assert not is_ipv6("node0%eth0")
    assert join_host_port("fe80::1%eth0", 1) == "[fe80::1%eth0]:1"
