"""The address of the store: other hosts reach it, however the master's host resolves its name."""

import pytest
from ft_run.tests.e2e.cluster import PORT, Cluster
from ft_run.tests.e2e.listed import Listed

pytestmark = pytest.mark.root

LISTED = "lease=2,fence=5,node_timeout=3,last_call_timeout=2"


def node_options(form, number):
    return ("--node-rank", number) if form == "master-addr" else ()


def job_of(ft, network, form, names, **more):
    """Return a job whose nodes find each other by the form of the endpoint."""
    if form == "master-addr":
        options = ("--master-addr", "a", "--master-port", PORT)
        return Cluster(ft, network, names, "--nnodes", len(names), *options, master="", **more)
    if form == "three master hosts":
        more["conf"] = LISTED
    master = "a,b,c" if form == "three master hosts" else "a"
    return Cluster(ft, network, names, "--nnodes", len(names), master=master, **more)


FORMS = [("endpoint", "ab"), ("master-addr", "ab"), ("three master hosts", "abc")]


@pytest.mark.parametrize("has_nat", [False, True], ids=["one network", "nat"])
@pytest.mark.parametrize(("form", "names"), FORMS, ids=[form for form, _ in FORMS])
def test_store_is_reachable_when_own_name_is_loopback(ft, network, form, names, has_nat):
    network.own_names_are_loopback = True
    job = job_of(ft, network, form, names)
    for number, name in enumerate(names):
        if has_nat:
            job.hosts[name].add_nat()
        job.agent(name, *node_options(form, number))
    store = job.started(names, 0)["a"].store
    assert store.rpartition(":")[0] in [host.address for host in job.hosts.values()]
    if form != "three master hosts":
        assert store.rpartition(":")[0] == job.hosts["a"].address
    job.ends(names)


def test_store_moves_with_the_address_of_the_host(ft, network):
    """The next round has the new address: it is found before each round."""
    network.own_names_are_loopback = True
    job = job_of(ft, network, "endpoint", "ab", conf="node_timeout=3,node_grace=60")
    job.start("ab")
    job.hosts["a"].move("10.77.9.9")
    network.alias("a", job.hosts["a"])
    job.told("fail", 0)
    assert job.started("ab", 1)["a"].store.startswith("10.77.9.9:")
    job.ends("ab")


@pytest.mark.parametrize(("form", "names"), FORMS, ids=[form for form, _ in FORMS])
@pytest.mark.parametrize("host_name", ["", "vm-1"], ids=["own name", "other name"])
def test_name_that_enters_the_dns_late_costs_no_restart(ft, network, form, names, host_name):
    network.hide("a")
    job = job_of(ft, network, form, names, host_name=host_name)
    for number, name in enumerate(names):
        job.agent(name, *node_options(form, number))
    job.expect(names, "node_id=")  # the names of the endpoints have been resolved
    network.show("a")
    store = job.started(names, 0)["a"].store
    assert store.rpartition(":")[0] in [host.address for host in job.hosts.values()]
    job.ends(names)
    assert [job.rounds(name) for name in names] == [[0]] * len(names)


def test_host_votes_when_its_name_enters_the_dns(ft, network):
    """Two others already lead the job: the third one makes it survive the loss of one of them."""
    network.hide("a")
    job = Listed(ft, network, "abc", "--nnodes", 3, conf=LISTED, host_name="vm-1")
    for name in "abc":
        job.agent(name)
    job.expect("a", "node_id=")
    job.leader(besides="a")
    network.show("a")
    job.started("abc", 0)
    ft.wait_until(
        lambda: ft.run("status", f"a:{PORT}", host=job.hosts["b"]).process.returncode == 0,
        "the master host a answers",
    )
    job.ends("abc")
