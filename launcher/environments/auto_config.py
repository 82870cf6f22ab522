"""``--auto-config``: flags from the environment of this process."""

from collections.abc import Callable, Mapping

from ...errors import UsageError
from . import clouds, kubernetes, mpi, slurm
from .environment import LISTED, Environment, Found, Variables

_NOWHERE = (
    "--auto-config found no supported environment (Slurm, Open MPI, MPICH, PMIx, Kubeflow, Indexed"
    " Job, JobSet, LeaderWorkerSet, SkyPilot, SageMaker, AWS Batch); expected --nnodes N"
    " --rdzv-endpoint HOST:PORT, or --standalone for one node."
)
_COUNTED = ("nnodes", "node_rank")
"""Two environments must not have different values for these."""


def read_environments(
    environ: Mapping[str, str], own_name: Callable[[], str]
) -> tuple[Environment, ...]:
    """Return the environments of this process, in the order of precedence."""
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
    return tuple(environment for environment in found if environment is not None)


def auto_config(
    environ: Mapping[str, str], given: Mapping[str, str], own_name: Callable[[], str]
) -> dict[str, Found]:
    """Return the flags of the environments that are not in ``given``, by their keys."""
    environments = read_environments(environ, own_name)
    flags = _merged(environments, given)
    nodes = flags.get("nnodes")
    if "nnodes" not in given and "standalone" not in given:
        why_no_count = next(filter(None, (e.why_no_count for e in environments)), "")
        if nodes is None or why_no_count:
            raise UsageError(why_no_count or _NOWHERE)
    # --nnodes 1 in an environment of several nodes means a job of one node with spares.
    wanted = given.get("nnodes", "1").strip() in ("1", "1:1")
    is_single = "standalone" in given or (wanted and (nodes is None or nodes.text == "1"))
    if is_single:
        flags.pop("rdzv_endpoint", None)
        flags.pop("segment", None)
    if is_single or not _is_rank_of_this_job(flags.get("node_rank"), given, environments):
        flags.pop("node_rank", None)
    if "standalone" in given:
        flags.pop("nnodes", None)
    has_endpoint = "rdzv_endpoint" in given or "master_addr" in given
    if has_endpoint:
        flags.pop("rdzv_endpoint", None)
    elif not is_single:
        _require_endpoint(flags, environments, Variables(environ, own_name))
        _list_pods(flags, environments, given)
    if "nproc_per_node" not in given and "nproc_per_node" not in flags:
        flags["nproc_per_node"] = Found("auto", "")
    return {name: found for name, found in flags.items() if name not in given}


def _merged(environments: tuple[Environment, ...], given: Mapping[str, str]) -> dict[str, Found]:
    """Return the flags of all environments; earlier ones override, counts must be equal."""
    flags: dict[str, Found] = {}
    for environment in environments:
        for name, found in environment.flags.items():
            first = flags.setdefault(name, found)
            if name in _COUNTED and name not in given and first.text != found.text:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{first.source} is {first.text}, but {found.source} is {found.text};"
                    f" expected {flag} {first.text} or {flag} {found.text}."
                )
    return flags


def _is_rank_of_this_job(
    rank: Found | None, given: Mapping[str, str], environments: tuple[Environment, ...]
) -> bool:
    """Return whether the rank is a rank of the requested job.

    With fewer ``--nnodes`` than in the environment, the last nodes are spares, without a rank. With
    more, the job consists of several environments, with their own ranks. Pods of a Job do not know
    their number: a rank beyond ``--nnodes`` belongs to a spare.
    """
    if rank is None or given.get("rdzv_backend") == "c10d":
        return False
    wanted = given.get("nnodes")
    here = next((e.nodes for e in environments if e.nodes is not None), None)
    if wanted is None:
        return True
    most = wanted.rpartition(":")[2].strip()
    if not most.isdecimal():
        return here is None  # the value is refused elsewhere
    return int(rank.text) < int(most) and (here is None or int(most) <= here)


def _require_endpoint(
    flags: Mapping[str, Found], environments: tuple[Environment, ...], variables: Variables
) -> None:
    endpoint = flags.get("rdzv_endpoint")
    if endpoint is None:
        names = " and ".join(environment.name for environment in environments) or "the environment"
        raise UsageError(
            f"--auto-config found no endpoint in {names}; expected"
            " --rdzv-endpoint HOST:PORT, the same on every node, where HOST is one of them"
            + _in_a_service(environments)
        )
    if any(p.name == "Open MPI" and p.flags.get("rdzv_endpoint") == endpoint for p in environments):
        mpi.refuse_foreign_mpirun(variables)


def _list_pods(
    flags: dict[str, Found], environments: tuple[Environment, ...], given: Mapping[str, str]
) -> None:
    """Let one of the first three pods lead, if the job has as many nodes."""
    most = given.get("nnodes", "").rpartition(":")[2].strip()
    endpoint = flags["rdzv_endpoint"]
    for environment in environments:
        is_ours = environment.pods and environment.flags.get("rdzv_endpoint") == endpoint
        if is_ours and most.isdecimal() and int(most) >= LISTED:
            listed = ",".join(map(environment.pods.format, range(LISTED)))
            flags["rdzv_endpoint"] = Found(listed, endpoint.source)


def _in_a_service(environments: tuple[Environment, ...]) -> str:
    if any(environment.name == "Indexed Job" for environment in environments):
        return ", or a headless service whose name is the subdomain of the pods."
    return "."


def describe(flags: Mapping[str, Found]) -> str:
    """Return the line with the flags and the variables that they come from."""
    parts = [
        f"--{name.replace('_', '-')}={found.text}" + (f" ({found.source})" if found.source else "")
        for name, found in flags.items()
    ]
    return f"--auto-config: {', '.join(parts) or 'all flags were given'}"


def suggestion(environ: Mapping[str, str]) -> str:
    """Return a hint if a job of one node runs in an environment with several nodes; else ""."""
    try:
        environments = read_environments(environ, lambda: "")
    except UsageError:
        return ""
    for environment in environments:
        nodes = environment.nodes
        if environment.why_no_count and environment.name == "Slurm":
            return environment.why_no_count
        if nodes is not None and nodes > 1:
            source = environment.flags["nnodes"].source
            return (
                f"{environment.name} has {nodes} nodes ({source}), but this job has one node; use"
                f" {environment.start} for a job on all of them, or --standalone for this node."
            )
    return ""
