"""What one place says: values of flags, each with the variables that it was taken from."""

import re
from collections.abc import Callable, Mapping, Sequence

from ... import defaults
from ...errors import UsageError
from ...rendezvous.protocol.endpoint import join_host_port
from ...values import dataclass, field

PORT = defaults.ENDPOINT_PORT
"""Where the nodes of a job meet, unless the place says better."""

LISTED = 3
"""How many of the hosts may lead the job, where there are as many."""

GIVE_COUNT = "--nnodes N or PET_NNODES=N beside --auto-config."

_WHOLE = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Taken:
    """The text of a flag's value, and the variable that it was taken from."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Place:
    """What a place says of this node. The flags are named as ``Given`` names them."""

    name: str
    """For people: ``Slurm``."""
    flags: Mapping[str, Taken] = field(default_factory=dict)
    """``nnodes``, ``node_rank``, ``rdzv_endpoint``, ``rdzv_id``, ``nproc_per_node``: those that the
    place speaks of."""
    start: str = "ft-run --auto-config"
    """The command that starts a node here."""
    doubt: str = ""
    """Why the place alone cannot say how many nodes there are: a sentence; empty where it can."""
    pods: str = ""
    """The endpoint of any node, ``{}`` for its rank, where the place does not say how many there
    are: ``rdzv_endpoint`` is that of the first."""

    @property
    def nodes(self) -> int | None:
        """How many nodes the job has here; None where the place does not say."""
        taken = self.flags.get("nnodes")
        return None if taken is None else int(taken.text)


class Variables:
    """The variables of the environment: an empty one counts as not set."""

    def __init__(self, environ: Mapping[str, str], own_name: Callable[[], str]) -> None:
        """Read nothing yet.

        Args:
            environ: the environment.
            own_name: returns the full name of this host, as others can resolve it.
        """
        self._environ = environ
        self.own_name = own_name

    def text(self, *names: str) -> Taken | None:
        """Return the first of some variables that is set."""
        for name in names:
            value = self._environ.get(name, "").strip()
            if value:
                return Taken(value, name)
        return None

    def whole(self, *names: str, low: int = 0) -> Taken | None:
        """Return the first of some variables that is set: a whole number.

        Raises:
            UsageError: it is none, or less than ``low``.
        """
        found = self.text(*names)
        if found is None:
            return None
        if _WHOLE.fullmatch(found.text) is None or int(found.text) < low:
            raise UsageError(
                f"{found.source} is {found.text[:80]!r}; expected a whole number, {low} or"
                " more, or no --auto-config."
            )
        return Taken(str(int(found.text)), found.source)


def known(**flags: Taken | None) -> dict[str, Taken]:
    """Return the flags of which something is known."""
    return {name: taken for name, taken in flags.items() if taken is not None}


def refuse_rank(rank: Taken | None, nodes: Taken | None) -> None:
    """Refuse a rank that the nodes do not have.

    Raises:
        UsageError: with both values.
    """
    if rank is not None and nodes is not None and int(rank.text) >= int(nodes.text):
        raise UsageError(
            f"{rank.source} is {rank.text}, but {nodes.source} is {nodes.text}, so that the ranks"
            f" end at {int(nodes.text) - 1}; expected --nnodes and --node-rank."
        )


def refuse_count(nodes: Taken | None, hosts: tuple[str, ...], source: str) -> None:
    """Refuse a list of hosts that is longer or shorter than the number of nodes.

    Raises:
        UsageError: with both values.
    """
    if nodes is not None and int(nodes.text) != len(hosts):
        raise UsageError(
            f"{nodes.source} is {nodes.text}, but {source} has"
            f" {len(hosts)} host{'s' * (len(hosts) != 1)}; expected"
            " --nnodes and --rdzv-endpoint HOST:PORT."
        )


def endpoints(hosts: Sequence[str], port: int) -> str:
    """Return where nodes meet: at the first host, or at one of three where there are as many."""
    listed = hosts[: LISTED if len(hosts) >= LISTED else 1]
    return ",".join(join_host_port(host, port) for host in listed)


def of_attempt(job: Taken, number: Taken | None) -> Taken:
    """Return the id of a job that was begun again so many times.

    A node of the attempt before may still run, cut off from the others: under the same id it would
    be taken for one of this job when it is back.
    """
    if number is None or number.text == "0":
        return job
    return Taken(f"{job.text}-r{number.text}", f"{job.source}, {number.source}")


def gpus(taken: Taken | None) -> Taken | None:
    """Return the number of workers for a number of GPUs: none says nothing."""
    return None if taken is None or taken.text == "0" else taken
