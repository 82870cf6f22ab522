"""Do the tests of the group's rules notice a broken rule? Break each on purpose and see.

Run it: ``python tests/break_rules.py [HISTORIES] [--of KIND] [--part K/N]``. Each rule is
broken in a copy of the package, by replacing a piece of source text; then the scenario tests and,
separately, the simulation must fail. Prints a table; exits 1 when a broken rule went unnoticed by
both. ``--of trust`` takes the rules of that kind; ``--part 2/3`` takes every third rule, from the
second on: processes can share the work.
"""

import argparse
import contextlib
import enum
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ft_run.tests.break_lease_rules import LEASE_BREAKS, LEASE_HISTORIES, SIMULATE_LEASE
from ft_run.tests.break_trust_rules import TRUST_BREAKS, TRUST_TESTS

ROOT = Path(__file__).resolve().parents[1]
HISTORIES = 4000
SCENARIOS = (
    "group/test_group",
    "group/test_restarts",
    "group/test_joining",
    "group/test_takeover",
    "group/test_speaking",
    "group/test_strangers",
    "group/test_world",
    "group/test_resumption",
    "group/test_drain",
    "group/test_silence",
    "group/test_policy_rounds",
    "group/test_checking",
    "lease/test_lease",
    "lease/test_traces",
    "policy/test_bounded_regex",
    "policy/test_rules",
    "policy/test_blame",
    "policy/test_budget",
    "policy/test_no_progress",
    "policy/test_suspicion",
    "protocol/test_failure",
)


class Kind(enum.Enum):
    """What a rule is of, and so which tests may notice that it is broken."""

    GROUP = "group"
    LEASE = "lease"
    """The simulation of hosts that may lead shows it."""
    TRUST = "trust"
    """Tests of the wire show it, and no simulation."""


@dataclass(frozen=True, slots=True)
class Break:
    """One rule and how to break it: ``old`` in ``module`` becomes ``new``."""

    rule: str
    module: str
    old: str
    new: str
    kind: Kind = Kind.GROUP


