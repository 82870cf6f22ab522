"""Acceptor, elector, search and fence, one rule at a time."""

import math

import pytest
from ft_run.rendezvous.lease.acceptor import Acceptor
from ft_run.rendezvous.lease.elector import Elector
from ft_run.rendezvous.lease.fence import Fence
from ft_run.rendezvous.lease.search import Search
from ft_run.rendezvous.lease.times import LeaseTimes
from ft_run.rendezvous.protocol.bounds import BALLOT_MAX, COUNT_MAX
from ft_run.rendezvous.protocol.lease_messages import NO_ROUND, LeaseAnswer, LeaseAsk, LeaseStep

TIMES = LeaseTimes(lease_s=3.0, fence_s=6.0, silence_s=4.0)


def asked(step: LeaseStep, number: int, process: str = "p0", **given: int) -> LeaseAsk:
    """Return a question of host 0."""
    return LeaseAsk(step, 0, process, number, given.pop("term", number), 3000, **given)


PREPARE, PROPOSE, RELEASE = LeaseStep.PREPARE, LeaseStep.PROPOSE, LeaseStep.RELEASE


class Hosts:
    """Electors that hear each other, some of them not."""

    def __init__(self, count: int = 3) -> None:
        self.now = 0.0
        self.deaf: set[int] = set()
        self.electors = [self.new(place, count) for place in range(count)]

    def new(self, place: int, count: int = 3) -> Elector:
        """Return a host that was just started."""
        return Elector(count, place, f"p{place}-{self.now}", TIMES, self.now, lambda: 0.5)

    def say(self, place: int, ask: LeaseAsk | None) -> None:
        """Let a host ask all others, and what follows."""
        elector = self.electors[place]
        while ask is not None:
            following = None
            for other, voter in enumerate(self.electors):
                if other != place and not {other, place} & self.deaf:
                    answer = voter.answer(ask, self.now)
                    following = elector.receive(other, ask, answer, self.now) or following
            ask = following

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds * 20)):
            self.now += 0.05
            for place, elector in enumerate(self.electors):
                if place not in self.deaf or elector.leads(self.now):
                    self.say(place, elector.due(self.now))

    def leaders(self) -> list[int]:
        """Return which hosts lead."""
        return [p for p, elector in enumerate(self.electors) if elector.leads(self.now)]


def test_an_acceptor_that_was_started_again_has_no_vote_for_a_lease() -> None:
    acceptor = Acceptor(3.0, now=10.0)
    assert not acceptor.ask(asked(PREPARE, 3), 12.9).accepted
    assert acceptor.ask(asked(PREPARE, 3), 13.0).accepted


def test_an_acceptor_without_a_vote_learns_that_the_job_is_over() -> None:
    acceptor = Acceptor(3.0, now=10.0)
    assert not acceptor.ask(asked(PROPOSE, 3), 11.0).accepted
    assert not acceptor.ask(asked(PREPARE, 4, "p1"), 11.0).accepted  # it does not lead
    assert not acceptor.ask(asked(LeaseStep.END, 4, "p1"), 11.5).accepted
    assert acceptor.ask(asked(LeaseStep.END, 3), 11.5).accepted


def test_a_lease_that_runs_is_not_given_away_nor_is_the_promise_raised() -> None:
    acceptor = Acceptor(3.0, now=0.0)
    assert acceptor.ask(asked(PREPARE, 3), 4.0).accepted
    assert acceptor.ask(asked(PROPOSE, 3), 4.0).accepted
    assert not acceptor.ask(asked(PREPARE, 7, "p1"), 5.0).accepted
    assert acceptor.leader(5.0) == (0, 3)
    assert acceptor.ask(asked(PROPOSE, 3), 5.0).accepted  # renewed
    assert not acceptor.ask(asked(PROPOSE, 8, "p1"), 7.9).accepted
    assert acceptor.ask(asked(PREPARE, 7, "p1"), 8.0).accepted


def test_a_promise_is_kept() -> None:
    acceptor = Acceptor(3.0, now=0.0)
    assert acceptor.ask(asked(PREPARE, 7), 4.0).accepted
    assert not acceptor.ask(asked(PREPARE, 6, "p1"), 4.0).accepted
    assert not acceptor.ask(asked(PROPOSE, 6, "p1"), 4.0).accepted
    assert acceptor.ask(asked(PROPOSE, 7), 4.0).accepted


