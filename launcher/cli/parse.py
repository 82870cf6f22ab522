"""The command line of ``ft-run``: arguments and ``PET_*`` variables in, checked options out.

This module prints nothing except ``--help``, ``--version`` and ``--dry-run``. It looks at nothing
on this machine except whether the script exists.
"""

import math
import signal
from collections.abc import Mapping, Sequence

from ... import defaults
from ...errors import UsageError
from ...rendezvous.protocol.endpoint import Endpoint
from ...rendezvous.protocol.messages import HangSpec
from ...values import replace
from ..options import (
    CompletionOptions,
    LaunchOptions,
    LogOptions,
    MasterOptions,
    Options,
    ScriptMode,
    StacksOptions,
    StatusOptions,
    StreamSelection,
)
from . import launch_flags, master_flags
from .command_line import CommandLine, Given
from .network_check_flags import ladder_options
from .place_flags import answer_dry_run, placed
from .policy_options import explained, launch_policy, refuse_hang_rule
from .rendezvous_options import conf_given, listed, rendezvous_options
from .script import as_flag, refuse_missing
from .trust_flags import token_options, trust_options
from .values import BadValue, endpoint, nearest, refuse, seconds, shown

_SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_STATUS_TIMEOUT_S = 5.0
_STACKS_TIMEOUT_S = 10.0


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Return the options that ``argv`` (without the program's name) and ``environ`` mean.

    Raises:
        UsageError: they cannot work; the sentence says what is wrong, given and right.
        SystemExit: with 0, after ``--help``, ``--version`` or ``--dry-run`` has been answered.
    """
    argv = as_flag(argv)
    if argv and argv[0] == "master":
        return _master(argv[1:], environ)
    if argv and argv[0] == "status":
        where, given = _question(master_flags.status_command(), "status", argv[1:], environ)
        timeout_s = given.get("timeout", _STATUS_TIMEOUT_S)
        return StatusOptions(where, given["json"], timeout_s, trust_options(given, environ))
    if argv and argv[0] == "stacks":
        where, given = _question(master_flags.stacks_command(), "stacks", argv[1:], environ)
        timeout_s = given.get("timeout", _STACKS_TIMEOUT_S)
        trust = trust_options(given, environ)
        return StacksOptions(where, given.get("rank", ()), given["json"], timeout_s, trust)
    if argv and argv[0] == "check":
        from .check_flags import read_check

        return read_check(argv[1:], environ, rendezvous_options)
    if argv and argv[0] == "hosts":
        from .hosts_flags import read_hosts

        return read_hosts(argv[1:], environ)
    if argv and argv[0] == "policy":
        return explained(argv[1:], environ)
    if argv and argv[0] == "token":
        return token_options(argv[1:], environ)
    return _launch(argv, environ)


def _master(argv: Sequence[str], environ: Mapping[str, str]) -> MasterOptions:
    given, rest = master_flags.master_command().read(argv, environ)
    if rest:
        raise UsageError(
            f"ft-run master takes no arguments, but was given {shown(rest[0])};"
            " right would be ft-run master --bind :29400, or ./master for a script of that name."
        )
    conf = conf_given(given)
    where = given.get("bind", Endpoint("::", defaults.ENDPOINT_PORT))
    return MasterOptions(
        endpoint=where,
        endpoints=listed(where),
        timeouts=conf.timeouts,
        **({} if conf.rescale_delay_s is None else {"rescale_delay_s": conf.rescale_delay_s}),
        remarks=conf.remarks,
        trust=trust_options(given, environ),
    )


def _question(
    command: CommandLine, name: str, argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[Endpoint, Given]:
    """Return where the master is that is asked, and the flags."""
    given, rest = command.read(argv, environ)
    where = given["rdzv_endpoint"]
    if rest:
        # Here options may follow the argument, as in `ft-run status node0:29400 --json`.
        words, more = command.split(rest[1:])
        if more:
            raise UsageError(
                f"ft-run {name} takes one HOST[:PORT], but was given"
                f" {shown(rest[0])} and {shown(more[0])}."
            )
        given, _ = command.read([*argv[: len(argv) - len(rest)], *words], environ)
        try:
            where = endpoint(rest[0])
        except BadValue as bad:
            raise refuse(f"ft-run {name}", rest[0], bad) from None
    return where or Endpoint("localhost", defaults.ENDPOINT_PORT), given


def _launch(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchOptions | CompletionOptions:
    line = launch_flags.launch_command()
    given, rest = line.read(argv, environ)
    if given["print_completion"]:
        return CompletionOptions(given["print_completion"])
    mode = _mode(given)
    remarks: list[str] = []
    given = placed(line, given, environ, remarks)
    rendezvous = rendezvous_options(given, remarks, rest[1:])
    rendezvous = replace(rendezvous, trust=trust_options(given, environ))
    hang = _hang(given)
    is_watched = given["watch_workers"] or hang is not None
    policy = launch_policy(given, rendezvous, remarks, is_watched=is_watched)
    refuse_hang_rule(policy, can_hang=hang is not None)
    if not rest:
        raise UsageError("no script was given; right would be ft-run [OPTIONS] SCRIPT [ARGS]...")
    refuse_missing(rest[0], mode, environ)
    options = LaunchOptions(
        script=rest[0],
        script_args=rest[1:],
        mode=mode,
        rendezvous=rendezvous,
        nproc_per_node=given.get("nproc_per_node", defaults.NPROC_PER_NODE),
        accelerator=given.get("accelerator", "auto"),
        role=given.get("role", defaults.ROLE),
        logs=_logs(given, environ),
        signals=_signals(given, remarks),
        shutdown_timeout_s=_shutdown_timeout_s(given, environ),
        snapshot_replicas=_snapshot_replicas(given, rendezvous.max_nodes),
        preemption_notice=given["preemption_notice"],
        policy=policy,
        propagate_exit_code=given["propagate_exit_code"],
        virtual_local_rank=given["virtual_local_rank"],
        separate_store=given.get("store", defaults.STORE) == "separate",
        numa_binding=given["numa_binding"],
        preload=given.get("preload", ()),
        watch_workers=given["watch_workers"],
        capture_errors=not given["no_capture_errors"],
        hang=hang,
        save_at_breakpoint=launch_flags.saves_at_breakpoint(given),
        event_log_handler=given.get("event_log_handler", "null"),
        checks=ladder_options(given, remarks),
        remarks=tuple(remarks),
    )
    answer_dry_run(line, given, rest, remarks)
    return options


def _mode(given: Given) -> ScriptMode:
    if given["run_path"]:
        return ScriptMode.RUN_PATH
    if given["module"] and given["no_python"]:
        raise UsageError(
            f"{given.origin('module')} and {given.origin('no_python')} exclude each other;"
            " right would be -m for a module, or --no-python for a program."
        )
    if given["no_python"]:
        return ScriptMode.COMMAND
    return ScriptMode.MODULE if given["module"] else ScriptMode.SCRIPT


def _hang(given: Given) -> HangSpec | None:
    timeout_s = given.get("hang_timeout", math.inf)
    if timeout_s < math.inf:
        return HangSpec(timeout_s, given.get("hang_timeout_start", defaults.HANG_TIMEOUT_START_S))
    if given["hang_timeout_start"] is not None:
        raise UsageError(
            f"{given.origin('hang_timeout_start')} is of no use, because --hang-timeout is never;"
            " right would be --hang-timeout SECONDS or --hang-timeout auto as well."
        )
    return None


def _snapshot_replicas(given: Given, max_nodes: int) -> int:
    replicas: int = given.get("snapshot_replicas", 0)
    if replicas >= max_nodes and replicas:
        others = max_nodes - 1
        raise UsageError(
            f"{given.origin('snapshot_replicas')} {replicas} asks for {replicas} other"
            f" node{'s' * (replicas > 1)} to keep each snapshot, but this job has"
            f" {others or 'no'} other node{'s' * (others != 1)}; right would be"
            f" {f'at most {others}' if others else 'a job of several nodes, or 0'}."
        )
    return replicas


def _logs(given: Given, environ: Mapping[str, str]) -> LogOptions:
    (console_local_ranks,) = given.get("local_ranks_filter", (None,))
    return LogOptions(
        log_dir=given["log_dir"] or None,
        redirects=given.get("redirects", StreamSelection()),
        tee=given.get("tee", StreamSelection()),
        console_local_ranks=console_local_ranks,
        stdout_filters=given.get("duplicate_stdout_filters", ()),
        stderr_filters=given.get("duplicate_stderr_filters", ()),
        prefix_template=given["log_line_prefix_template"] or environ.get(_PREFIX_VARIABLE, ""),
    )


def _signals(given: Given, remarks: list[str]) -> tuple[signal.Signals, ...]:
    """Return the signals to handle; what cannot be handled is remarked, as by torchrun."""
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
            remarks.append(
                f"{given.origin('signals_to_handle')}: the signal {shown(name)}{advice} is unknown"
                " and ignored."
            )
        elif name in ("SIGKILL", "SIGSTOP"):
            remarks.append(
                f"{given.origin('signals_to_handle')}: no process can handle {name}; ignored."
            )
        else:
            handled[known[name]] = None
    return tuple(handled)


def _shutdown_timeout_s(given: Given, environ: Mapping[str, str]) -> float:
    if given["shutdown_timeout"] is not None:
        return float(given["shutdown_timeout"])
    text = environ.get(_SHUTDOWN_VARIABLE, "")
    if not text:
        return defaults.SHUTDOWN_TIMEOUT_S
    try:
        return seconds(text)
    except BadValue as bad:
        raise refuse(_SHUTDOWN_VARIABLE, text, bad) from None
