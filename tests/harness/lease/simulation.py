"""Random histories of the world of ``world``: cuts of any shape, deaths, freezes, returns.

**I11**, at the end of each: when nothing breaks any more, and a majority of the listed hosts and
enough nodes see each other, a round runs within a lease, the wait of a new leader and 2 s, by a
slow clock: 16.9 s with the defaults. It counts from the last host that breaks, goes or comes; where
the listed hosts that elect have forgotten the newest term, from when the leader hears of it from a
node, and is elected anew.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from ft_run.rendezvous.lease.times import LeaseTimes
from ft_run.rendezvous.protocol.bounds import BALLOT_MAX, COUNT_MAX
from ft_run.rendezvous.protocol.lease_messages import LeaseStep
from ft_run.tests.harness.invariants import InvariantError
from ft_run.tests.harness.lease.world import Host, World, job_of

_T = TypeVar("_T")
_CALM_S = 12.0
"""So long nodes that were asked to go before are still replaced by others."""
_NAMES = "abcdefg"
DEFAULT_TIMES = LeaseTimes(silence_s=3.9)


class History:
    """One history, told by a seed."""

    def __init__(self, seed: int, times: LeaseTimes = DEFAULT_TIMES) -> None:
        self.chance = chance = random.Random(seed)
        listed = 3 if chance.random() < 0.8 else 5
        nodes = chance.randint(listed, 7)
        smallest = chance.choice((2, nodes // 2 + 1, nodes - 1, nodes))
        is_elastic = chance.random() < 0.6
        largest = chance.randint(smallest, nodes) if is_elastic else smallest
        self._slow = chance.choice((0.0, 0.0, 0.02, 0.1))
        self.world = World(
            job_of(smallest, largest),
            times,
            listed=listed,
            chance=random.Random(chance.random()),
            latency=self._latency,
        )
        for name in _NAMES[:nodes]:
            host = self.world.add_host(name, chance.uniform(0.95, 1.05))
            self.world.later(chance.choice((0.0, 0.2, 4.0)), self.world.start, host)
        self.longest_s = 0.0
        """Until a round ran, at the end."""

    def _latency(self) -> float:
        if self.chance.random() < self._slow:
            return self.chance.uniform(0.1, 3.5)
        return self.chance.uniform(0.001, 0.02)

    def live(self) -> None:
        """Live through it; raises ``InvariantError``."""
        world, chance = self.world, self.chance
        world.run_until(chance.choice((1.0, 6.0, 20.0)))
        for _ in range(chance.randint(1, 10)):
            action = chance.choice(_FAULTS)
            action(self)
            world.run_until(world.now + chance.choice((0.0, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0)))
        self._settle()

    # --- faults ------------------------------------------------------------------------------

    def _pick(self, options: Sequence[_T]) -> _T | None:
        return self.chance.choice(options) if options else None

    def _host(self) -> Host:
        """Return any host, more often the one that leads."""
        leaders = [p.host for p in self.world.processes() if p.group is not None]
        if leaders and self.chance.random() < 0.5:
            return self.chance.choice(leaders)
        return self.chance.choice(self.world.hosts)

    def _split(self) -> None:
        sides = {host: self.chance.randrange(self.chance.choice((2, 2, 3))) for host in self._all()}
        self._tell("cut: " + " ".join(f"{host.name}{side}" for host, side in sides.items()))
        for one in sides:
            for other in sides:
                if sides[one] != sides[other]:
                    self.world.block(one, other)
        self.world.look()

    def _cut_one_way(self) -> None:
        one, other = self._host(), self._host()
        self._tell(f"cut: {one.name} to {other.name}")
        self.world.block(one, other)
        self.world.look()

    def _isolate(self) -> None:
        one = self._host()
        way = self.chance.choice(("in", "out", "both"))
        self._tell(f"cut: {one.name} {way}")
        for other in self.world.hosts:
            if way != "in":
                self.world.block(one, other)
            if way != "out":
                self.world.block(other, one)
        self.world.look()

    def _heal(self) -> None:
        self._tell("healed")
        self.world.heal()

    def _kill(self) -> None:
        host = self._host()
        self._tell(f"{host.name} is killed")
        self.world.kill(host)
        self._return(host)

    def _power_off(self) -> None:
        host = self._host()
        self._tell(f"{host.name} is switched off")
        self.world.power_off(host)
        self._return(host)

    def _return(self, host: Host) -> None:
        after_s = self.chance.choice((0.1, 1.0, 5.0, 15.0, None))
        if after_s is not None:
            self.world.later(after_s, self.world.start, host)

    def _freeze(self) -> None:
        host = self._host()
        for_s = self.chance.choice((0.5, 2.0, 3.5, 5.0, 9.0, 12.0, 25.0))
        self._tell(f"{host.name} freezes for {for_s} s")
        self.world.freeze(host)
        self.world.later(for_s, self.world.thaw, host)

    def _fail(self) -> None:
        found = self._pick([p for p in self.world.processes() if p.has_workers and p.runs])
        if found is not None and not found.agent.is_stopping:
            self._tell(f"a worker of {found.name} fails")
            found.agent.fail()

    def _terminate(self) -> None:
        host = self._host()
        if host.process is not None and host.process.runs and not host.process.agent.is_leaving:
            self._tell(f"{host.name} gets SIGTERM")
            host.process.agent.leave()
            self.world.later(self.chance.choice((8.0, 20.0)), self.world.start, host)

    def _forge(self) -> None:
        host = self.chance.choice(self.world.hosts[: self.world.listed])
        number = self.chance.choice((7, 500_000, COUNT_MAX, BALLOT_MAX))
        if self.chance.random() < 0.5:
            self._tell(f"a stranger says to {host.name} that it has followed term {number}")
            self.world.forge_term(host, number)
        else:
            step = self.chance.choice((LeaseStep.PREPARE, LeaseStep.PROPOSE, LeaseStep.RELEASE))
            number_of_round = self.chance.choice((-1, 5, 500_000, COUNT_MAX))
            self._tell(f"a stranger: {step.name} {number}, {number_of_round} to {host.name}")
            self.world.forge(host, step, number, number_of_round)

    def _all(self) -> list[Host]:
        return self.world.hosts

    def _tell(self, text: str) -> None:
        self.world.tell(f"--- {text}")

    # --- the end -----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing breaks any more; now I11 must hold."""
        world = self.world
        self._slow = 0.0
        world.heal()
        for host in world.hosts:
            world.thaw(host)
        is_whole = self.chance.random() < 0.5
        listed = world.hosts[: world.listed]
        alive = [h for h in listed if h.process is not None and h.process.is_alive]
        needed = world.listed // 2 + 1 - len(alive)
        back = [h for h in listed if h not in alive][: max(0, needed)]
        count = len(world.processes()) + len(back)
        others = [h for h in world.hosts if h not in alive and h not in back]
        others = [h for h in others if h.process is None or not h.process.is_alive]
        back += others if is_whole else others[: max(0, world.job.min_nodes - count)]
        for host in back:
            world.start(host)
        self._tell("no more faults; back: " + " ".join(host.name for host in back))
        begin = world.now
        bound = (world.times.lease_s + world.times.wait_s + 2.0) / 0.95
        while world.now - begin < _CALM_S or world.running() is None:
            world.run_until(world.now + 0.1)
            if world.now - begin < _CALM_S:
                self._replace()
            if world.running() is None:
                changed_at = max(begin, world.changed_at)
                since_s = world.now - min(
                    (at for at in world.outdated_at if at > changed_at), default=changed_at
                )
                self.longest_s = max(self.longest_s, since_s)
                if since_s > bound:
                    raise InvariantError(f"I11: no round runs {bound:.1f} s after the last fault")

    def _replace(self) -> None:
        """Start nodes again where too few are left: some have gone meanwhile as they were asked."""
        world = self.world
        voters = [h for h in world.hosts[: world.listed] if h.process and h.process.is_alive]
        few = len(world.processes()) < world.job.min_nodes
        few = few or len(voters) <= world.listed // 2
        for host in world.hosts if few else ():
            world.start(host)


