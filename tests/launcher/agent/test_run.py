"""The address that a node advertises, which is MASTER_ADDR where it hosts the store."""

import pytest
from ft_run.launcher.agent.run import advertised
from ft_run.launcher.machine.network import is_local_address
from ft_run.launcher.options import RendezvousOptions
from ft_run.rendezvous.protocol.endpoint import Endpoint


def address(
    endpoint: Endpoint | None = None, master_addr: str | None = None, local_addr: str | None = None
) -> str:
    options = RendezvousOptions(
        job_id="j", endpoint=endpoint, master_addr=master_addr, local_addr=local_addr
    )
    return advertised(options, lambda _: None).find()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_one_node_is_called_what_the_user_calls_it_as_by_torchrun(name: str) -> None:
    assert address(master_addr=name) == name
    assert address(master_addr=name, local_addr="127.0.0.3") == "127.0.0.3"


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid"])
def test_one_node_is_not_called_by_the_name_of_another_host(name: str) -> None:
    assert is_local_address(address(master_addr=name))


def test_nodes_that_meet_advertise_an_address() -> None:
    assert address(Endpoint("localhost", 5)) in ("127.0.0.1", "::1")