BREAKS = (
    Break(
        "every member is told to stop",
        "group/rounds",
        "for node in self._roster.in_phase(NodePhase.RUNNING, NodePhase.DONE):\n"
        "            self._roster.move(node, NodePhase.STOPPING)\n"
        "            self._out.send(node, stop)",
        "for node in self._roster.in_phase(NodePhase.RUNNING, NodePhase.DONE):\n"
        "            self._roster.move(node, NodePhase.STOPPING)\n"
        "            if node.rank != 1:\n"
        "                self._out.send(node, stop)",
    ),
    Break(
        "the ranks resume from the newest step",
        "group/resumption",
        "steps = sorted(known, reverse=True)",
        "steps = sorted(known)",
    ),
    Break(
        "the newest state that is there is saved at the end",
        "group/resumption",
        "sorted(own.keys() | replicas.keys(), reverse=True)",
        "sorted(own.keys() | replicas.keys())",
    ),
    Break(
        "only a state of which all shares are there is saved at the end",
        "group/resumption",
        "if sum(map(len, of_nodes.values())) == size > 0 and",
        "if of_nodes and",
    ),
    Break(
        "replicas are saved at the end",
        "group/resumption",
        "held.update(dict.fromkeys(replica.ranks, node_id))",
        "pass",
    ),
    Break(
        "what all ranks have alike is not saved as shares",
        "group/resumption",
        " == size > 0 and step not in alike:",
        " == size > 0:",
    ),
    Break(
        "what another round has left is not saved at the end",
        "group/resumption",
        "if there is None or (there.round, there.formed_by) != line:",
        "if there is None:",
    ),
    Break(
        "nodes that are not there save nothing",
        "group/rounds",
        "            for node in self._roster.in_phase(NodePhase.READY)\n"
        "            if node.link is not None",
        "            for node in self._roster.in_phase(NodePhase.READY)",
    ),
    Break(
        "a job that has succeeded saves nothing",
        "group/rounds",
        "self._savings() if outcome is not Outcome.SUCCEEDED else {}",
        "self._savings()",
    ),
    Break(
        "a node that comes back to hear the verdict saves its part",
        "group/joining",
        "self._rounds.ending.tell(link, node.spec.node_id)",
        "self._rounds.ending.tell(link)",
    ),
    Break(
        "what another round has left is not resumed from",
        "group/resumption",
        "if snapshots is not None and (snapshots.round, snapshots.formed_by) == line",
        "if snapshots is not None",
    ),
    Break(
        "only what is replicated is resumed from where a share is missing",
        "group/resumption",
        "is_replicated = bool(shares) and all(share.is_replicated for share in shares)",
        "is_replicated = True",
    ),
    Break(
        "shares that others hold count",
        "group/resumption",
        "ranks.update(replica.ranks)",
        "pass",
    ),
    Break(
        "shares of a world of another size do not count",
        "group/resumption",
        "if (replica.step, replica.world_size) == (step, world.world_size):",
        "if replica.step == step:",
    ),
    Break(
        "a share is that of its rank",
        "group/resumption",
        """        world.world_size,
        rank_offset,
""",
        """        world.world_size,
        snapshot.rank_offset,
""",
    ),
    Break(
        "a node may leave when all have left one state",
        "policy/drain",
        "steps = {self._steps.get(name) for name in members}",
        "steps = {self._steps[name] for name in members if name in self._steps} or {None}",
    ),
    Break(
        "the state that all leave is that of one step",
        "policy/drain",
        "(step, *others) = steps\n        if step is None or others:",
        "(step, *_) = steps\n        if None in steps or step is None:",
    ),
    Break(
        "what is left in one round is not taken for that of the next",
        "policy/drain",
        "if world != self._world:",
        "if self._world is None:",
    ),
    Break(
        "an order to drain is said again on another stream",
        "policy/drain",
        "if self._told.get(name) != (link, order.is_whole):",
        "if name not in self._told:",
    ),
    Break(
        "a restart is counted",
        "group/rounds",
        "self._state.restarts += 1",
        "self._state.restarts += 0",
    ),
    Break(
        "the budget is not exceeded",
        "policy/decision",
        "now) >= job.max_restarts",
        "now) > job.max_restarts",
    ),
    Break(
        "the budget is used up",
        "policy/decision",
        "now) >= job.max_restarts",
        "now) + 1 >= job.max_restarts",
    ),
    Break(
        "a regroup costs nothing",
        "group/rounds",
        "counted=False, departure=departure)",
        "counted=True, departure=departure)",
    ),
    Break(
        "a lost stream has a grace",
        "group/group",
        "self.roster.detach(node, now + self.settings.node_grace_s)",
        "self.roster.detach(node, now)",
    ),
    Break(
        "a node is lost after its grace",
        "group/group",
        "self.roster.detach(node, now + self.settings.node_grace_s)",
        "self.roster.detach(node, now + 1e6)",
    ),
    Break(
        "a round outlives that nothing is heard of it",
        "group/silence",
        "if self._has_anyone_spoken or self._is_cut_off:",
        "if True:",
    ),
    Break(
        "a round is not kept for ever",
        "group/silence",
        "self._not_before = now + self._settings.master_timeout_s",
        "self._not_before = math.inf",
    ),
    Break(
        "a node that has spoken since is not the last",
        "group/silence",
        "        self._has_anyone_spoken = True\n        if was",
        "        if was",
    ),
    Break(
        "the others are asked before a node is lost",
        "group/group",
        "self._out.send(node, Challenge())",
        "pass",
    ),
    Break(
        "a node that comes back after the silence leaves the others time",
        "group/group",
        "self.roster.await_return(now + self.settings.takeover_grace_s)",
        "self.roster.await_return(now)",
    ),
    Break(
        "a node that stays away is lost, however many others reconnect",
        "group/roster",
        "self._back_by.update(late)",
        "self._back_by.update(late | dict.fromkeys(self._back_by, until))",
    ),
    Break(
        "an answer ends the wait for it",
        "group/silence",
        "if was_cut_off or was_asked:",
        "if was_cut_off:",
    ),
    Break(
        "streams that all broke are no loss of all",
        "group/group",
        "                self._silence.all_broke(now)\n",
        "",
    ),
    Break(
        "a node that only lost a member that died with the master is not to blame",
        "group/takeover",
        "if is_short and not gone and not _has_own_failure(world):",
        "if is_short and not gone and not world.has_failed:",
    ),
    Break(
        "a failure of its own counts, whichever node came back anew",
        "group/takeover",
        "if is_short and not gone and not _has_own_failure(world):",
        "if is_short and not gone:",
    ),
    Break(
        "a node that stays away comes before those that lost it",
        "group/rounds",
        "            if taken.lost is not None:\n",
        "            if taken.lost is not None and self.postmortem.foremost is None:\n",
    ),
    Break(
        "a node that is restarted with the master takes its old rank",
        "group/rounds",
        "        self._keep_ranks(taken.ranks)\n",
        "",
    ),
    Break(
        "a node that has stopped while others still stop is no spare",
        "group/lobby",
        "if node.phase is NodePhase.READY and not is_member:",
        "if node.phase is NodePhase.READY:",
    ),
    Break(
        "a new master doubts the node whose failure it hears of",
        "group/rounds",
        "        node.round = claim.round\n",
        "        node.round = claim.round if claim.state is not ClaimState.STOPPED else -1\n",
    ),
    Break(
        "a node that has left before the first round decides nothing",
        "group/group",
        "            self._rounds.agree(None)\n",
        "",
    ),
    Break(
        "a node that has left before the first round takes its clock along",
        "group/group",
        "            self._rounds.agree(None)\n            self._lobby.close()\n",
        "            self._rounds.agree(None)\n",
    ),
    Break(
        "a job that has begun is not forgotten",
        "group/group",
        "is_waiting and not has_begun and not len",
        "is_waiting and not len",
    ),
    Break(
        "a node that leaves during a takeover is not missing",
        "group/group",
        "self._rounds.takeover.node_removed(name)",
        "self._rounds.takeover._forget(name)",
    ),
    Break(
        "a node that leaves as it comes back has not failed",
        "group/joining",
        "if attend.leaving and all(failure.after_stop for failure in claim.failures):",
        "if False:",
    ),
    Break(
        "a node that fails and then leaves has failed",
        "group/joining",
        "if attend.leaving and all(failure.after_stop for failure in claim.failures):",
        "if attend.leaving:",
    ),
    Break(
        "the failure of a node that left during a takeover counts",
        "group/rounds",
        "            if name in taken.members:\n                self._resume(node, claim)",
        "            if name in taken.members and node is not None:\n"
        "                self._resume(node, claim)",
    ),
    Break(
        "a new round waits for all to stop",
        "group/rounds",
        "self._state.phase = GroupPhase.STOPPING\n",
        "self._state.phase = GroupPhase.GATHERING\n",
    ),
    Break(
        "nodes that are slow to stop are waited for",
        "group/formation",
        "settled = ready == len(self._roster)",
        "settled = True",
    ),
    Break(
        "a node that was in a round of the job knows its options",
        "group/joining",
        "if self._state.job is None or attend.claim is None or is_begun:",
        "if True:",
    ),
    Break(
        "the options of a job that has begun hold",
        "group/joining",
        "if self._state.job is None or attend.claim is None or is_begun:",
        "if self._state.job is None or attend.claim is None:",
    ),
    Break(
        "options of another job do not hold",
        "group/joining",
        "is_same = attend.job.job_id == self._state.job.job_id",
        "is_same = True",
    ),
    Break(
        "a lost start is repeated",
        "group/joining",
        "self._out.send(node, Start(node.assignment))",
        "pass",
    ),
    Break(
        "a lost stop is repeated",
        "group/joining",
        "if was_told and node.phase in _TO_STOP:",
        "if False:",
    ),
    Break(
        "a node that seems not to know its round confirms its stop",
        "group/joining",
        "if was_told and node.phase in _TO_STOP:",
        "if was_told and claim is None:\n"
        "            self._stopped(node, node.round, attend.offer, now)\n"
        "        elif was_told and node.phase in _TO_STOP:",
    ),
    Break(
        "failures are caught up with",
        "group/joining",
        "self._rounds.failed(node, claim.round, failure)",
        "pass",
    ),
    Break(
        "stale workers are stopped",
        "group/joining",
        "elif claim is not None and claim.state is not ClaimState.STOPPED:\n"
        "            self._rounds.stop_stale(node, claim.round)\n"
        "        if attend.leaving:\n"
        "            self._rounds.leave",
        "elif attend.leaving:\n            self._rounds.leave",
    ),
    Break(
        "a message of another round changes nothing",
        "group/rounds",
        "if node.round != round_number or node.phase is NodePhase.READY:",
        "if node.phase is NodePhase.READY:",
    ),
    Break(
        "success of another round changes nothing",
        "group/rounds",
        "elif node.round == round_number and node.phase in IN_ROUND:",
        "elif node.phase in IN_ROUND:",
    ),
    Break(
        "the highest round is taken over",
        "group/takeover",
        "if _age(claim) > self._newest:",
        "if self.round < 0:",
    ),
    Break(
        "worlds of two masters with one number are two",
        "group/takeover",
        "return self._worlds.get(claim.formed_by) if is_of_the_highest else None",
        "return next(iter(self._worlds.values()), None) if is_of_the_highest else None",
    ),
    Break(
        "of worlds with one number the complete one is taken over",
        "group/takeover",
        "return (not world.missing, len(world.members))",
        "return (False, -len(world.members))",
    ),
    Break(
        "a member that was started again is not waited for",
        "group/takeover",
        "is_clear = not world.missing or self._are_replaced(world)",
        "is_clear = not world.missing",
    ),
    Break(
        "a departure is no cause where another member did not come back",
        "group/takeover",
        "departure=departure if finding is TakeoverState.REGROUP else None,",
        "departure=departure,",
    ),
    Break(
        "a stranger does not stand for a member",
        "group/takeover",
        "return len(names) == world.missing and all(map(self._is_there, names))",
        "return len(names) == world.missing",
    ),
    Break(
        "a takeover waits for the members",
        "group/takeover",
        "if now < self.until and not (world.members and is_clear):",
        "if now < self.until and not world.members:",
    ),
    Break(
        "a takeover is not held up by the missing for ever",
        "group/takeover",
        "if now < self.until and not (world.members and is_clear):",
        "if not (world.members and is_clear):",
    ),
    Break(
        "a failure before the takeover counts",
        "group/takeover",
        "        if world.has_failed:\n            return TakeoverState.FAILED\n",
        "",
    ),
    Break(
        "members are stopped during a takeover",
        "group/takeover",
        "is_over = world.has_failed if world is not None else _age(claim) < self._newest",
        "is_over = False",
    ),
    Break(
        "a takeover keeps the count of restarts",
        "group/joining",
        "self._state.restarts = claim.restarts",
        "pass",
    ),
    Break(
        "a takeover keeps the number of the round",
        "group/formation",
        "highest = max(self._state.round, self._state.highest)",
        "highest = self._state.round if self._state.world_nodes else -1",
    ),
    Break(
        "numbers never repeat when the highest comes last",
        "group/formation",
        "highest = max(self._state.round, self._state.highest)",
        "highest = self._state.round",
    ),
    Break(
        "spares do not form a world before the members are back",
        "group/joining",
        "if claim is not None and not self._state.formed_before:",
        "if claim is not None and claim.nodes and not self._state.formed_before:",
    ),
    Break(
        "a host of the same name is given another identity",
        "group/joining",
        "spec.node_id == held.node_id and spec.address != held.address and not is_same_rank",
        "False",
    ),
    Break(
        "what is no other host is refused",
        "group/joining",
        "spec.node_id == held.node_id and spec.address != held.address and not is_same_rank",
        "spec.node_id == held.node_id and not is_same_rank",
    ),
    Break(
        "one rank is not given twice",
        "group/joining",
        "spec.node_id == held.node_id and spec.address != held.address and not is_same_rank",
        "spec.node_id == held.node_id and spec.address != held.address",
    ),
    Break(
        "an identity that was given is kept",
        "group/joining",
        "if given != attend.node.node_id:",
        "if False:",
    ),
    Break(
        "an identity that is given is free",
        "group/identity",
        'while is_taken(f"{name}/{following}"):',
        "while False:",
    ),
    Break(
        "a repeated failure is one failure",
        "policy/postmortem",
        "if key in self._failures:",
        "if False:",
    ),
    Break(
        "the root cause is not collateral",
        "protocol/failure",
        "if blames_peer(words):",
        "if False:",
    ),
    Break(
        "spares hear the verdict",
        "group/rounds",
        "for node in self._roster if node.link is not None]",
        "for node in self._roster if node.link is not None and node.round == self._state.round]",
    ),
    Break(
        "a node that comes after the verdict hears it",
        "group/joining",
        "        if self._rounds.ending is not None:\n"
        "            self._out.add([self._rounds.ending.tell(link)])\n"
        "            return\n"
        "        rival",
        "        if self._rounds.ending is not None:\n            return\n        rival",
    ),
    Break(
        "a node of the next job is not told the verdict",
        "group/joining",
        "(sentence is not None or self._is_new(attend))",
        "sentence is not None",
    ),
    Break(
        "a node that was in the job is told its verdict",
        "group/joining",
        "attend.claim is None and attend.node.incarnation not in self._admitted",
        "True",
    ),
    Break(
        "a node that was in the job before its first round is told its verdict",
        "group/joining",
        "attend.claim is None and attend.node.incarnation not in self._admitted",
        "attend.claim is None",
    ),
    Break(
        "newcomers in a contest hear the verdict",
        "group/group",
        "newcomers = self._joining.contest.dissolve()",
        "newcomers = []",
    ),
    Break(
        "the master waits until all have heard",
        "group/ending",
        "if self.is_over or ((self._unheard or detached) and now < self.until):",
        "if self.is_over:",
    ),
    Break(
        "a node that has heard the verdict is not waited for",
        "group/group",
        "if had_heard:",
        "if False:",
    ),
    Break(
        "a wanted rank pins",
        "group/world",
        "(_survivors_pin, _unpinned_rank, _pin, _previous_rank)",
        "(_unpinned_rank, _previous_rank)",
    ),
    Break(
        "survivors keep their ranks",
        "group/world",
        "(_survivors_pin, _unpinned_rank, _pin, _previous_rank)",
        "(_survivors_pin, _pin)",
    ),
    Break(
        "a newcomer's pin takes no rank from a survivor without one",
        "group/world",
        "(_survivors_pin, _unpinned_rank, _pin, _previous_rank)",
        "(_survivors_pin, _pin, _previous_rank)",
    ),
    Break(
        "a stranger's claim changes nothing of a job that has a round",
        "group/joining",
        "return not self._state.formed_before or node.spec.incarnation in self._state.served",
        "return True",
    ),
    Break(
        "a member that was given a round is believed",
        "group/formation",
        "state.served.add(node.spec.incarnation)",
        "pass",
    ),
    Break(
        "a member of a round that was taken over is believed",
        "group/rounds",
        "self._state.served.add(node.spec.incarnation)",
        "pass",
    ),
    Break(
        "that a stranger has passed is not believed",
        "group/joining",
        "claim if self._may_teach(node) else None",
        "claim",
    ),
    Break(
        "a round has a number that no member has seen",
        "group/formation",
        "max(seen, highest)",
        "highest",
    ),
    Break(
        "a stranger does not drive the numbers of rounds up",
        "group/formation",
        "min(max(seen, highest), self._state.round + _ROUNDS_AHEAD_MAX)",
        "max(seen, highest)",
    ),
    Break(
        "other hosts that may lead do not drive the numbers of rounds up",
        "group/formation",
        "self._state.round + _ROUNDS_AHEAD_MAX",
        "highest + _ROUNDS_AHEAD_MAX",
    ),
    Break(
        "the unit is kept",
        "group/world",
        "size = min(count, max_nodes) // unit * unit",
        "size = min(count, max_nodes)",
    ),
    Break(
        "the maximum is kept",
        "group/world",
        "size = min(count, max_nodes) // unit * unit",
        "size = count // unit * unit",
    ),
    Break(
        "roles are counted for themselves",
        "group/world",
        "role_sizes[spec.role] += spec.local_world_size",
        'role_sizes[""] += spec.local_world_size',
    ),
    Break(
        "a world with room grows",
        "group/rounds",
        "self.rescale_at = now + delay_s",
        "pass",
    ),
    Break(
        "a node that has stopped stale workers makes the world grow",
        "group/rounds",
        "elif was_stale and self.ending is None:",
        "elif False:",
    ),
    Break(
        "a holder that answers keeps its identity",
        "group/group",
        "self._joining.answered(node, now)",
        "pass",
    ),
    Break(
        "a holder that does not answer loses its identity",
        "group/joining",
        "self.contest.postpone(rival.spec, now + self._state.settings.identity_answer_s)",
        "self.contest.postpone(rival.spec, now + 1e6)",
    ),
    Break(
        "a node that leaves may go when its workers are dead",
        "group/rounds",
        "        if node.leaving:\n            self.let_go(node)\n        elif was_stale",
        "        if was_stale",
    ),
    Break(
        "the offer of the last stop is used",
        "group/rounds",
        "        self._roster.move(node, NodePhase.READY)\n        node.offer = offer\n",
        "        self._roster.move(node, NodePhase.READY)\n",
    ),
    Break(
        "a repeated attend changes nothing",
        "group/group",
        "if node is None and not self._joining.contest.waits(link):",
        "if True:",
    ),
    Break(
        "time is not asked for again and again",
        "group/group",
        "if not self.state.formed_before and self.roster.ready_attached() == len(self.roster):",
        "if not self.state.formed_before:",
    ),
    Break(
        "the first rule that matches decides",
        "policy/rules",
        "for rule in rules:",
        "for rule in reversed(rules):",
    ),
    Break(
        "words are found anywhere in a line",
        "policy/bounded_regex",
        "[*places, self._start]",
        "[*places, *(() if before else (self._start,))]",
    ),
    Break(
        "the boundary of a word depends on both sides",
        "policy/bounded_regex",
        'before if self._has_guards else ""',
        '""',
    ),
    Break(
        "fail ends the job",
        "policy/decision",
        "if decision.action is Action.FAIL:",
        "if False:",
    ),
    Break(
        "a free restart is not counted",
        "policy/rules",
        "return self in (Action.RESTART, Action.REPLACE_NODE)",
        "return self is not Action.FAIL",
    ),
    Break(
        "replacing a node is counted",
        "policy/rules",
        "return self in (Action.RESTART, Action.REPLACE_NODE)",
        "return self is Action.RESTART",
    ),
    Break(
        "a typo ends the job",
        "policy/rules",
        "    if is_repeated:\n",
        "    if False:\n",
    ),
    Break(
        "the second typo must be that of the first",
        "policy/matches",
        "return (one.kind, one.exit_code, _first_line(one)) == (",
        "return (one.kind, one.exit_code, _first_line(other)) == (",
    ),
    Break(
        "the second typo may be at another rank",
        "policy/matches",
        "return (one.kind, one.exit_code, _first_line(one)) == (",
        "return one.rank == other.rank and (one.kind, one.exit_code, _first_line(one)) == (",
    ),
    Break(
        "an error without words is no typo",
        "policy/matches",
        "if failure.exit_code == 1 and not failure.message.strip():",
        "if failure.exit_code == 1 and not failure.message.strip():\n"
        '        return Look(True, "")\n'
        "    if False:",
    ),
    Break(
        "a new master can replace a node that does not come back to it",
        "group/rounds",
        "state.members = taken.ranks | members",
        "state.members = members",
    ),
    Break(
        "a node that was started again is not taken for away",
        "group/takeover",
        "for rank, name in world.absent().items() if not self._is_there(name)}",
        "for rank, name in world.absent().items()}",
    ),
    Break(
        "a typo comes soon after the start",
        "policy/rules",
        "return after is not None and after < SLIP_S and is_slip(failure)",
        "return is_slip(failure)",
    ),
    Break(
        "a departure is answered by the policy",
        "policy/decision",
        "failure = postmortem.cause or postmortem.preempted",
        "failure = postmortem.cause",
    ),
    Break(
        "a rule replaces the node of the root cause",
        "policy/decision",
        "if decision.action is Action.REPLACE_NODE:",
        "if False:",
    ),
    Break(
        "a node that fails often is excluded",
        "policy/decision",
        "times < policy.max_node_failures",
        "times <= policy.max_node_failures",
    ),
    Break(
        "no node is excluded without a stand-in",
        "policy/decision",
        " or not has_stand_in:",
        ":",
    ),
    Break(
        "a node that is not fit does not stand in",
        "group/rounds",
        "self._state.usable(len(self.gate.fit(others)))",
        "self._state.usable(len(others))",
    ),
    Break(
        "the node that is to go is not in its own way",
        "group/checks",
        "out = self._kept_out(ready)",
        "out = self._kept_out(self._roster.ready_nodes())",
    ),
    Break(
        "a node does not stand in for itself",
        "group/rounds",
        "others = [node for node in self._roster.ready_nodes() if node.spec.node_id != node_id]",
        "others = self._roster.ready_nodes()",
    ),
    Break(
        "an excluded node is sent away",
        "group/rounds",
        "                self._gone(node)\n            if node is None",
        "                pass\n            if node is None",
    ),
    Break(
        "an excluded node may not rejoin",
        "group/joining",
        "if self._rounds.turn_away(link, attend.node.node_id):",
        "if False:",
    ),
    Break(
        "an excluded node may not rejoin by a contest either",
        "group/joining",
        "        if self._rounds.turn_away(link, spec.node_id):",
        "        if False:",
    ),
    Break(
        "assignments tell which nodes are excluded",
        "policy/decision",
        "return Past(ages, excluded, failures=failures, progress=progress)",
        "return Past(ages, (), failures=failures, progress=progress)",
    ),
    Break(
        "assignments tell which nodes have failed",
        "policy/decision",
        "return Past(ages, excluded, failures=failures, progress=progress)",
        "return Past(ages, excluded, progress=progress)",
    ),
    Break(
        "assignments tell how far the job is",
        "policy/decision",
        "return Past(ages, excluded, failures=failures, progress=progress)",
        "return Past(ages, excluded, failures=failures)",
    ),
    Break(
        "a later master learns how far the job is",
        "group/joining",
        "self._state.aftermath.progress.learn(past.progress)",
        "pass",
    ),
    Break(
        "restarts without a step end the job",
        "policy/no_progress",
        "self._past.idle_restarts < limit:",
        "self._past.idle_restarts <= limit:",
    ),
    Break(
        "the first round is no restart without a step",
        "policy/no_progress",
        "idle = 0 if self._past is None",
        "idle = 1 if self._past is None",
    ),
    Break(
        "a step that was done before is no progress",
        "policy/no_progress",
        "self._past = PastProgress(max(furthest, before), 0)",
        "self._past = PastProgress(furthest, 0)",
    ),
    Break(
        "any step of a script that has resumed may be a new one",
        "policy/no_progress",
        "or (has_stepped and furthest < 0):",
        "or False:",
    ),
    Break(
        "a node that has not said how far it came may have done a step",
        "policy/no_progress",
        "elif is_complete and has_failed:",
        "elif has_failed:",
    ),
    Break(
        "a regroup is no restart without a step",
        "policy/no_progress",
        "elif is_complete and has_failed:",
        "elif is_complete:",
    ),
    Break(
        "what nodes say of their steps counts",
        "group/rounds",
        "if progress is not None and not was_stale:",
        "if progress is not None and was_stale:",
    ),
    Break(
        "a later master learns which nodes have failed",
        "group/joining",
        "self._state.aftermath.ledger.learn_failures(past.failures, past.since_s, now)",
        "pass",
    ),
    Break(
        "failures of nodes grow old while the master is away",
        "policy/blame",
        "times = [now - since_s - age for age in node.ages_s]",
        "times = [now - age for age in node.ages_s]",
    ),
    Break(
        "what is known of the failures of a node is not forgotten for less",
        "policy/blame",
        "if len(node.ages_s) > len(self._failures.get(node.node_id, ())):",
        "if True:",
    ),
    Break(
        "a later master learns which nodes are excluded",
        "group/joining",
        "if past.excluded and self._state.aftermath.ledger.learn(past.excluded):",
        "if False:",
    ),
    Break(
        "a later master learns what counts within the window",
        "group/joining",
        "self._state.aftermath.budget.learn(ages, now)",
        "pass",
    ),
    Break(
        "ages grow while the master is away",
        "group/joining",
        "[age + past.since_s for age in past.restart_ages_s]",
        "list(past.restart_ages_s)",
    ),
    Break(
        "restarts leave the window",
        "policy/budget",
        "while self._times and now - self._times[0] >= window_s:",
        "while False:",
    ),
    Break(
        "restarts are spaced",
        "group/rounds",
        "self._lobby.not_before = now + answer.delay_s",
        "self._lobby.not_before = now",
    ),
    Break(
        "the next round waits for its time",
        "group/formation",
        "if job is None or now < self._lobby.opens_at:",
        "if job is None:",
    ),
    Break(
        "delays double",
        "policy/budget",
        "* 2.0**doublings)",
        "* 1.0**doublings)",
    ),
    Break(
        "a calm round begins the delays anew",
        "policy/budget",
        "self._in_succession = 0\n        number",
        "pass\n        number",
    ),
    Break(
        "free restarts are spaced by default",
        "policy/budget",
        "if not longest and is_free:",
        "if False:",
    ),
    Break(
        "rank 0 decides where it should",
        "group/rounds",
        "self.rank0_is_done |= self._state.policy.rank0_decides and node.rank == 0",
        "pass",
    ),
    Break(
        "rank 0 decides only where it should",
        "group/rounds",
        "self.rank0_is_done |= self._state.policy.rank0_decides and node.rank == 0",
        "self.rank0_is_done |= node.rank == 0",
    ),
    Break(
        "the success of rank 0 outlives the master",
        "group/rounds",
        "self.rank0_is_done = state.policy.rank0_decides and taken.rank0_is_done",
        "pass",
    ),
    Break(
        "a lost node after the verdict changes nothing",
        "group/rounds",
        "if was_running and self.ending is None:",
        "if was_running:",
    ),
    Break(
        "a dead node is dated by its stream",
        "group/group",
        "self._rounds.postmortem.suspect(node.spec.node_id)",
        "pass",
    ),
    Break(
        "a cause that cannot be collateral goes first",
        "protocol/failure",
        "return min(failures, key=evidence, default=None)",
        "return failures[0] if failures else None",
    ),
    Break(
        "the cause is kept among thousands",
        "policy/postmortem",
        "if is_collateral or not self._collateral:",
        "if True:",
    ),
    Break(
        "weak evidence lets workers settle",
        "group/rounds",
        "lets_settle=not is_certain)",
        "lets_settle=False)",
    ),
    Break(
        "another policy is refused",
        "group/admission",
        "given.policy or _DEFAULT_POLICY, agreed.policy or _DEFAULT_POLICY, _POLICY_OPTIONS",
        "_DEFAULT_POLICY, _DEFAULT_POLICY, _POLICY_OPTIONS",
    ),
    Break(
        "a node of another list or fence is refused",
        "group/admission",
        "    if differences:\n        return _differ(differences)",
        "    if False:\n        return _differ(differences)",
    ),
    Break(
        "no world is formed before the checks",
        "group/checks",
        "return self._spec.only or fit != size",
        "return self._spec.only",
    ),
    Break(
        "only a node that has passed enters a world",
        "group/checks",
        "if node.passed and node.spec.node_id not in out]",
        "if node.spec.node_id not in out]",
    ),
    Break(
        "a condemned node may not come back",
        "group/checks",
        "self._state.aftermath.ledger.exclude(\n"
        '                    name, f"it failed the checks: {finding.sentence}"\n'
        "                )",
        "pass",
    ),
    Break(
        "the two ends of a bad link are kept apart",
        "group/checks",
        "(out if inside & ends[name] else inside).add(name)",
        "inside.add(name)",
    ),
    Break(
        "doubt makes a node pass again",
        "group/checks",
        "        for node in nodes:\n            node.passed = False\n",
        "        pass\n",
    ),
    Break(
        "a node that was lost has to pass again",
        "group/checks",
        "self._doubted.add(node_id)",
        "pass",
    ),
    Break(
        "a late answer changes nothing",
        "group/checks",
        "if result.number <= node.answered:",
        "if False:",
    ),
    Break(
        "an order that was lost is repeated",
        "group/checks",
        "        if order is not None:\n            self._out.send(node, order)",
        "        if False:\n            self._out.send(node, order)",
    ),
    Break(
        "a node that does not answer has failed",
        "group/checks",
        'current.examination.silent(name, f"no answer within {current.limit_s:.0f} s")',
        "pass",
    ),
    Break(
        "a lost node condemns no other",
        "group/checks",
        "current.examination.lost(node_id)",
        'current.examination.silent(node_id, "lost")',
    ),
    Break(
        "a node that has passed alone has not passed with others",
        "group/checks",
        "(node.has_met or len(nodes) == 2)",
        "True",
    ),
    Break(
        "nodes that passed alone must be paired before they share a world",
        "group/checks",
        "return max(company, recent, fit[:1], key=len)",
        "return fit",
    ),
    Break(
        "a world of the fit grows when others turn out to be",
        "group/formation",
        "        self._rounds.plan_rescale(now)  # those left out may yet turn out to be fit\n",
        "",
    ),
    Break(
        "a new master believes what its nodes have passed",
        "group/checks",
        "is_trusted = claim is not None and claim.checked",
        "is_trusted = False",
    ),
    Break(
        "too few fit nodes end the job",
        "group/formation",
        "self._rounds.finish(Outcome.CHECKS_FAILED, now, self._too_few(found))",
        "self._lobby.open(now)",
    ),
    Break(
        "a hang that is found too late stops no other round",
        "group/rounds",
        "if event.round == self._state.round and self._state.phase is GroupPhase.RUNNING:",
        "if self._state.phase is GroupPhase.RUNNING:",
    ),
    Break(
        "where a rank moves it is no hang",
        "policy/suspicion",
        'return "is moving"',
        'return ""',
    ),
    Break(
        "a rank that gets on is not late",
        "policy/suspicion",
        "if stack.rank in idle_s and is_same[stack.rank]]",
        "if stack.rank in idle_s]",
    ),
    Break(
        "what a rank says of its progress counts for all",
        "policy/suspicion",
        "if are_stepping\n            and stack.ticks",
        "if stack.ticks",
    ),
    Break(
        "what waits for ranks that get on does not hang",
        "policy/suspicion",
        "            and wait_of(stack) is None\n",
        "",
    ),
    Break(
        "a job that was suspended does not hang",
        "policy/suspicion",
        "if len(after) > 1 and all(map(_is_stopped, after)):",
        "if False and all(map(_is_stopped, after)):",
    ),
    Break(
        "a debugger is left alone",
        "policy/suspicion",
        'return "is in a debugger"',
        'return ""',
    ),
    *(Break(*named, Kind.LEASE) for named in LEASE_BREAKS),
    *(Break(*named, Kind.TRUST) for named in TRUST_BREAKS),
)


