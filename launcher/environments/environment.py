"""The settings of one environment: values of flags, and the variables that they come from."""

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from ... import defaults
from ...errors import UsageError
from ...rendezvous.protocol.endpoint import join_host_port
from ..flags.values import BadValue, refuse

PORT = defaults.ENDPOINT_PORT
"""The port of the rendezvous, if the environment does not set one."""

LISTED = 3
"""The number of hosts that may lead the job, if there are at least as many."""

GIVE_COUNT = "--nnodes N or PET_NNODES=N in addition to --auto-config."

_WHOLE = re.compile(r"[0-9]{1,12}")


class Found(Struct, frozen=True):
    """The text of a flag's value, and the variable that contains it."""

    text: str
    source: str


class Environment(Struct, frozen=True):
    """The settings of an environment for this node. Flags have their names in ``Given``."""

    name: str
    """The name in messages: ``Slurm``."""
    flags: Mapping[str, Found] = field(default_factory=dict)
    """Any of ``nnodes``, ``node_rank``, ``rdzv_endpoint``, ``rdzv_id``, ``nproc_per_node``,
    ``segment``."""
    start: str = "ft-run --auto-config"
    why_no_count: str = ""
    """Why the number of nodes is unknown, and what is expected; empty if it is known."""
    pods: str = ""
    """The endpoint of any node, with ``{}`` for its rank, if the number of nodes is unknown;
    ``rdzv_endpoint`` is the endpoint of the first node."""

    @property
    def nodes(self) -> int | None:
        """Return the number of nodes of the job; None if unknown."""
        found = self.flags.get("nnodes")
        return None if found is None else int(found.text)


class Variables:
    """The variables of the environment; an empty one counts as unset."""

    def __init__(self, environ: Mapping[str, str], own_name: Callable[[], str]) -> None:
        self._environ = environ
        self.own_name = own_name

    def text(self, *names: str) -> Found | None:
        """Return the first of these variables that is set."""
        for name in names:
            value = self._environ.get(name, "").strip()
            if value:
                return Found(value, name)
        return None

    def whole(self, *names: str, low: int = 0) -> Found | None:
        """Return the first of these variables that is set, a whole number of at least ``low``."""
        found = self.text(*names)
        if found is None:
            return None
        if _WHOLE.fullmatch(found.text) is None or int(found.text) < low:
            right = f"a whole number >= {low}, or no --auto-config"
            raise refuse(found.source, found.text, BadValue(right))
        return Found(str(int(found.text)), found.source)


def known(**flags: Found | None) -> dict[str, Found]:
    """Return the flags that are not None; refuse a rank that is not below the number of nodes."""
    rank, nodes = flags.get("node_rank"), flags.get("nnodes")
    if rank is not None and nodes is not None and int(rank.text) >= int(nodes.text):
        raise UsageError(
            f"{rank.source} is {rank.text}, but {nodes.source} is {nodes.text}, and the last rank"
            f" is {int(nodes.text) - 1}; expected --nnodes and --node-rank."
        )
    return {name: taken for name, taken in flags.items() if taken is not None}


def refuse_count(nodes: Found | None, hosts: tuple[str, ...], source: str) -> None:
    """Raise ``UsageError`` if a list of hosts does not have one host for each node."""
    if nodes is not None and int(nodes.text) != len(hosts):
        raise UsageError(
            f"{nodes.source} is {nodes.text}, but {source} has"
            f" {len(hosts)} host{'s' * (len(hosts) != 1)}; expected"
            " --nnodes and --rdzv-endpoint HOST:PORT."
        )


def endpoints(hosts: Sequence[str], port: int) -> str:
    """Return the endpoints: the first host, or the first three if there are as many."""
    listed = hosts[: LISTED if len(hosts) >= LISTED else 1]
    return ",".join(join_host_port(host, port) for host in listed)


def of_attempt(job: Found, number: Found | None) -> Found:
    """Return the ID of an attempt of a job that was restarted this many times.

    A node of the previous attempt may still run: with the same ID it could join this job.
    """
    if number is None or number.text == "0":
        return job
    return Found(f"{job.text}-r{number.text}", f"{job.source}, {number.source}")


def gpus(count: Found | None) -> Found | None:
    """Return the number of workers for a number of GPUs; None without GPUs."""
    return None if count is None or count.text == "0" else count
