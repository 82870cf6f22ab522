"""Rules of the failure policy: what matches, what is decided, what is no rule."""

import time
from typing import Any

import pytest
from ft_run.rendezvous.policy.matches import BadRule
from ft_run.rendezvous.policy.rules import (
    DEFAULT_CORRUPT,
    DEFAULT_PREEMPTED,
    DEFAULT_REST,
    DEFAULT_SLIP,
    DEFAULT_UNEQUAL,
    DEFAULT_WORLD_SIZE,
    Action,
    Context,
    Rule,
    decide,
)
from ft_run.rendezvous.protocol.carried import Proposal
from ft_run.rendezvous.protocol.failure import Failure, FailureKind, node_lost, preempted
from ft_run.tests.harness.scene import worker_failure

LOST = node_lost(1, "h", "", "no connection for 1 s")
GONE = preempted(1, "h", "", "SIGTERM")
OOM = worker_failure(0, code=-9, out_of_memory=True)
DEVICE_OOM = worker_failure(0, proposal=Proposal("no memory", "smaller"))


def recorded(message: str, **more: Any) -> Failure:
    return worker_failure(0, message=message, error_json="{}", **more)


def matches(match: str, failure: Failure) -> bool:
    return Rule.parse(f"{match}=fail").match.look(failure).matches


CORRUPT = recorded("CorruptStateError: net.0.weight of rank 2 has changed")
UNEQUAL = recorded("UnequalStateError: the weights of 'net' differ")


@pytest.mark.parametrize(
    ("match", "hits", "misses"),
    [
        ("exit:3", [worker_failure(0, code=3)], [worker_failure(0, code=4), OOM, LOST, GONE]),
        ("exit:64-79", [worker_failure(0, code=c) for c in (64, 79)],
         [worker_failure(0, code=c) for c in (63, 80)]),
        # As a shell or Kubernetes counts, whatever killed it.
        ("exit:137", [worker_failure(0, code=-9), worker_failure(0, code=137)], [LOST]),
        ("signal:SIGKILL", [worker_failure(0, code=-9), worker_failure(0, code=137)],
         [worker_failure(0, code=-11), worker_failure(0, code=9), LOST]),
        ("signal:segv", [worker_failure(0, code=-11)], [OOM]),
        ("oom", [OOM], [worker_failure(0, code=-9), LOST]),
        ("device-oom",
         [recorded("OutOfMemoryError: CUDA out of memory. Tried to"), DEVICE_OOM,
          worker_failure(0, stderr_tail="a\ntorch.OutOfMemoryError: HIP out of memory\nb\n"),
          recorded("AcceleratorError: CUDA error: out of memory")],
         [OOM, LOST, recorded("MemoryError"), recorded("ValueError: no")]),
        ("corrupt",
         [CORRUPT, worker_failure(0, stderr_tail="a\nft_run.x.CorruptStateError: net.weight\n")],
         [OOM, LOST, UNEQUAL, recorded("ValueError: CorruptStateError")]),
        ("node-lost", [LOST], [GONE, OOM]),
        ("preempted", [GONE], [LOST, OOM]),
        ("error:CUDA.*memory",
         [recorded("RuntimeError: CUDA out of memory"),
          worker_failure(0, stderr_tail="a\nCUDA: no memory\nb\n"),
          worker_failure(0, message="CUDA memory")],
         [recorded("ValueError: no"), worker_failure(0), LOST,
          recorded("ValueError: no", stderr_tail="CUDA memory"),  # a warning, survived
          recorded("CUDA\nmemory")]),
        ("error:a=b", [recorded("a=b")], [recorded("a")]),
        ("error:é.*b", [recorded("é \udcff b")], [recorded("e b")]),  # as JSON may have it
        ("exit:127", [worker_failure(0, code=127, kind=FailureKind.START)], [LOST]),
    ],
)  # fmt: skip
def test_what_a_match_looks_at(match: str, hits: list[Failure], misses: list[Failure]) -> None:
    for failure in hits:
        assert matches(match, failure), failure
    for failure in misses:
        assert not matches(match, failure), failure


