"""The rendezvous options: how the nodes of a job find each other, and how its workers do."""

import os
import re
from collections.abc import Sequence

from ... import defaults
from ...errors import UsageError
from ...rendezvous.protocol.endpoint import Endpoint
from ..flags.values import BadValue, refuse
from ..options import RendezvousOptions
from .command_line import Given
from .rdzv_conf import RendezvousConf, parse_conf


def conf_given(given: Given) -> RendezvousConf:
    """Return the settings of ``--rdzv-conf``."""
    return parse_conf(given.get("rdzv_conf", ""), given.origin("rdzv_conf"))


def rendezvous_options(
    given: Given, warnings: list[str], script_args: Sequence[str] = ()
) -> RendezvousOptions:
    """Return the options of the rendezvous, and add warnings for the user to ``warnings``."""
    min_nodes, max_nodes = given.get("nnodes", (1, 1))
    unit = given.get("node_unit", defaults.NODE_UNIT)
    if min_nodes % unit:
        raise UsageError(
            f"{given.origin('nnodes')} has a minimum of {min_nodes}, which is not a multiple of"
            f" {given.origin('node_unit')} {unit}; expected {-(-min_nodes // unit) * unit}."
        )
    conf = conf_given(given)
    warnings.extend(conf.warnings)
    where = _endpoint(given, max_nodes)
    node_rank = _node_rank(given, where, max_nodes, warnings)
    is_alone = max_nodes == 1 and (
        where is None or _is_of_workers(given, where, conf, script_args, warnings)
    )
    store = _store(given, where) if is_alone else None
    if is_alone:
        where = node_rank = None
    ports, ports_flag = _worker_ports(given, where, conf, store)
    if max_nodes > 1 and given["rdzv_endpoint"] is None and given["master_addr"] is None:
        warnings.append(
            f"no --rdzv-endpoint: the rendezvous is at {where}, which only this host can reach; for"
            " nodes on other hosts use --rdzv-endpoint HOST:PORT."
        )
    return given.fill(
        RendezvousOptions,
        job_id=_job_id(given, max_nodes, warnings),
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        endpoint=Endpoint(where.host, where.port) if where is not None else None,
        endpoints=listed(where),
        hosts_master=_hosts_master(given, conf, where, node_rank),
        node_rank=node_rank,
        local_addr=given["local_addr"] or None,
        master_addr=store[0].host if store is not None else None,
        worker_ports=ports,
        worker_ports_flag=ports_flag,
        timeouts=conf.timeouts,
        rescale_delay_s=given.get("rescale_delay", conf.rescale_delay_s),
    )


def listed(where: Endpoint | None) -> tuple[Endpoint, ...]:
    """Return all hosts that may lead; empty for a single endpoint."""
    if where is None or not where.others:
        return ()
    return (Endpoint(where.host, where.port), *where.others)


def _backend(given: Given) -> str:
    return str(given.get("rdzv_backend", "static"))


def _endpoint(given: Given, max_nodes: int) -> Endpoint | None:
    single = max_nodes == 1
    if given["standalone"]:
        if not single:
            raise UsageError(
                f"{given.origin('standalone')} is for one node, but {given.origin('nnodes')} asks"
                f" for up to {max_nodes}; expected --rdzv-endpoint HOST:PORT instead of"
                " --standalone."
            )
        return None
    where: Endpoint | None = given["rdzv_endpoint"]
    name = given.origin("rdzv_endpoint")
    if where is None and _backend(given) == "static":
        if single:
            return None  # the only node: --master-port is for its workers
        where = Endpoint(
            given["master_addr"] or defaults.MASTER_ADDR,
            given.get("master_port", defaults.MASTER_PORT),
        )
        name = given.origin("master_port")
    if where is None:
        if single:
            return None
        raise no_endpoint(given, max_nodes)
    if where.port == 0:
        # Another node cannot know a port that the system chooses: equivalent to standalone.
        if single:
            return None
        raise UsageError(
            f"{name} has port 0, which other nodes cannot know; expected a fixed port, e.g."
            f" {Endpoint(where.host, defaults.ENDPOINT_PORT)}."
        )
    return where


def no_endpoint(given: Given, max_nodes: int) -> UsageError:
    """Return the error for a job of several nodes without an endpoint."""
    return UsageError(
        f"{given.origin('nnodes')} asks for up to {max_nodes} nodes, but no endpoint was given;"
        " expected --rdzv-endpoint HOST:PORT, the same on every node, where HOST is one of the"
        " nodes."
    )