def test_a_lease_of_another_length_is_refused() -> None:
    acceptor = Acceptor(5.0, now=0.0)
    assert not acceptor.ask(asked(PREPARE, 3), 9.0).accepted


def test_a_lease_that_was_given_back_is_over() -> None:
    acceptor = Acceptor(3.0, now=0.0)
    acceptor.ask(asked(PREPARE, 3), 4.0)
    acceptor.ask(asked(PROPOSE, 3), 4.0)
    assert not acceptor.ask(asked(RELEASE, 3, "p1"), 4.1).accepted
    assert acceptor.leader(4.1) == (0, 3)
    assert acceptor.ask(asked(RELEASE, 3), 4.2).accepted
    assert acceptor.leader(4.2) is None


def test_a_promise_is_given_again_to_the_process_that_has_it_and_to_no_other() -> None:
    """It comes to one host by several names, or a message comes twice."""
    acceptor = Acceptor(3.0, now=0.0)
    assert acceptor.ask(asked(PREPARE, 6), 4.0).accepted
    assert acceptor.ask(asked(PREPARE, 6), 4.0).accepted
    assert not acceptor.ask(asked(PREPARE, 6, "p1"), 4.0).accepted
    assert not acceptor.ask(asked(PREPARE, 3), 4.0).accepted
    assert acceptor.ask(asked(PREPARE, 7, "p1"), 4.0).accepted
    assert not acceptor.ask(asked(PREPARE, 6), 4.0).accepted


@pytest.mark.parametrize(("hosts", "leads"), [(3, True), (5, False)])
def test_a_host_with_two_names_has_two_votes(hosts: int, leads: bool) -> None:
    elector = Elector(hosts, 0, "p0", TIMES, 0.0, lambda: 0.5)
    ask = elector.due(4.0)
    while ask is not None:
        answer = elector.answer(ask, 4.0)
        assert answer.host == 0
        ask = elector.receive(1, ask, answer, 4.0)
    assert elector.leads(4.0) is leads


def test_a_lease_that_is_given_back_too_late_runs_on() -> None:
    acceptor = Acceptor(3.0, now=0.0)
    acceptor.ask(asked(PROPOSE, 3), 4.0)
    acceptor.ask(asked(PROPOSE, 6), 4.1)  # the next one, of the same process
    assert not acceptor.ask(asked(RELEASE, 3), 4.2).accepted
    assert acceptor.leader(4.2) == (0, 6)


def test_votes_that_did_not_suffice_are_given_back() -> None:
    elector = Elector(3, 0, "p0", TIMES, 0.0, lambda: 0.5)
    prepare = elector.due(4.0)
    assert prepare is not None
    propose = elector.receive(1, prepare, LeaseAnswer(True, 0), 4.0)
    assert propose is not None
    assert elector.acceptor.leader(4.0) == (0, propose.number)
    assert elector.receive(1, propose, LeaseAnswer(False, 0), 4.0) is None
    release = elector.receive(2, propose, LeaseAnswer(False, 0), 4.0)
    assert release is not None
    assert (release.step, release.number) == (RELEASE, propose.number)
    assert elector.acceptor.leader(4.0) is None
    assert elector.receive(1, propose, LeaseAnswer(True, 0), 4.1) is None  # too late
    assert not elector.leads(4.1)


def test_a_renewal_that_fails_gives_nothing_back_before_the_lease_is_over() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    elector = hosts.electors[first]
    hosts.deaf = {0, 1, 2}
    while elector.leads(hosts.now):
        assert elector.acceptor.leader(hosts.now) is not None
        hosts.run(0.05)
    assert elector.acceptor.leader(hosts.now) is not None
    release = elector.due(hosts.now)
    assert release is not None
    assert release.step is RELEASE
    assert elector.acceptor.leader(hosts.now) is None


def test_a_renewal_that_a_release_has_overtaken_is_refused() -> None:
    acceptor = Acceptor(3.0, now=0.0)
    acceptor.ask(asked(PREPARE, 3), 4.0)
    acceptor.ask(asked(PROPOSE, 3), 4.0)
    assert acceptor.ask(asked(RELEASE, 3), 4.2).accepted
    assert not acceptor.ask(asked(PROPOSE, 3), 4.3).accepted
    assert acceptor.leader(4.3) is None
    assert acceptor.ask(asked(PREPARE, 6), 4.4).accepted
    assert acceptor.ask(asked(PROPOSE, 6), 4.4).accepted