@pytest.mark.parametrize(
    "text", ["exit:3=fail", "exit:64-79=restart-free", "signal:SIGKILL=restart", "oom=replace-node",
             "error:a=b.*c=fail", "node-lost=restart", "preempted=fail"],
)  # fmt: skip
def test_a_rule_is_written_as_it_was_read(text: str) -> None:
    rule = Rule.parse(text)
    assert rule.text == text
    spaced = Rule.parse(f"  {text.replace('=fail', '= fail')} ")
    assert (spaced.text, spaced.match.exit_code) == (text, rule.match.exit_code)


@pytest.mark.parametrize(
    ("text", "why", "right"),
    [
        ("exit:3", "not MATCH=ACTION", "exit:3=fail"),
        ("=fail", "not MATCH=ACTION", "exit:3=fail"),
        (
            "exit:3=die",
            "unknown action 'die'",
            "restart, restart-free, fail, replace-node or shrink",
        ),
        ("oom=shrink", "shrink does not answer 'oom'", "device-oom=shrink"),
        ("exit:=fail", "'' is not an exit code", "exit:N or exit:A-B"),
        ("exit:x=fail", "'x' is not an exit code", "exit:N or exit:A-B"),
        ("exit:0=fail", "not a range of exit codes of failures", "from 1 to 255"),
        ("exit:9-3=fail", "not a range of exit codes", "the lower one first"),
        ("exit:1-256=fail", "not a range of exit codes", "from 1 to 255"),
        ("signal:SIGNONE=fail", "unknown signal 'SIGNONE'", "signal:SIGKILL"),
        ("oops=fail", "unknown match 'oops'", "exit:N, exit:A-B, signal:NAME"),
        ("check=fail", "check is not a failure of a round", "exit:N"),
        ("error:=fail", "the regular expression is empty", "error:CUDA"),
        ("error:(=fail", "'(' is not a regular expression (missing ): ()", "an RE2 expression"),
        (
            r"error:(a)\1=fail",
            r"is not a regular expression (invalid escape sequence: \1)",
            "an RE2 expression",
        ),
        (
            "error:a(?!b)=fail",
            "is not a regular expression (invalid perl operator: (?!)",
            "an RE2 expression",
        ),
        (
            "error:(a{40}){40}=fail",
            "is not a regular expression (invalid repetition size",
            "an RE2 expression",
        ),
        ("error:" + "a" * 600 + "=fail", "too long", "500"),
    ],
)
def test_what_is_no_rule(text: str, why: str, right: str) -> None:
    with pytest.raises(BadRule) as bad:
        Rule.parse(text)
    assert why in bad.value.why
    assert right in bad.value.right


def test_an_expression_costs_little_however_long_the_text() -> None:
    began = time.process_time()
    assert not Rule.parse("error:(a|a)*(a*)*b=fail").match.look(recorded("a" * 500)).matches
    rule = Rule.parse("error:.*a.*b.*c$=fail")
    assert not rule.match.look(recorded("ab" * 100_000)).matches
    assert rule.match.look(recorded("x" * 1000 + "\nabc")).matches
    # Not a matter of the machine's speed: unbounded, this would take days.
    assert time.process_time() - began < 60


def test_the_first_rule_that_matches_decides_and_the_others_are_named() -> None:
    rules = [Rule.parse(text) for text in ("exit:3=fail", "oom=replace-node", "exit:137=fail")]
    decision = decide(rules, OOM, Context())
    assert (decision.action, decision.rule) == (Action.REPLACE_NODE, "oom=replace-node")
    assert not decision.is_default
    assert [(over.rule, over.reason) for over in decision.passed_over] == [
        ("exit:3=fail", "the exit code 137 is not 3")
    ]
    assert decision.words() == "rule oom=replace-node"