class Resignations(History):
    """A history in which nodes only leave in order and return: as many as the job needs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._slow = 0.0
        self.world.job = job_of(len(self.world.hosts), len(self.world.hosts), max_restarts=0)
        for host in self.world.hosts:
            host.rate = 1.0

    def live(self) -> None:
        """Live through it; raises ``InvariantError``."""
        world, chance = self.world, self.chance
        world.run_until(20.0)
        for _ in range(chance.randint(1, 5)):
            leaders = [p.host for p in world.processes() if p.group is not None]
            hosts = [*leaders, *chance.sample(world.hosts, chance.choice((0, 0, 1)))]
            for host in hosts:
                if host.process is not None and host.process.runs and not host.process.is_over:
                    self._tell(f"{host.name} gets SIGTERM")
                    host.process.agent.leave()
                    world.later(chance.choice((2.0, 5.0, 12.0)), self._start_again, host)
                world.run_until(world.now + chance.choice((0.0, 0.1, 1.0)))
            world.run_until(world.now + chance.choice((8.0, 25.0)))
        world.run_until(world.now + 40.0)
        restarts = [p.group.restarts for p in world.processes() if p.group is not None]
        if any(restarts) or world.running() is None:
            raise InvariantError(f"nodes only left in order: {restarts} restarts, or no round runs")

    def _start_again(self, host: Host) -> None:
        if host.process is not None and host.process.is_alive:  # it still waits for its master
            self.world.later(0.5, self._start_again, host)
        else:
            self.world.start(host)


_WEIGHTS: dict[Callable[[History], None], int] = {
    History._split: 4,
    History._cut_one_way: 2,
    History._isolate: 3,
    History._heal: 4,
    History._kill: 4,
    History._power_off: 3,
    History._freeze: 4,
    History._fail: 2,
    History._terminate: 2,
    History._forge: 3,
}
_FAULTS = tuple(action for action, weight in _WEIGHTS.items() for _ in range(weight))


def live_through(seed: int, times: LeaseTimes = DEFAULT_TIMES) -> History:
    """Live through one history; raises what went wrong, with all that had happened."""
    return _live_through(History(seed, times), seed)


def live_through_resignations(seed: int) -> None:
    """Live through a history of ``Resignations``; raises as ``live_through``."""
    _live_through(Resignations(seed), seed)


def _live_through(history: History, seed: int) -> History:
    try:
        history.live()
    except Exception as error:
        error.args = (f"history {seed}: {error}\n" + "\n".join(history.world.said),)
        raise
    return history