def test_a_leader_gives_back_the_votes_that_it_has_asked_for_last() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    elector = hosts.electors[first]
    hosts.deaf = {0, 1, 2}
    hosts.run(0.3)
    renewal = None
    while renewal is None:
        hosts.now += 0.05
        renewal = elector.due(hosts.now)
    outbid = LeaseAnswer(False, renewal.number + 7)
    prepare = elector.receive((first + 1) % 3, renewal, outbid, hosts.now)
    assert prepare is not None
    assert prepare.number > renewal.number
    release = elector.give_back(hosts.now)
    assert release is not None
    assert release.number == prepare.number


def test_a_candidate_that_was_outbid_does_not_wait_for_a_host_that_is_down() -> None:
    elector = Elector(3, 0, "p0", TIMES, 0.0, lambda: 1.0)
    prepare = elector.due(4.0)
    assert prepare is not None
    assert elector.deadline() == 5.0
    assert elector.receive(1, prepare, LeaseAnswer(False, 7), 4.05) is None
    assert elector.due(4.25) is None
    assert elector.deadline() == pytest.approx(4.3)
    assert elector.due(4.3) is None
    retry = elector.due(4.8)
    assert retry is not None
    assert (retry.step, retry.number) == (PREPARE, 9)


def test_a_leader_that_one_host_refuses_waits_for_the_others() -> None:
    elector = Elector(3, 0, "p0", TIMES, 0.0, lambda: 0.5)
    prepare = elector.due(4.0)
    assert prepare is not None
    propose = elector.receive(1, prepare, LeaseAnswer(True, 0), 4.0)
    assert propose is not None
    elector.receive(1, propose, LeaseAnswer(True, 0), 4.0)
    renewal = elector.due(5.0)
    assert renewal is not None
    elector.receive(1, renewal, LeaseAnswer(False, 0), 5.0)
    assert elector.deadline() == 6.0


def test_three_of_five_hosts_give_the_lease() -> None:
    elector = Elector(5, 0, "p0", TIMES, 0.0, lambda: 0.5)
    prepare = elector.due(4.0)
    assert prepare is not None
    assert elector.receive(1, prepare, LeaseAnswer(True, 0), 4.0) is None
    propose = elector.receive(2, prepare, LeaseAnswer(True, 0), 4.0)
    assert propose is not None
    assert elector.receive(1, propose, LeaseAnswer(True, 0), 4.0) is None
    assert not elector.leads(4.0)
    elector.receive(2, propose, LeaseAnswer(True, 0), 4.0)
    assert elector.leads(4.0)


def test_a_late_answer_to_a_renewal_does_not_count_for_the_next_one() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    elector = hosts.electors[first]
    renewals: list[LeaseAsk] = []
    while len(renewals) < 2:
        hosts.now += 0.05
        renewals += [ask for ask in [elector.due(hosts.now)] if ask is not None]
    assert renewals[0] == renewals[1]
    left_s = elector.lease_left_s(hosts.now)
    assert left_s > 0
    elector.receive((first + 1) % 3, renewals[0], LeaseAnswer(True, 0), hosts.now)
    assert elector.lease_left_s(hosts.now) == left_s
    elector.receive((first + 1) % 3, renewals[1], LeaseAnswer(True, 0), hosts.now)
    assert elector.lease_left_s(hosts.now) > left_s


def test_a_job_that_is_over_is_told_also_without_a_lease() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    hosts.deaf = {0, 1, 2}
    hosts.run(3)
    assert hosts.electors[first].give_back(hosts.now) is None
    end = hosts.electors[first].give_back(hosts.now, exit_code=7)
    assert end is not None
    assert (end.step, end.exit_code) == (LeaseStep.END, 7)
    assert hosts.electors[(first + 1) % 3].answer(end, hosts.now).accepted


def test_one_host_leads_and_its_term_stays() -> None:
    hosts = Hosts()
    hosts.run(4)
    (leader,) = hosts.leaders()
    elector = hosts.electors[leader]
    term = elector.term
    assert elector.is_first
    hosts.run(20)
    assert hosts.leaders() == [leader]
    assert elector.term == term
    assert {e.leader(hosts.now) for e in hosts.electors} == {(leader, term)}