def test_defaults_come_after_the_users_rules_in_their_order() -> None:
    slip = recorded("ModuleNotFoundError: No module named 'torhc'")
    twice = Context(seconds_after_start=2.0, previous=slip)
    assert decide([], slip, twice).rule == DEFAULT_SLIP
    assert decide([], slip, twice).action is Action.FAIL
    assert decide([Rule.parse("exit:1=restart")], slip, twice).rule == "exit:1=restart"
    assert decide([], GONE, Context()).rule == DEFAULT_PREEMPTED
    assert decide([], GONE, Context()).action is Action.RESTART_FREE
    assert decide([Rule.parse("preempted=fail")], GONE, Context()).action is Action.FAIL
    for failure in (LOST, OOM, worker_failure(0, code=2), recorded("ValueError: no")):
        decision = decide([], failure, Context())
        assert (decision.rule, decision.action) == (DEFAULT_REST, Action.RESTART)


def test_unequal_state_ends_the_job_and_corrupt_state_when_it_repeats() -> None:
    other_size = recorded("WorldSizeError: each of 2 ranks has saved its own 'net'")
    for failure, rule in ((UNEQUAL, DEFAULT_UNEQUAL), (other_size, DEFAULT_WORLD_SIZE)):
        decision = decide([], failure, Context())
        assert (decision.action, decision.rule) == (Action.FAIL, rule)
    assert (
        decide([Rule.parse("error:Unequal=restart")], UNEQUAL, Context()).action is Action.RESTART
    )
    assert decide([], CORRUPT, Context()).rule == DEFAULT_REST
    decision = decide([], CORRUPT, Context(was_corrupt=True))
    assert (decision.action, decision.rule) == (Action.FAIL, DEFAULT_CORRUPT)
    assert decide([], recorded("ValueError: no"), Context(was_corrupt=True)).rule == DEFAULT_REST


@pytest.mark.parametrize(
    ("failure", "previous", "after", "action"),
    [
        (worker_failure(0, code=2), worker_failure(0, code=2, pid=7), 9.9, Action.FAIL),
        (worker_failure(0, code=2), worker_failure(0, code=2), 10.0, Action.RESTART),
        (worker_failure(0, code=2), worker_failure(0, code=2), None, Action.RESTART),
        (worker_failure(0, code=2), worker_failure(1, code=2), 1.0, Action.FAIL),
        (worker_failure(0, message="NameError: x"),
         worker_failure(3, message="NameError: x"), 1.0, Action.FAIL),
        (worker_failure(0, code=2, message="a"), worker_failure(0, code=2, message="b"), 1.0,
         Action.RESTART),
        (worker_failure(0, code=2), worker_failure(0, code=127), 1.0, Action.RESTART),
        (worker_failure(0, code=2), None, 1.0, Action.RESTART),
        (worker_failure(0, code=1), worker_failure(0, code=1), 1.0, Action.RESTART),
        (recorded("ImportError: a"), recorded("ImportError: a"), 1.0, Action.FAIL),
        (recorded("ImportError: a"), recorded("ImportError: b"), 1.0, Action.RESTART),
        (recorded("x.y.ImportError: a"), recorded("x.y.ImportError: a"), 1.0, Action.FAIL),
        (recorded("ValueError: ImportError"), recorded("ValueError: ImportError"), 1.0,
         Action.RESTART),
        (worker_failure(0, code=127, kind=FailureKind.START),
         worker_failure(0, code=127, kind=FailureKind.START), 0.1, Action.FAIL),
        (worker_failure(0, code=75, kind=FailureKind.START),
         worker_failure(0, code=75, kind=FailureKind.START), 0.1, Action.RESTART),
        (LOST, LOST, 0.1, Action.RESTART),
    ],
)  # fmt: skip
def test_a_usage_or_import_error_twice_running_is_a_typo(
    failure: Failure, previous: Failure | None, after: float | None, action: Action
) -> None:
    assert decide([], failure, Context(after, previous)).action is action