def _is_of_workers(
    given: Given,
    where: Endpoint,
    conf: RendezvousConf,
    script_args: Sequence[str],
    warnings: list[str],
) -> bool:
    """Return whether the endpoint of a job of one node is for its workers, not for nodes.

    This is the case with torchrun's static backend, and if the script has the endpoint among its
    arguments: under torchrun it finds the agent's store there. Otherwise a spare node, ``ft-run
    status`` or an ``ft-run master`` may need it.
    """
    if where.others or conf.is_host is False:
        return False
    if given["rdzv_backend"] == "static":
        return True
    is_loopback = where.host in ("localhost", "::1") or where.host.startswith("127.")
    port = re.compile(rf":{where.port}(?!\d)")
    if not is_loopback or not any(map(port.search, script_args)):
        return False
    warnings.append(
        f"{given.origin('rdzv_endpoint')} {where} is an argument of the script too: the port is"
        " left free for the script, and ft-run status cannot reach this job."
    )
    return True


def _store(given: Given, where: Endpoint | None) -> tuple[Endpoint, str] | None:
    """Return ``MASTER_ADDR:MASTER_PORT`` like torchrun's static backend, and its origin."""
    if given["standalone"] or _backend(given) != "static":
        return None
    if where is not None:
        return where, given.origin("rdzv_endpoint")
    if given["rdzv_endpoint"] is None and given["master_port"]:
        address = given["master_addr"] or defaults.MASTER_ADDR
        return Endpoint(address, given["master_port"]), given.origin("master_port")
    return None


def _worker_ports(
    given: Given,
    where: Endpoint | None,
    conf: RendezvousConf,
    store: tuple[Endpoint, str] | None,
) -> tuple[tuple[int, ...] | None, str]:
    """Return the range of ``MASTER_PORT`` without the rendezvous ports, and its origin."""
    ports, name = given["worker_port"], given.origin("worker_port")
    if ports is None:
        return (None, name) if store is None else ((store[0].port,), store[1])
    meeting = {place.port for place in listed(where) or filter(None, (where,))}
    free = tuple(ports) if conf.is_host is False else tuple(p for p in ports if p not in meeting)
    if not free:
        origin = "master_port" if given["rdzv_endpoint"] is None else "rdzv_endpoint"
        raise UsageError(
            f"{name} {given.texts['worker_port'][-1]} is the port of the rendezvous"
            f" ({given.origin(origin)}), which no worker can use; expected another port."
        )
    return free, name


def _node_rank(
    given: Given, where: Endpoint | None, max_nodes: int, warnings: list[str]
) -> int | None:
    """Return the rank to pin; None if none was given or, as under torchrun, it is ignored."""
    rank: int | None = given["node_rank"]
    if rank is None or where is None:
        return None
    if _backend(given) == "c10d":
        warnings.append(
            f"{given.origin('node_rank')} {rank} is ignored with {given.origin('rdzv_backend')}"
            " c10d, as by torchrun; --rdzv-backend grpc uses it."
        )
        return None
    if _backend(given) == "static" and rank >= max_nodes:
        right = f"a rank from 0 to {max_nodes - 1}, or no rank for a spare node"
        bad = BadValue(right, f"the job has {max_nodes} nodes")
        raise refuse(given.origin("node_rank"), str(rank), bad)
    return rank


def _hosts_master(
    given: Given, conf: RendezvousConf, where: Endpoint | None, node_rank: int | None
) -> bool | None:
    if where is None:
        return None
    if conf.is_host is not None:
        return conf.is_host
    # An endpoint without a backend may name an `ft-run master`, so only the address decides.
    static = given["rdzv_endpoint"] is None or given["rdzv_backend"] == "static"
    if static and node_rank is not None:
        return node_rank == 0
    return None


def _job_id(given: Given, max_nodes: int, warnings: list[str]) -> str:
    if given["rdzv_id"]:
        return str(given["rdzv_id"])
    if max_nodes > 1:
        warnings.append(
            "no --rdzv-id: a node of another job with the same endpoint could join this job; use an"
            " ID for each job, the same on every node."
        )
        return defaults.JOB_ID
    is_placed = given["rdzv_endpoint"] is not None or given["master_port"] is not None
    if given["standalone"] or (_backend(given) != "c10d" and not is_placed):
        return os.urandom(8).hex()  # as torchrun does
    return defaults.JOB_ID