def test_another_host_leads_when_the_lease_is_over_and_is_not_the_first() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    term = hosts.electors[first].term
    hosts.deaf = {first}
    hosts.run(2)
    assert hosts.leaders() in ([first], [])
    hosts.run(2.5)
    (second,) = hosts.leaders()
    assert second != first
    assert hosts.electors[second].term > term
    assert not hosts.electors[second].is_first


@pytest.mark.parametrize("is_announced", [False, True])
def test_next_leader_waits_only_if_a_round_was_announced(is_announced: bool) -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    if is_announced:
        hosts.say(first, hosts.electors[first].announce((hosts.electors[first].term, 0), hosts.now))
    hosts.say(first, hosts.electors[first].give_back(hosts.now))
    hosts.run(3)
    (second,) = hosts.leaders()
    elector = hosts.electors[second]
    assert elector.is_first is not is_announced
    hosts.say(second, elector.announce((elector.term, 1), hosts.now))
    hosts.run(3)
    assert elector.is_first is not is_announced


@pytest.mark.parametrize("followed", [0, 1, 4, 100])
def test_leader_waits_if_a_node_followed_a_leader_that_no_host_remembers(followed: int) -> None:
    hosts = Hosts()
    hosts.electors[1].observe(followed, hosts.now)
    hosts.run(6)
    (leader,) = hosts.leaders()
    elector = hosts.electors[leader]
    assert elector.is_first is not bool(followed)
    hosts.say(leader, elector.announce((elector.term, 0), hosts.now))
    hosts.run(3)
    assert elector.is_first is not bool(followed)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_restarted_host_does_not_vouch_for_a_round_of_which_another_host_has_told(
    is_restarted: bool,
) -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    hosts.say(first, hosts.electors[first].announce((hosts.electors[first].term, 0), hosts.now))
    hosts.deaf = {first}
    hosts.run(8)
    (second,) = hosts.leaders()
    last = 3 - first - second
    if is_restarted:  # only the last host, which is cut off then, knows the round of the second
        elector = hosts.electors[second]
        hosts.say(second, elector.announce((elector.term, 1), hosts.now))
        hosts.electors[second] = hosts.new(second)
    hosts.deaf = {last}
    hosts.run(8)
    (leader,) = (hosts.electors[place] for place in hosts.leaders())
    assert leader.known == (hosts.electors[first].acceptor.formed)
    assert leader.quorum_term == (0 if is_restarted else leader.known[0])


def test_hosts_do_not_vouch_for_a_newer_round_than_the_one_announced_to_them() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    hosts.say(first, hosts.electors[first].announce((hosts.electors[first].term, 0), hosts.now))
    newer = hosts.electors[first].term + 30, 1
    for elector in hosts.electors:
        elector.acceptor.learn_round(*newer)
    hosts.deaf = {first}
    hosts.run(8)
    (leader,) = (hosts.electors[place] for place in hosts.leaders())
    assert (leader.known, leader.quorum_term) == (newer, 0)


def test_a_host_that_was_cut_off_does_not_unseat_the_leader() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    term = hosts.electors[first].term
    other = (first + 1) % 3
    third = 3 - first - other
    hosts.deaf = {other}
    hosts.run(10)
    for _ in range(20):  # alone it asks for the lease again and again
        hosts.now += 0.05
        hosts.electors[other].due(hosts.now)
    hosts.deaf = {third}  # now the leader needs its vote
    hosts.run(10)
    assert hosts.leaders() == [first]
    assert hosts.electors[first].term == term


def test_a_lease_that_is_given_back_is_taken_at_once() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    hosts.say(first, hosts.electors[first].give_back(hosts.now))
    assert hosts.leaders() == []
    hosts.deaf = {first}
    hosts.run(0.6)
    assert len(hosts.leaders()) == 1


def test_a_leader_below_the_term_of_a_node_is_elected_anew() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    hosts.say(first, hosts.electors[first].observe(100, hosts.now))
    assert hosts.leaders() == []
    hosts.run(6)
    (again,) = hosts.leaders()
    assert hosts.electors[again].term > 100


@pytest.mark.parametrize("number", [COUNT_MAX, BALLOT_MAX])
def test_a_strangers_number_stops_no_election(number: int) -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    for elector in hosts.electors:
        for step in (PREPARE, PROPOSE):
            elector.answer(asked(step, number, "stranger", round=COUNT_MAX), hosts.now)
        assert elector.observe(number, hosts.now) is None
    assert hosts.leaders() == [first]
    hosts.deaf = {first}
    hosts.run(5)
    (second,) = hosts.leaders()
    assert second != first
    assert hosts.electors[second].term < 100
    assert hosts.electors[second].known == (0, -1)


