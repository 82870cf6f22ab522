"""What is remembered of the nodes that were to blame."""

from ft_run.rendezvous.policy.blame import Ledger
from ft_run.rendezvous.protocol.claim import NodeFailures


def known(ledger: Ledger, now: float) -> dict[str, tuple[int, ...]]:
    return {node.node_id: node.ages_s for node in ledger.failures(9, 0.0, now)}


def test_an_earlier_masters_count_is_taken_over() -> None:
    ledger = Ledger()
    ledger.learn_failures([NodeFailures("a", (30, 10))], since_s=5, now=100.0)
    assert known(ledger, 100.0) == {"a": (35, 15)}
    assert ledger.blame("a", 0.0, 100.0) == 3


def test_of_two_accounts_the_longer_one_holds() -> None:
    ledger = Ledger()
    ledger.learn_failures([NodeFailures("a", (30, 20))], since_s=0, now=100.0)
    ledger.learn_failures([NodeFailures("a", (7,))], since_s=0, now=100.0)
    assert known(ledger, 100.0) == {"a": (30, 20)}
    ledger.learn_failures([NodeFailures("a", (40, 30, 20))], since_s=0, now=100.0)
    assert known(ledger, 100.0) == {"a": (40, 30, 20)}