def source_of(broken: Break, package: Path = ROOT) -> Path:
    """Return the file in which a rule is broken."""
    return package / "rendezvous" / f"{broken.module}.py"


def check_breaks() -> None:
    """Every piece of text to replace must be there once, or another rule is broken, or none."""
    for broken in BREAKS:
        count = source_of(broken).read_text().count(broken.old)
        if count != 1:
            sys.exit(f"{broken.rule}: its text is {count} times in {broken.module}.py, not once")


@contextlib.contextmanager
def broken_rule(package: Path, broken: Break) -> Iterator[None]:
    """Break a rule in a copy of the package for a while."""
    path = source_of(broken, package)
    source = path.read_text()
    path.write_text(source.replace(broken.old, broken.new, 1))
    yield
    path.write_text(source)


def copy_package(to: Path) -> Path:
    """Copy what the group's rules and their tests need."""
    package = to / "ft_run"
    package.mkdir()
    for name in (
        "__init__.py",
        "defaults.py",
        "exit_codes.py",
        "errors.py",
        "values.py",
        "pyproject.toml",
    ):
        shutil.copy(ROOT / name, package)
    for folder in ("protos", "rendezvous", "checks", "launcher", "tests"):
        shutil.copytree(
            ROOT / folder, package / folder, ignore=shutil.ignore_patterns("e2e", "__pycache__")
        )
    return package


