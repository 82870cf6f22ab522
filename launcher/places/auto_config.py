"""``--auto-config``: the flags that the place of this process gives to it."""

from collections.abc import Callable, Mapping

from ...errors import UsageError
from . import clouds, kubernetes, mpi, slurm
from .place import LISTED, Place, Taken, Variables

_NOWHERE = (
    "--auto-config found none of the supported environments (Slurm, Open MPI, MPICH, PMIx, Kubeflow,"
    " Indexed Job, JobSet, LeaderWorkerSet, SkyPilot, SageMaker, AWS Batch); expected"
    " --nnodes N --rdzv-endpoint HOST:PORT, or --standalone for one node."
)
_COUNTED = ("nnodes", "node_rank")
"""Of these, two places may not say different things."""


def read_places(environ: Mapping[str, str], own_name: Callable[[], str]) -> tuple[Place, ...]:
    """Return the places that this process is in, the one that goes first in front.

    Slurm says no rank and no count where ``mpirun`` has started this process (``slurm.read``).

    Args:
        environ: the environment.
        own_name: returns the full name of this host; is called where no variable has it.

    Raises:
        UsageError: what a place says cannot be, or asks for another way to start.
    """
    variables = Variables(environ, own_name)
    launcher = mpi.read(variables)
    found = (
        slurm.read(variables, launcher),
        launcher,
        kubernetes.read(variables),
        clouds.skypilot(variables),
        clouds.sagemaker(variables),
        clouds.aws_batch(variables),
    )
    return tuple(place for place in found if place is not None)


def auto_config(
    environ: Mapping[str, str], given: Mapping[str, str], own_name: Callable[[], str]
) -> dict[str, Taken]:
    """Return the flags that were not given, as the places of this process have them.

    Args:
        environ: the environment.
        given: the flags that were given, by their names in ``Given``; they go before all.
        own_name: as in ``read_places``.

    Raises:
        UsageError: no place says how many nodes there are, or where they meet; or two contradict.
    """
    places = read_places(environ, own_name)
    flags = _merged(places, given)
    nodes = flags.get("nnodes")
    if "nnodes" not in given and "standalone" not in given:
        doubt = next((place.doubt for place in places if place.doubt), "")
        if nodes is None or doubt:
            raise UsageError(doubt or _NOWHERE)
    # --nnodes 1 in a place of several nodes is a job of one node with spares.
    wanted = given.get("nnodes", "1").strip() in ("1", "1:1")
    is_single = "standalone" in given or (wanted and (nodes is None or nodes.text == "1"))
    if is_single:
        flags.pop("rdzv_endpoint", None)
    if is_single or not _is_rank_of_this_job(flags.get("node_rank"), given, places):
        flags.pop("node_rank", None)
    if "standalone" in given:
        flags.pop("nnodes", None)
    has_endpoint = "rdzv_endpoint" in given or "master_addr" in given
    if has_endpoint:
        flags.pop("rdzv_endpoint", None)
    elif not is_single:
        _require_endpoint(flags, places, Variables(environ, own_name))
        _list_pods(flags, places, given)
    if "nproc_per_node" not in given and "nproc_per_node" not in flags:
        flags["nproc_per_node"] = Taken("auto", "")
    return {name: taken for name, taken in flags.items() if name not in given}


def _merged(places: tuple[Place, ...], given: Mapping[str, str]) -> dict[str, Taken]:
    """Return what the first place says that speaks of a flag; the others must agree on counts."""
    flags: dict[str, Taken] = {}
    for place in places:
        for name, taken in place.flags.items():
            first = flags.setdefault(name, taken)
            if name in _COUNTED and name not in given and first.text != taken.text:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{first.source} is {first.text}, but {taken.source} is {taken.text};"
                    f" expected {flag} {first.text} or {flag} {taken.text}."
                )
    return flags


def _is_rank_of_this_job(
    rank: Taken | None, given: Mapping[str, str], places: tuple[Place, ...]
) -> bool:
    """Tell whether the rank is one in the job that was asked for.

    With fewer ``--nnodes`` than the place has, the last ones are spares, which have none. With
    more, several places make up the job, and the ranks in one of them are not those of the job.
    """
    if rank is None or given.get("rdzv_backend") == "c10d":
        return False
    wanted = given.get("nnodes")
    here = next((place.nodes for place in places if place.nodes is not None), None)
    if wanted is None or here is None:
        return True
    most = wanted.rpartition(":")[2].strip()
    return most.isdecimal() and int(rank.text) < int(most) <= here


def _require_endpoint(
    flags: Mapping[str, Taken], places: tuple[Place, ...], variables: Variables
) -> None:
    endpoint = flags.get("rdzv_endpoint")
    if endpoint is None:
        names = " and ".join(place.name for place in places) or "the environment"
        raise UsageError(
            f"--auto-config found in {names} no host at which the nodes could meet; expected"
            " --rdzv-endpoint HOST:PORT, the same on every node, where HOST is one of them"
            + _in_a_service(places)
        )
    if any(p.name == "Open MPI" and p.flags.get("rdzv_endpoint") == endpoint for p in places):
        mpi.refuse_foreign_mpirun(variables)


def _list_pods(
    flags: dict[str, Taken], places: tuple[Place, ...], given: Mapping[str, str]
) -> None:
    """Let one of the first three pods lead, if the job has as many nodes."""
    most = given.get("nnodes", "").rpartition(":")[2].strip()
    endpoint = flags["rdzv_endpoint"]
    for place in places:
        is_ours = place.pods and place.flags.get("rdzv_endpoint") == endpoint
        if is_ours and most.isdecimal() and int(most) >= LISTED:
            listed = ",".join(map(place.pods.format, range(LISTED)))
            flags["rdzv_endpoint"] = Taken(listed, endpoint.source)


def _in_a_service(places: tuple[Place, ...]) -> str:
    if any(place.name == "Indexed Job" for place in places):
        return ", or a headless service whose name is the subdomain of the pods."
    return "."


def told(flags: Mapping[str, Taken]) -> str:
    """Return the line that says what was taken from where."""
    parts = [
        f"--{name.replace('_', '-')}={taken.text}" + (f" ({taken.source})" if taken.source else "")
        for name, taken in flags.items()
    ]
    return f"--auto-config: {', '.join(parts) or 'every flag was given'}"


def suggestion(environ: Mapping[str, str]) -> str:
    """Return a line for a command that asks for one node where the place has several; else "".

    ``--auto-config`` was not given: nothing is taken, and what would be refused is not.
    """
    try:
        places = read_places(environ, lambda: "")
    except UsageError:
        return ""
    for place in places:
        nodes = place.nodes
        if place.doubt and place.name == "Slurm":
            return place.doubt
        if nodes is not None and nodes > 1:
            source = place.flags["nnodes"].source
            return (
                f"{place.name} has {nodes} nodes ({source}), but this command asks for one;"
                f" {place.start} makes one job of them, --standalone says that this is meant."
            )
    return ""
