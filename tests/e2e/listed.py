"""A job whose hosts a, b and c may lead, and what its workers write down of when they live.

They write it by the machine's clock: two worlds of two leaders never live at one time.
"""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ft_run.tests.e2e.cluster import PORT, WORKER, Cluster
from ft_run.tests.harness.hosts import Network

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

QUICK = "lease=2,fence=5,node_timeout=3,last_call_timeout=2"
CALM = "lease=5,fence=9,last_call_timeout=2"
"""For tests that take long anyway: a host that is short of processors does not lose its lease."""

BEATS = """
import os, sys, threading, time
beats = open(sys.argv[1] + ".beats", "a", buffering=1)
world = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
def beat():
    beats.write(f"{time.monotonic()} {world} {os.uname().nodename}\\n")
def go_on():
    while True:
        time.sleep(0.02)
        beat()
beat()
threading.Thread(target=go_on, daemon=True).start()
"""


class Listed(Cluster):
    """A job whose hosts a, b and c may lead."""

    def __init__(
        self,
        ft: "Launcher",
        network: Network,
        names: str,
        *options: object,
        conf: str = CALM,
        host_name: str = "",
    ) -> None:
        """Make the hosts; the arguments are those of ``Cluster``."""
        super().__init__(
            ft, network, names, *options, master="a,b,c", conf=conf, host_name=host_name
        )
        self.conf = conf
        self._trust = options[-2:] if "--token-file" in options else ()
        self.beats = Path(f"{self.gate}.beats")
        self._script = ft.script(BEATS + WORKER, "beating_worker.py")

    def leader(self, besides: str = "") -> str:
        """Wait until a host leads, and return its name."""
        found: list[str] = []

        def some_leads() -> bool:
            found[:] = [name for name in without("abc", *besides) if self.leads(name)]
            return bool(found)

        self.ft.wait_until(some_leads, "a host leads")
        return found[0]

    def leads(self, name: str) -> bool:
        """Return whether a host has said that it leads."""
        said = self._said(name) if name in self.agents else ""
        return re.findall(r"this host is (no longer )?the leader", said)[-1:] == [""]

    def status(self, name: str) -> dict[str, Any]:
        """Ask a host."""
        asked = self.ft.run(
            "status", f"{name}:{PORT}", "--json", *self._trust, host=self.hosts[name]
        )
        status: dict[str, Any] = json.loads(asked.stdout)
        return status

    def agree(self, names: str) -> bool:
        """Return whether hosts name the same leader, which answers for each of them."""
        found = [self.status(name) for name in names]
        leads = {(status["leader"], status["term"]) for status in found}
        return len(leads) == 1 and all(status["lease_s"] > 0 for status in found)

    def run_again(self, names: str) -> None:
        """Wait until the workers of a round after the first run in hosts."""
        self.ft.wait_until(
            lambda: all(max(self.rounds(name), default=0) > 0 for name in names),
            f"{', '.join(names)} run again",
        )

    def comes_back(self, name: str, mend: Callable[[], object]) -> None:
        """Undo what keeps a host away, and wait until its node has a leader."""
        back = "reconnected to the master"
        before = self._said(name).count(back)
        mend()
        self.agents[name].expect(back, before + 1)

    def restarts(self, name: str) -> int:
        """Return how many restarts were used, as an agent has said last; 0 if it has not."""
        return int([0, *re.findall(r"\((\d+) of 9 restarts used\)", self._said(name))][-1])

    def worlds_never_met(self, thawed: str = "") -> int:
        """Check what the workers have written; return how many worlds there were.

        Args:
            thawed: a host that was frozen: its workers may go on for as long as a kill takes.
        """
        times = defaultdict(list)
        for line in self.beats.read_text().splitlines():
            at, world, host = line.split()
            times[world].append((float(at), host))
        spans = sorted(
            (min(of), max((beat for beat in of if beat[1] != thawed), default=min(of)), world)
            for world, of in times.items()
        )
        for (_, (end, last), before), ((begin, first), _, after) in itertools.pairwise(spans):
            assert end < begin, (
                f"a worker of {before} was alive in {last} for {end - begin:.2f} s after one of"
                f" {after} had begun in {first}"
            )
        return len(spans)


def without(names: str, *gone: str) -> str:
    """Return the hosts that are left."""
    return "".join(name for name in names if name not in gone)