def run(package: Path, *command: str) -> str:
    """Run Python in the copy; return what it printed, empty when it exited 0."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=package,
        env=os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def failed_scenario(package: Path, kind: Kind) -> str:
    """Run the scenario tests of a copy; return the name of the first that fails."""
    names = TRUST_TESTS if kind is Kind.TRUST else SCENARIOS
    paths = [str(package / "tests" / "rendezvous" / f"{name}.py") for name in names]
    printed = run(package, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths)
    failed = re.search(r"^FAILED .*::(\S+)", printed, re.MULTILINE)
    if printed and failed is None:
        sys.exit(f"the tests did not run:\n{printed}")
    return failed.group(1) if failed else ""


def failed_history(package: Path, kind: Kind, histories: int = HISTORIES) -> str:
    """Simulate random histories in a copy; return what the first bad one breaks."""
    script = _SIMULATE
    if kind is Kind.LEASE:
        script, histories = SIMULATE_LEASE, min(histories, LEASE_HISTORIES)
    elif kind is Kind.TRUST:
        return ""
    printed = run(package, "-c", script, str(histories))
    return printed.strip().splitlines()[-1][:70] if printed else ""


_SIMULATE = """
import random, sys
from ft_run.tests.harness.simulation import SETUP_BYTES, live_through
random.seed(1)
for number in range(int(sys.argv[1])):
    data = random.randbytes(SETUP_BYTES + random.randrange(40, 400))
    try:
        live_through(data)
    except Exception as error:
        sys.exit(f"history {number}: {str(error).splitlines()[0] or type(error).__name__}")
