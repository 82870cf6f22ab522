"""``ft-run policy --explain``: which rule applies to a failure, and which ones are skipped."""

import json
import re
import signal

from ... import exit_codes
from ...errors import UsageError
from ...rendezvous.policy.matches import BadRule, parse_match
from ...rendezvous.policy.rules import SLIP_S, Context, Decision, Rule, decide
from ...rendezvous.protocol.failure import Failure, FailureKind, hung, node_lost, preempted
from ..cli.policy_flags import PolicyOptions
from ..flags.values import shown
from ..reporting.standard_output import standard_output
from ..workers.smaller_parts import propose

_RIGHT = (
    "words, e.g. exit:137, signal:SIGSEGV, oom, corrupt, device-oom, device-oom:16 (in a part of 16"
    " samples), error:TEXT (last), hang, node-lost or preempted, as in"
    " 'exit:1 error:ValueError: no data'"
)
_OF_NODES = {"node-lost": node_lost, "preempted": preempted, "hang": hung}


def explain_policy(options: PolicyOptions) -> int:
    """Print the action for a failure; return the exit code."""
    failure = failure_of(options.failure)
    rules = [Rule.parse(text) for text in options.policy.rules]
    context = Context(
        seconds_after_start=options.seconds_after_start,
        previous=failure if options.is_repeated else None,
        was_corrupt=options.is_repeated,
    )
    decision = decide(rules, failure, context)
    with standard_output():
        if options.json:
            print(json.dumps(_as_dict(options.failure, decision), indent=2))
        else:
            print("\n".join(_lines(options.failure, decision)))
    return exit_codes.SUCCESS


def failure_of(text: str) -> Failure:
    """Return the failure that ``--explain`` describes."""
    words, colon, error = re.sub(r"(^|\s)error:", "\0", text, count=1).partition("\0")
    exit_code: int | None = None
    is_oom, of_node, of_device = False, "", None
    for word in words.split():
        if word in _OF_NODES:
            of_node = word
        elif word == "oom":
            is_oom = True
        elif word == "corrupt":
            colon, error = ":", "CorruptStateError"
        elif (found := re.fullmatch(r"device-oom(?::([1-9][0-9]{0,8}))?", word)) is not None:
            of_device = int(found[1] or 0)
        else:
            exit_code = _status(word, text)
    if of_node:
        if is_oom or colon or exit_code is not None or of_device is not None:
            raise _unclear(text, f"but with {of_node} no worker has failed")
        return _OF_NODES[of_node](0, "HOST", "default", "as described")
    if not (is_oom or colon or exit_code is not None or of_device is not None):
        raise _unclear(text)
    if exit_code is None:
        exit_code = -signal.SIGKILL if is_oom else 1
    return Failure(
        kind=FailureKind.WORKER,
        rank=0,
        local_rank=0,
        node_rank=0,
        host="HOST",
        pid=1,
        exit_code=exit_code,
        time_s=0,
        message=error.strip() or ("OutOfMemoryError" if of_device is not None else ""),
        out_of_memory=is_oom,
        proposal=propose(of_device or 0, ()),
    )


def _status(word: str, text: str) -> int:
    try:
        exit_code = parse_match(word).exit_code
    except BadRule as bad:
        raise _unclear(text, bad.why) from None
    if exit_code is None:
        raise _unclear(text, f"but {word} is not one failure")
    return exit_code


def _unclear(text: str, why: str = "") -> UsageError:
    because = f", {why}" if why else ""
    return UsageError(f"invalid value {shown(text)} for --explain{because}: expected {_RIGHT}.")


def _lines(text: str, decision: Decision) -> list[str]:
    lines = [f"skipped  {over.rule}: {over.reason}" for over in decision.passed_over]
    kind = "default rule" if decision.is_default else "rule"
    lines.append(f"matches  {decision.rule} ({kind}): {decision.reason}")
    lines.append(
        f"action for {shown(text)}: {decision.action.value}: {_MEANING[decision.action.value]}"
    )
    return lines


_MEANING = {
    "restart": "a new round, counted against --max-restarts; with none left the job ends with"
    f" exit code {exit_codes.WORKERS_FAILED}.",
    "restart-free": "a new round, not counted.",
    "fail": f"the job ends with exit code {exit_codes.POLICY_ENDED_JOB}.",
    "replace-node": f"the node leaves with exit code {exit_codes.NODE_EXCLUDED}; a new round"
    " with another in its place, counted.",
    "shrink": "a new round with the same samples in parts of half the size, not counted.",
}


def _as_dict(text: str, decision: Decision) -> dict[str, object]:
    return {
        "failure": text,
        "action": decision.action.value,
        "counted": decision.action.is_counted,
        "rule": decision.rule,
        "is_default": decision.is_default,
        "reason": decision.reason,
        "passed_over": [
            {"rule": over.rule, "reason": over.reason} for over in decision.passed_over
        ],
        "slip_s": SLIP_S,
    }