def test_a_host_that_knows_of_nothing_learns_how_far_the_numbers_are() -> None:
    hosts = Hosts()
    for times in range(20):  # more than one step away from a host that begins
        for elector in hosts.electors[:2]:
            elector.answer(asked(PREPARE, times * 1_000_000, "stranger"), 4.0)
    hosts.electors[0].acceptor.formed = (5, 3_000_000)
    hosts.deaf = {1}
    hosts.run(12)
    (first,) = hosts.leaders()
    elector = hosts.electors[first]
    assert elector.term > 19_000_000
    newest = elector.term, elector.known[1] + 1
    hosts.say(first, elector.announce(newest, hosts.now))
    assert elector.announced == newest == (elector.term, 3_000_001)


def test_what_has_accepted_nothing_is_not_told_that_the_job_is_over() -> None:
    end = LeaseAsk(LeaseStep.END, 0, "", 5, 5, 3000)
    assert not Acceptor(3.0, now=0.0).ask(end, 9.0).accepted


def test_a_round_is_told_before_it_begins() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    elector = hosts.electors[first]
    ask = elector.announce((elector.term, 4), hosts.now)
    assert elector.announced == NO_ROUND
    hosts.say(first, ask)
    assert elector.announced == (elector.term, 4)
    hosts.deaf = {first}
    hosts.run(5)
    (second,) = hosts.leaders()
    assert hosts.electors[second].known == (elector.term, 4)


def test_a_round_that_was_taken_over_is_told_as_that_of_its_own_leader() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    hosts.say(first, hosts.electors[first].announce((1, 4), hosts.now))
    assert {elector.acceptor.formed for elector in hosts.electors} == {(1, 4)}


def test_a_host_that_was_cut_off_learns_of_the_newest_round() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    second, third = (place for place in range(3) if place != first)
    hosts.deaf = {third}
    hosts.say(first, hosts.electors[first].announce((hosts.electors[first].term, 4), hosts.now))
    hosts.deaf = {first}
    hosts.now += 3.5
    hosts.say(third, hosts.electors[third].due(hosts.now))
    hosts.now += 0.5
    hosts.say(third, hosts.electors[third].due(hosts.now))
    assert hosts.electors[third].leads(hosts.now)
    assert hosts.electors[second].acceptor.formed == (hosts.electors[first].term, 4)
    assert hosts.electors[third].known == (hosts.electors[first].term, 4)


def test_a_candidate_keeps_what_it_has_promised_to_another_meanwhile() -> None:
    elector = Elector(3, 0, "p0", TIMES, 0.0, lambda: 0.5)
    prepare = elector.due(4.0)
    assert prepare is not None
    higher = LeaseAsk(PREPARE, 1, "p1", prepare.number + 1, prepare.number + 1, 3000)
    assert elector.answer(higher, 4.1).accepted
    assert elector.receive(2, prepare, LeaseAnswer(True, 0), 4.1) is None
    assert not elector.leads(4.1)


def test_a_round_that_no_majority_hears_of_is_not_told() -> None:
    hosts = Hosts()
    hosts.run(6)
    (first,) = hosts.leaders()
    hosts.deaf = {0, 1, 2}
    hosts.say(first, hosts.electors[first].announce((hosts.electors[first].term, 4), hosts.now))
    hosts.run(5)
    assert hosts.electors[first].announced == NO_ROUND


def test_the_search_goes_where_it_is_sent_and_in_turn() -> None:
    search = Search(3)
    search.led_by(2, 5)
    assert search.target == 2
    search.failed()
    assert search.target == 0
    search.led_by(2, 5)  # which was just found to be away
    assert search.target == 1
    search.led_by(-1, 0)
    assert search.target == 2
    assert search.may_follow(6)
    assert not search.may_follow(5)
    assert search.target == 0
    search.led_by(1, 5)  # of a lower term
    assert search.term == 6


def test_a_host_that_does_not_lead_as_it_was_said_to_is_not_gone_back_to() -> None:
    search = Search(3)
    search.led_by(2, 5)
    search.led_by(-1, 0)  # it has forgotten what it knew, or was elected but has not heard of it
    assert search.target == 0
    search.led_by(2, 5)
    assert search.target == 1