"""


def main(histories: int, kinds: Collection[Kind], part: int = 1, parts: int = 1) -> int:
    """Break all rules of a part, one after the other; return the exit status."""
    check_breaks()
    unnoticed = 0
    breaks = [broken for broken in BREAKS if broken.kind in kinds][part - 1 :: parts]
    with tempfile.TemporaryDirectory() as folder:
        package = copy_package(Path(folder))
        for kind in kinds:
            if whole := failed_scenario(package, kind) or failed_history(package, kind, histories):
                sys.exit(f"nothing is broken yet, and still: {whole}")
        print(f"{'rule that is broken':58} | {'scenario test':54} | simulation, {histories}")
        for broken in breaks:
            with broken_rule(package, broken):
                scenario = failed_scenario(package, broken.kind)
                simulated = failed_history(package, broken.kind, histories)
            unnoticed += not (scenario or simulated)
            print(f"{broken.rule:58} | {scenario[:54] or '-':54} | {simulated or '-'}", flush=True)
    print(f"{len(breaks)} rules broken, {unnoticed} unnoticed")
    return 1 if unnoticed else 0


def _part(text: str) -> tuple[int, int]:
    part, parts = (int(number) for number in text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Break each rule and see whether it is noticed.")
    parser.add_argument("histories", type=int, nargs="?", default=HISTORIES)
    parser.add_argument("--of", type=Kind, help="group, lease or trust; default: all")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N")
    arguments = parser.parse_args()
    chosen = tuple(Kind) if arguments.of is None else (arguments.of,)
    sys.exit(main(arguments.histories, chosen, *arguments.part))
