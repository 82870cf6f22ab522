"""Every difference between torchrun and ft-run that is meant, once.

A row of ``rows.py`` names the differences that it meets; one that it does not name, or names and
does not meet, fails its test. ``TABLE`` is what the documents list.
"""

import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ft_run import exit_codes
from ft_run.tests.conformance.observation import NOTHING

TABLE: Final = {
    "`--max-restarts`, restart count": (
        "counted by each node separately",
        "one count for the job, the same on every node",
    ),
    "a rank dies": (
        "polled; other nodes notice when a collective fails",
        "pushed to every node at once; all workers stop and restart",
    ),
    "`--nnodes 2:5`, four nodes present": (
        "waits 30 s at every restart",
        "waits for late nodes once, at the start",
    ),
    "ranks after a restart": (
        "assigned by sorting addresses as strings, so a node's ranks can change",
        "surviving nodes keep their ranks; a replacement takes the free one",
    ),
    "restarts used up": (
        "other nodes may continue, hang or exit 0",
        "every node exits 1 with the same report",
    ),
    "the agent is killed with SIGKILL": (
        "its workers keep running",
        "all its workers and their child processes are killed",
    ),
    "the rendezvous host dies": (
        "the other nodes exit 1, regardless of `--max-restarts`",
        "workers keep running; the returning host takes the job over",
    ),
    "a node leaves": (
        "nothing happens until a collective times out",
        "the other nodes form a new round at once",
    ),
    "rank 0's node is replaced": (
        "surviving nodes keep the old `MASTER_ADDR`",
        "all nodes receive the address of a new store",
    ),
    "a node that is not needed": (
        "crashes at the end, exit 1",
        "is a spare, and exits 0 when the job succeeds",
    ),
    "clocks of hosts differ by more than 15 s": (
        "live nodes are considered dead",
        "clocks are not compared",
    ),
    "a worker in uninterruptible sleep": (
        "exit 0",
        "reported, exit 1",
    ),
    "a script without `@record` raises an exception": (
        "reports only the exit code",
        "reports type, message and traceback, unless `--no-capture-errors` is given",
    ),
    "SIGHUP under `nohup`": (
        "ends the job",
        "stays ignored",
    ),
    "SIGTERM to the agent": (
        "traceback, exit 1",
        "one line, orderly stop, exit 143",
    ),
    "`--nproc-per-node cpu`, and `auto` without accelerators": (
        "the CPUs of the machine",
        "the CPU limit of the container (cgroup v1, v2); without a limit, `cpu` is the "
        "CPUs of the machine and `auto` is 1",
    ),
    "master, rendezvous": (
        "pickled data over an open port",
        "protobuf only; the master of a standalone job opens no port",
    ),
    "`--standalone --nnodes 2`": (
        "waits 600 s",
        "refused at once",
    ),
    "an invalid command line": (
        "a usage text, or a traceback and exit 1",
        "a one-line error, exit 2, before anything starts",
    ),
    "`PET_STANDALONE=true`, `PET_NNODES=` (empty)": (
        "traceback",
        "1/0, true/false and yes/no are accepted; an empty variable counts as not set",
    ),
    "`--redirects 10:3`": (
        "refused: ranks above 9 cannot be named",
        "accepted",
    ),
    "`--standalone --rdzv-id X`": (
        "the ID is replaced by a generated one",
        "the ID is used",
    ),
    "`--run-path`": (
        "runs in the launcher's session, with its files open",
        "runs in its own interpreter and session",
    ),
    "SIGUSR1, SIGUSR2 to the agent": (
        "kill it; its workers keep running",
        "are forwarded to the processes of the workers that handle them",
    ),
    "`--event-log-handler console`": (
        "includes `ASSIGN_WORKER_RANKS`",
        "does not include it: ft-run has no such step",
    ),
    "too few nodes": (
        "exit 1",
        "exit 40",
    ),
    "temporary log directory": (
        "stays in `/tmp`",
        "removed after success, unless the relay of the output was killed",
    ),
    "`--master-port P`, several nodes": (
        "also the workers' `MASTER_PORT`",
        "the port of the rendezvous only; `--worker-port` sets `MASTER_PORT`",
    ),
    "store": (
        "hosted by the agent, shared by all attempts",
        "hosted by rank 0, on a new port each round (`TORCHELASTIC_USE_AGENT_STORE=False`)",
    ),
    "`--rdzv-backend c10d`, a script that opens a store at the endpoint": (
        "since torch 2.15 exit 1: the agent has the port",
        "rank 0 opens it",
    ),
}
"""What, torchrun, ft-run: the rows of the table in docs/reference/torchrun-differences.md."""