def test_the_fence_counts_from_the_loss() -> None:
    fence = Fence(6.0, 4.0, now=0.0)
    fence.found(1.0, 1.0)
    for second in range(1, 10):
        assert not fence.tick(float(second))
    fence.lost(9.5)
    fence.lost(12.0)
    for second in range(10, 16):
        assert not fence.tick(float(second))
    assert fence.tick(15.5)
    fence.found(15.6, 15.6)
    assert not fence.tick(16.0)


def test_an_answer_from_before_a_pause_lifts_no_fence_at_once() -> None:
    """A leader that was frozen with this node may have sent it before another one led."""
    fence = Fence(6.0, 4.0, now=0.0)
    fence.found(0.0, 0.0)
    fence.lost(1.0)
    assert not fence.tick(1.0)
    assert fence.tick(21.0)
    fence.found(21.1, 0.9)
    assert all(fence.tick(21.0 + second) for second in range(1, 7))
    assert not fence.tick(27.5)  # the stream has not broken: it is the leader


def test_a_pause_that_is_shorter_than_the_silence_puts_no_answer_in_doubt() -> None:
    fence = Fence(6.0, 4.0, now=0.0)
    fence.tick(1.0)
    fence.tick(4.5)
    fence.found(4.6, 0.9)
    assert fence.deadline() == math.inf


def test_a_leader_that_is_found_after_a_pause_lifts_the_fence() -> None:
    fence = Fence(6.0, 4.0, now=0.0)
    assert fence.tick(20.0)
    fence.found(20.5, 20.1)
    assert not fence.tick(20.6)


def test_a_short_pause_counts_as_silence() -> None:
    """It hides that the silence was too long, and longer pauses would outlast the wait for it."""
    fence = Fence(6.0, 4.0, now=0.0)
    fence.found(0.0, 0.0)
    for now in (1.0, 2.0, 3.0, 3.9, 5.6):
        assert not fence.tick(now)
    fence.lost(5.6)  # it was frozen when the stream should have been lost, at 4.0
    for now in (6.6, 7.6, 8.6, 9.6):
        assert not fence.tick(now)
    assert fence.tick(9.9)


@pytest.mark.parametrize("slept_s", [6.1, 30.0])
def test_a_host_that_thaws_kills_at_once(slept_s: float) -> None:
    fence = Fence(6.0, 4.0, now=0.0)
    fence.found(0.0, 0.0)
    assert fence.tick(slept_s)


def test_a_process_that_was_held_up_beside_its_stream_has_its_leader_still() -> None:
    fence = Fence(6.0, 4.0, now=0.0)
    fence.found(0.0, 0.0)
    assert [fence.tick(float(second)) for second in range(5, 12)] == [False] + [True] * 6
    assert not fence.tick(12.0)
    assert not fence.tick(13.0)
    fence.lost(15.5)
    assert not fence.tick(16.5)


def test_a_process_that_was_held_up_and_lost_its_stream_has_none() -> None:
    fence = Fence(6.0, 4.0, now=0.0)
    fence.found(0.0, 0.0)
    fence.tick(5.0)
    fence.lost(7.0)
    assert all(fence.tick(float(second)) for second in range(8, 30))


def test_a_silence_that_began_before_a_short_freeze_counts_from_before() -> None:
    fence = Fence(6.0, 4.0, now=0.0)
    fence.found(0.0, 0.0)
    assert not fence.tick(1.0)
    assert not fence.tick(4.5)
    fence.lost(6.0)
    assert fence.tick(7.0)


def test_a_process_that_is_held_up_has_said_when_its_workers_must_be_dead() -> None:
    fence = Fence(6.0, 4.0, now=0.0)
    assert fence.latest() == 6.0
    fence.found(1.0, 1.0)
    assert fence.latest() == 11.0
    fence.tick(2.0)
    assert fence.latest() == 12.0
    fence.lost(3.0)
    fence.tick(4.0)
    assert fence.latest() == fence.deadline() == 9.0


def test_without_a_fence_workers_are_left() -> None:
    fence = Fence(math.inf, 4.0, now=0.0)
    fence.found(0.0, 0.0)
    fence.lost(1.0)
    assert not fence.tick(1e9)
    assert LeaseTimes(fence_s=math.inf).wait_s == 0.0
