"""A Slurm cluster of hosts for tests: one slurmctld, a slurmd in each host, and a munged.

The programs are Debian's (``slurm-wlm``, ``munge``), as root. Every host has its own network and
its own name, and all share the file system, as clusters do.
"""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..hosts import Host, Network

_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "munged")
_WAIT_S = 60.0

_CONF = """\
ClusterName=test
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,nohold_on_prolog_fail
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=5
KillWait=5
InactiveLimit=0
PrologFlags=NoHold
Prolog={folder}/prolog
SlurmdParameters=config_overrides
MessageTimeout=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def unavailable() -> str | None:
    """Return why there can be no Slurm here; None where there can."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"Debian's slurm-wlm and munge are not installed: there is no {missing[0]}"
    return None


class Slurm:
    """Slurm on all hosts of a network but the first, which has the controller.

    Args:
        network: the hosts.
        of_one_host: the names of Slurm's nodes where all of them are the second host, each with a
            slurmd and a port of its own; without it each host is one node.
    """

    def __init__(self, network: Network, of_one_host: Sequence[str] = ()) -> None:
        self.controller, *self.nodes = network.hosts.values()
        self.folder = Path(tempfile.mkdtemp(prefix="ft-run-slurm-"))
        self.conf = self.folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        (self.folder / "state").mkdir()
        self.prolog("exit 0")
        names = of_one_host or [node.name for node in self.nodes]
        host = f"NodeHostname={self.nodes[0].name}"
        nodes = [
            f"NodeName={name} CPUs=4 RealMemory=1000 State=UNKNOWN"
            + (f" {host} Port={7000 + number}" if of_one_host else "")
            for number, name in enumerate(names)
        ]
        self.conf.write_text(
            _CONF.format(
                controller=self.controller.name, folder=self.folder, nodes="\n".join(nodes)
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        self.folder.chmod(0o755)
        try:
            self._start(
                None, "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
                f"--key-file={key}", f"--pid-file={self.folder}/munged.pid",
                f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed",
            )  # fmt: skip
            self._until(lambda: (self.folder / "munge.socket").exists(), "munged listens")
            self._start(self.controller, "slurmctld", "-D", "-f", str(self.conf))
            for number, name in enumerate(names):
                self.start_node(self.nodes[0 if of_one_host else number], name)
            self._until(lambda: self.states() == {"idle"}, "all nodes are idle")
        except BaseException:
            self.close()
            raise

    def prolog(self, text: str) -> None:
        """Set what runs on a node before each job."""
        prolog = self.folder / "prolog"
        prolog.write_text(f"#!/bin/sh\n{text}\n")
        prolog.chmod(0o755)

    def start_node(self, node: Host, name: str = "") -> None:
        """Start a slurmd of a host: that of the node which has the host's name, or another."""
        self._start(node, "slurmd", "-D", "-N", name or node.name, "-f", str(self.conf))

    def environment(self) -> dict[str, str]:
        """Return the variables that Slurm's commands need."""
        return {"SLURM_CONF": str(self.conf)}

    def ask(self, *command: str) -> str:
        """Run one of Slurm's commands on the controller's host; return what it prints."""
        done = subprocess.run(
            [*self.controller.enter, *command],
            env=os.environ | self.environment(),
            capture_output=True,
            text=True,
        )
        return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip()}"

    def states(self) -> set[str]:
        """Return the states of the nodes, without the marks for what they are about to do."""
        return {
            word.strip("*~#!%$@+^-") for word in self.ask("sinfo", "-h", "-N", "-o", "%t").split()
        }

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job."""
        words = self.ask("scontrol", "-o", "show", "job", number).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait_for_job(self, number: str, *states: str) -> dict[str, str]:
        """Wait until a job is in one of some states; return what Slurm knows of it."""
        self._until(lambda: self.job(number).get("JobState") in states, f"job {number} is {states}")
        return self.job(number)

    def log(self) -> str:
        """Return the end of what the controller has written."""
        return (self.folder / "slurmctld.log").read_text()[-3000:]

    def close(self) -> None:
        """End the daemons, with all that runs in their hosts."""
        for host in (self.controller, *self.nodes):
            host.kill()
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, host: Host | None, *command: str) -> None:
        enter: Sequence[str] = () if host is None else host.enter
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    [*enter, *command],
                    env=os.environ | self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _logs(self) -> str:
        """Return the ends of what the jobs have printed, and of all logs."""
        jobs = [
            word[7:] for word in self.ask("scontrol", "show", "job").split() if "StdOut=" in word
        ]
        paths = [path for path in map(Path, jobs) if path.exists()]
        paths += sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in paths)

    def _until(self, condition: object, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + _WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {_WAIT_S} s: {what}\n{self._logs()}")
            threading.Event().wait(0.1)