@dataclass(frozen=True)
class Difference:
    """One difference that is meant: the facts it explains, and how they may differ."""

    reason: str
    entry: str
    """The entry of ``TABLE`` that documents it."""
    fact: str
    """Regular expression of the names of the facts it explains."""
    holds: Callable[[Any, Any], bool]
    """Whether torchrun's and ft-run's value of the fact differ in this way."""
    is_better: bool = False
    """torchrun does what nobody wants; else it is a choice."""

    def explains(self, fact: str, theirs: object, ours: object) -> bool:
        return re.fullmatch(self.fact, fact) is not None and self.holds(theirs, ours)


_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+")


def _changes(before: object, after: object) -> Callable[[Any, Any], bool]:
    return lambda theirs, ours: (theirs, ours) == (before, after)


def _accepted(reason: str, entry: str) -> Difference:
    """What torchrun refuses and ft-run takes."""
    return Difference(
        reason,
        entry=entry,
        fact=r"agent.*: (exit status|stdout)|worker .*",
        holds=lambda theirs, ours: theirs in (1, NOTHING, []),
        is_better=True,
    )


DIFFERENCES: Final = {
    "store": Difference(
        "rank 0 hosts the store, since the agent never loads torch",
        entry="store",
        fact=r"worker .*: env TORCHELASTIC_USE_AGENT_STORE",
        holds=_changes("True", "False"),
    ),
    "named endpoint": Difference(
        "the port that the user names for the workers is free for them",
        entry="`--rdzv-backend c10d`, a script that opens a store at the endpoint",
        fact=r"agent: (exit status|report: .*|stdout|traceback of the launcher)",
        holds=lambda theirs, ours: theirs in (1, []) or NOTHING in (theirs, ours),
        is_better=True,
    ),
    "port": Difference(
        "a port cannot be both that of the master and that of the workers' store",
        entry="`--master-port P`, several nodes",
        fact=r"worker .*: env MASTER_PORT",
        holds=_changes("<port>", "<free port>"),
    ),
    "address": Difference(
        "an address, so that no name needs to be resolved",
        entry="store",
        fact=r"worker .*: env MASTER_ADDR",
        holds=lambda theirs, ours: not _IPV4.fullmatch(theirs) and bool(_IPV4.fullmatch(ours)),
    ),
    "temporary files": Difference(
        "what nobody asked for and nobody finds is removed after success",
        entry="temporary log directory",
        fact=r"file <tmp>/.*",
        holds=lambda theirs, ours: theirs != NOTHING and ours == NOTHING,
        is_better=True,
    ),
    "standalone id": Difference(
        "an id that the user gave names his log folder, and his job in the log",
        entry="`--standalone --rdzv-id X`",
        fact=r"worker .*: env TORCHELASTIC_RUN_ID",
        holds=_changes("<id>", "mine"),
    ),
    "signal": Difference(
        "who asked for the end is told that it came, as by any other program",
        entry="SIGTERM to the agent",
        fact=r"agent.*: exit status",
        holds=lambda theirs, ours: theirs == 1 and ours > 128,
        is_better=True,
    ),
    "no traceback": Difference(
        "a traceback of the launcher helps nobody to find what is wrong with his training",
        entry="restarts used up",
        fact=r"agent.*: traceback of the launcher",
        holds=_changes(True, False),
        is_better=True,
    ),
    "events": Difference(
        "the ranks come with the round: giving them out is no step of its own",
        entry="`--event-log-handler console`",
        fact=r"agent: event torchelastic\.worker\.status\.ASSIGN_WORKER_RANKS .*",
        holds=lambda theirs, ours: theirs != NOTHING and ours == NOTHING,
    ),
    "ended workers": Difference(
        "a worker that the launcher ended has not failed",
        entry="restarts used up",
        fact=r"agent.*: report: others",
        holds=lambda theirs, ours: "(SIGTERM)" in theirs and ours == "",
        is_better=True,
    ),
    "user signal": Difference(
        "SIGUSR1 and SIGUSR2 are for the workers; here they get it, then SIGTERM ends the job",
        entry="SIGUSR1, SIGUSR2 to the agent",
        fact=r"agent: (exit status|stdout)",
        holds=lambda theirs, ours: (
            (theirs, ours) == (-signal.SIGUSR1, 128 + signal.SIGTERM)
            or (
                isinstance(ours, list)
                and {*ours} - {*theirs}
                == {f"@@{rank} got {name}" for rank in (0, 1) for name in ("SIGUSR1", "SIGTERM")}
            )
        ),
        is_better=True,
    ),
    "captured exception": Difference(
        "the report says why, also for a script without @record",
        entry="a script without `@record` raises an exception",
        fact=r"agent.*: report: (error_file|traceback)|file .*/error\.json",
        holds=lambda theirs, ours: (
            (theirs in ("<N/A>", NOTHING) or theirs.startswith("To enable traceback"))
            and re.match(r'<dir>/.*/error\.json$|Traceback|\{"message": \{"message": ', ours)
            is not None
        ),
        is_better=True,
    ),
    "host": Difference(
        "the host's own name: no name is looked up where a host has just failed",
        entry="restarts used up",
        fact=r"agent.*: report: host",
        holds=lambda theirs, ours: (
            (theirs, ours) == (socket.getfqdn(), socket.gethostname()) and theirs != ours
        ),
    ),
    "rendezvous failed": Difference(
        "a scheduler can tell a job that never began from one that failed",
        entry="too few nodes",
        fact=r"agent.*: exit status",
        holds=_changes(1, exit_codes.RENDEZVOUS_FAILED),
    ),
    "run-path": Difference(
        "a fresh interpreter in a session of its own, with no files of the launcher's, that finds "
        "modules in the working directory",
        entry="`--run-path`",
        fact=r"worker .*: (files|own session|path\[0\])",
        holds=lambda theirs, ours: ours in ([0, 1, 2], True, "") and theirs != ours,
        is_better=True,
    ),
    "usage": Difference(
        "one sentence that says what is wrong, was given and would be right",
        entry="an invalid command line",
        fact=r"agent.*: exit status",
        holds=_changes(1, exit_codes.USAGE),
        is_better=True,
    ),
    "standalone nodes": Difference(
        "a standalone job has one node: others would never come",
        entry="`--standalone --nnodes 2`",
        fact=r"agent.*: exit status",
        holds=_changes(1, exit_codes.USAGE),
        is_better=True,
    ),
    "ranks above 9": _accepted(
        "there are hosts with more than ten GPUs", entry="`--redirects 10:3`"
    ),
    "a switch by words": _accepted(
        "a switch that is set to true is on", entry="`PET_STANDALONE=true`, `PET_NNODES=` (empty)"
    ),
    "an empty variable": _accepted(
        "a variable that says nothing is not given",
        entry="`PET_STANDALONE=true`, `PET_NNODES=` (empty)",
    ),
    "worker count": Difference(
        "as many workers as the container has CPUs for",
        entry="`--nproc-per-node cpu`, and `auto` without accelerators",
        fact=r"worker [1-9].*|worker 0 .*: env .*WORLD_SIZE",
        holds=lambda theirs, ours: ours == NOTHING or (int(theirs) > 1 and ours == "1"),
        is_better=True,
    ),
    "no such script": Difference(
        "no node starts what every node would only see fail",
        entry="an invalid command line",
        fact=r"agent.*: report: .*",
        holds=lambda theirs, ours: ours == NOTHING,
        is_better=True,
    ),
}
ALWAYS: Final = ("store", "address", "temporary files", "no traceback", "host")
