"""Open MPI, MPICH's Hydra (including Intel MPI) and PMIx.

Recorded from Open MPI 4.1.4 and MPICH 4.0.2; Open MPI 5 and PMIx according to their sources.
"""

import re

from msgspec import Struct

from ...errors import UsageError
from .environment import GIVE_COUNT, PORT, Environment, Found, Variables, known

_PRTERUN = re.compile(r"prterun-(.+)-([0-9]+)@[0-9]+")
"""The job name of version 5: the host of ``mpirun`` and its process ID."""
_MPIRUN = "mpirun --map-by ppr:1:node --bind-to none ft-run --auto-config"
_HYDRA = "mpiexec -ppn 1 ft-run --auto-config"


def read(variables: Variables) -> Environment | None:
    """Return the settings of the MPI launcher that started this process; None without one."""
    if variables.text("OMPI_COMM_WORLD_RANK") is not None:
        return _open_mpi(variables)
    if variables.text("PMI_RANK") and variables.text("MPI_LOCALNRANKS"):
        return _hydra(variables)
    namespace = variables.text("PMIX_NAMESPACE")
    if namespace is not None and not namespace.text.startswith("slurm."):
        return _pmix(variables)
    return None


def _open_mpi(variables: Variables) -> Environment:
    rank = variables.whole("OMPI_COMM_WORLD_RANK")
    nodes = variables.whole("OMPI_COMM_WORLD_SIZE", low=1)
    _refuse_several(variables.whole("OMPI_COMM_WORLD_LOCAL_SIZE"), "Open MPI", _MPIRUN)
    flags = known(nnodes=nodes, node_rank=rank)
    mpirun = _mpirun(variables)
    if mpirun is not None:
        flags["rdzv_endpoint"] = Found(f"{mpirun.host}:{PORT}", mpirun.source)
        flags["rdzv_id"] = Found(mpirun.job, mpirun.source)
    return Environment("Open MPI", flags, _MPIRUN)


class _Mpirun(Struct, frozen=True):
    """The ``mpirun`` of a job: its host, and whether this process runs there, too."""

    host: str
    job: str
    source: str
    is_here: bool


def _mpirun(variables: Variables) -> _Mpirun | None:
    uri = variables.text("OMPI_MCA_orte_hnp_uri")
    if uri is not None:  # version 4: <job>.0;tcp://10.0.0.1,192.168.0.1:40000;tcp6://...
        name, _, addresses = uri.text.partition(";")
        host = addresses.partition("tcp://")[2].partition(":")[0].partition(",")[0]
        own = variables.text("OMPI_MCA_orte_local_daemon_uri")
        is_here = own is None or own.text.partition(";")[0] == name
        return _Mpirun(host, f"mpi-{name.partition('.')[0]}", uri.source, is_here) if host else None
    namespace = variables.text("PMIX_NAMESPACE")
    named = namespace and _PRTERUN.fullmatch(namespace.text)
    if namespace is None or not named:
        return None
    here = variables.text("PMIX_HOSTNAME")
    is_here = here is None or here.text == named[1]
    return _Mpirun(named[1], f"mpi-{named[1]}-{named[2]}", namespace.source, is_here)


def refuse_foreign_mpirun(variables: Variables) -> None:
    """Raise ``UsageError`` if the endpoint is on the host of ``mpirun`` and rank 0 is not."""
    rank, mpirun = variables.whole("OMPI_COMM_WORLD_RANK"), _mpirun(variables)
    if rank is not None and rank.text == "0" and mpirun is not None and not mpirun.is_here:
        raise UsageError(
            f"mpirun runs on {mpirun.host} ({mpirun.source}), which is not the host of rank 0, and"
            " the nodes have no other common host; expected --rdzv-endpoint HOST:PORT,"
            " where HOST is the first host of mpirun."
        )


def _hydra(variables: Variables) -> Environment:
    rank, nodes = variables.whole("PMI_RANK"), variables.whole("PMI_SIZE", low=1)
    _refuse_several(variables.whole("MPI_LOCALNRANKS"), "MPICH's Hydra", _HYDRA)
    return Environment("MPICH's Hydra", known(nnodes=nodes, node_rank=rank), _HYDRA)


def _pmix(variables: Variables) -> Environment:
    rank = variables.whole("PMIX_RANK")
    return Environment(
        "PMIx",
        known(node_rank=rank, rdzv_id=variables.text("PMIX_NAMESPACE")),
        why_no_count="PMIx sets the rank of a task, but not the number of tasks;"
        f" expected {GIVE_COUNT}",
    )


def _refuse_several(local: Found | None, name: str, right: str) -> None:
    if local is not None and int(local.text) > 1:
        raise UsageError(
            f"{name} has started {local.text} tasks on this node ({local.source}), but one ft-run"
            f" per node starts all its workers; expected {right}"
            f" --nproc-per-node {local.text} SCRIPT."
        )
