"""The command line of every command of ``ft-run``: from arguments and variables to options."""

import math
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ... import defaults
from ...errors import UsageError
from ...events.event import Severity
from ...rendezvous.protocol.messages import HangSpec
from ..flags.values import BadValue, listed_endpoints, nearest, refuse, shown
from ..hosts_options import HostsOptions
from ..log_options import LogOptions
from ..options import LaunchOptions, ScriptMode
from . import launch_flags, master_flags
from .check_command import read_check
from .check_flags import training_checks
from .command_line import CommandLine, Given, T
from .config_file import add_checks, read_config
from .environment_flags import add_environment, answer_dry_run
from .hosts_flags import read_hosts
from .launch_flags import CompletionOptions
from .master_flags import MasterOptions, StacksOptions, StatusOptions
from .policy_flags import PolicyOptions
from .policy_options import explained, launch_policy
from .rehearse_flags import RehearseOptions, rehearse_options
from .rendezvous_options import conf_given, listed, rendezvous_options
from .report_flags import ReportOptions, report_options
from .script import as_flag, refuse_missing
from .security_flags import TokenOptions, token_options, trust_options

_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
Options = (
    LaunchOptions
    | HostsOptions
    | MasterOptions
    | StatusOptions
    | StacksOptions
    | PolicyOptions
    | ReportOptions
    | TokenOptions
    | RehearseOptions
    | CompletionOptions
)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse ``argv`` (without the program's name) and ``environ``.

    Raises:
        UsageError: If they are invalid; the message has the problem, the value and what is
            expected.
        SystemExit: with 0, after ``--help``, ``--version`` or ``--dry-run``.
    """
    argv = as_flag(argv)
    command, *rest = argv or ("",)
    match command:
        case "master":
            return _master(rest, environ)
        case "status":
            return _question(master_flags.status_command(), StatusOptions, rest, environ)
        case "stacks":
            return _question(master_flags.stacks_command(), StacksOptions, rest, environ)
        case "check":
            return read_check(rest, environ)
        case "hosts":
            return read_hosts(rest, environ)
        case "policy":
            return explained(rest, environ)
        case "report":
            return report_options(rest, environ)
        case "token":
            return token_options(rest, environ)
        case "rehearse":
            options = rehearse_options(rest, environ)
            _launch([*options.job, "--standalone", *options.script], {})  # to check them
            return options
    return _launch(argv, environ)


def _master(argv: Sequence[str], environ: Mapping[str, str]) -> MasterOptions:
    right = "options only, e.g. --bind :29400, or ./master for a script of that name"
    given, _ = master_flags.master_command().read_all(argv, environ, right=right)
    conf = conf_given(given)
    found = {} if conf.rescale_delay_s is None else {"rescale_delay_s": conf.rescale_delay_s}
    return given.fill(
        MasterOptions,
        endpoints=listed(given["bind"]),
        timeouts=conf.timeouts,
        warnings=conf.warnings,
        trust=trust_options(given, environ),
        **found,
    )


def _question(
    line: CommandLine, kind: type[T], argv: Sequence[str], environ: Mapping[str, str]
) -> T:
    given, rest = line.read_all(argv, environ, most=1, right="one JOB or HOST[:PORT]")
    found: dict[str, Any] = {}
    if rest:
        try:
            where = listed_endpoints(rest[0])
        except BadValue as bad:
            raise refuse(line.name, rest[0], bad) from None
        if where is not None:
            is_address = ":" in rest[0] or bool(where.others)
            found = {"endpoint": where, "may_be_job": "" if is_address else rest[0]}
    if given["job"]:
        is_endpoint_given = given.origin("rdzv_endpoint").startswith("--")  # not by its variable
        if rest or (given["rdzv_endpoint"] is not None and is_endpoint_given):
            raise UsageError(
                f"{given.origin('job')} and an endpoint exclude each other; expected one of them."
            )
        found = {"endpoint": None}
    if kind is StatusOptions:
        given.refuse_both("watch", "json")
    return given.fill(kind, trust=trust_options(given, environ), **found)


def _launch(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchOptions | CompletionOptions:
    line = launch_flags.launch_command()
    given, rest = line.read(argv, environ)
    if given["print_completion"]:
        return given.fill(CompletionOptions)
    mode = _mode(given)
    warnings: list[str] = []
    add_environment(given, environ, warnings)
    config = read_config(given)
    add_checks(line, given, config, warnings)
    rendezvous = rendezvous_options(given, warnings, rest[1:])
    rendezvous = replace(rendezvous, trust=trust_options(given, environ))
    hang = _hang(given)
    if not rest:
        raise UsageError("no script was given; expected ft-run [OPTIONS] SCRIPT [ARGS]...")
    refuse_missing(rest[0], mode, environ)
    options = given.fill(
        LaunchOptions,
        script=rest[0],
        script_args=rest[1:],
        mode=mode,
        rendezvous=rendezvous,
        logs=_logs(given, environ),
        signals=_signals(given, warnings),
        snapshot_replicas=_snapshot_replicas(given, rendezvous.max_nodes),
        capture_errors=not given["no_capture_errors"],
        hang=hang,
        save_on_exit=launch_flags.saves_on_exit(given),
        checks=training_checks(given, warnings),
        warnings=tuple(warnings),
    )
    watched, can_hang = options.are_workers_watched, hang is not None
    policy = launch_policy(given, config, rendezvous, is_watched=watched, can_hang=can_hang)
    answer_dry_run(line, given, rest, warnings)
    return replace(options, policy=policy)


def _mode(given: Given) -> ScriptMode:
    if given["run_path"]:
        return ScriptMode.RUN_PATH
    given.refuse_both("module", "no_python")
    if given["no_python"]:
        return ScriptMode.COMMAND
    return ScriptMode.MODULE if given["module"] else ScriptMode.SCRIPT


def _hang(given: Given) -> HangSpec | None:
    timeout_s = given.get("hang_timeout", math.inf)
    if timeout_s < math.inf:
        return HangSpec(timeout_s, given.get("hang_timeout_start", defaults.HANG_TIMEOUT_START_S))
    if given["hang_timeout_start"] is not None:
        raise UsageError(
            f"{given.origin('hang_timeout_start')} has no effect, because --hang-timeout is never;"
            " expected --hang-timeout DURATION or --hang-timeout auto."
        )
    return None


def _snapshot_replicas(given: Given, max_nodes: int) -> int:
    replicas: int = given.get("snapshot_replicas", 0)
    if replicas and replicas >= max_nodes:
        right = f"at most {max_nodes - 1}, one less than the nodes of the job"
        raise refuse(given.origin("snapshot_replicas"), str(replicas), BadValue(right))
    return replicas


def _logs(given: Given, environ: Mapping[str, str]) -> LogOptions:
    prefix = given["log_line_prefix_template"] or environ.get(_PREFIX_VARIABLE, "")
    return given.fill(LogOptions, prefix_template=prefix, level=_level(given))


def _level(given: Given) -> Severity | None:
    given.refuse_both("quiet", "verbose")
    if given["quiet"]:
        return Severity.WARNING
    return Severity.DEBUG if given["verbose"] else None


def _signals(given: Given, warnings: list[str]) -> tuple[signal.Signals, ...]:
    """Return the signals to handle; others are ignored with a warning, as in torchrun."""
    known = signal.Signals.__members__
    handled: dict[signal.Signals, None] = {}
    for word in given.get("signals_to_handle", defaults.SIGNALS_TO_HANDLE).split(","):
        name = word.strip()
        if not name:
            continue
        if name not in known:
            full = f"SIG{name.upper()}"
            guess = full if full in known else nearest(name.upper(), list(known))
            advice = f" (did you mean {guess}?)" if guess else ""
            warnings.append(
                f"{given.origin('signals_to_handle')}: the signal {shown(name)}{advice} is unknown"
                " and ignored."
            )
        elif name in ("SIGKILL", "SIGSTOP"):
            warnings.append(
                f"{given.origin('signals_to_handle')}: no process can handle {name}; ignored."
            )
        else:
            handled[known[name]] = None
    return tuple(handled)
