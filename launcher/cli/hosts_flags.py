"""The command line of ``ft-run hosts``: its own flags, then the job's."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from ...errors import UsageError
from ...rendezvous.trust.source import TOKEN_VARIABLE
from ...rendezvous.trust.token import checked, read_token
from ..environments.environment import PORT, endpoints
from ..environments.hostfile import HostLine, read_hostfile, read_list
from ..flags import values
from ..flags.flag import Heading
from ..flags.values import BadValue, shown
from ..hosts_options import HostsOptions, NodeCommand
from .command_line import CommandLine, Given, HelpText, UnknownFlagError, answer
from .environment_flags import resulting_arguments
from .launch_flags import launch_command
from .security_flags import given_token, token_file_flag

_BEFORE = """\
Usage: ft-run hosts --hostfile FILE [OPTIONS] [--] JOB_OPTIONS SCRIPT [ARGS]...
       ft-run hosts --hosts A,B,C [OPTIONS] [--] JOB_OPTIONS SCRIPT [ARGS]...

Start the same job on every host over ssh. ssh must not ask for a password.
Each line of output is prefixed with the name of its host. Ctrl-C stops the job
gracefully. When this command or its connection ends, no process is left on the
hosts. --dry-run prints the command of each host.

Defaults for JOB_OPTIONS: --nnodes is the number of hosts, --rdzv-endpoint the
first three hosts (the first of two), --rdzv-id a new ID, --nproc-per-node the
slots of the host.

Example:
  ft-run hosts --hostfile hosts --max-restarts 3 train.py --lr 0.1
"""
_AFTER = "JOB_OPTIONS are the options of ft-run, see ft-run --help-all.\n"


def hosts_command() -> CommandLine:
    """Return the flags of ``ft-run hosts`` itself."""
    heading = Heading("Options")
    flags = [
        heading(
            "--hostfile FILE",
            "File with a line HOST slots=N for each host; # starts a comment.",
            ours=True,
        ),
        heading("--hosts A,B,C", "Hosts, separated by commas.", ours=True),
        heading(
            "--ssh COMMAND",
            "Command that connects to a host, e.g. 'ssh -p 2222' (default: ssh).",
            ours=True,
        ),
        heading(
            "--env NAME[=VALUE]",
            "Environment variable for the job; repeatable.",
            multiple=True,
            ours=True,
        ),
        token_file_flag(heading),
        heading(
            "--chdir DIR", "Working directory on the hosts (default: the current one).", ours=True
        ),
        heading(
            "--ft-run PATH", "Path of ft-run on the hosts (default: the same as here).", ours=True
        ),
    ]
    return CommandLine("ft-run hosts", flags, HelpText(_BEFORE, _AFTER))


def read_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> HostsOptions:
    """Return the hosts to start, and their commands."""
    line = hosts_command()
    own, job = _split(line, argv)
    given, _ = line.read(own, {})
    job_line = launch_command()
    wanted, rest = _read_job(line, job_line, job)
    hosts = _hosts(given)
    if not rest:
        raise UsageError(
            "no script was given; expected ft-run hosts --hostfile FILE [OPTIONS] SCRIPT."
        )
    low, high = wanted.get("nnodes", (len(hosts), len(hosts)))
    _refuse_counts(low, len(hosts))
    _refuse_one_node(wanted, len(hosts))
    added = []
    if wanted["nnodes"] is None:
        added.append(f"--nnodes={len(hosts)}")
    if wanted["rdzv_endpoint"] is None and wanted["master_addr"] is None and len(hosts) > 1:
        addresses = [host.address for host in hosts]
        added.append(f"--rdzv-endpoint={endpoints(addresses, PORT)}")
    if not wanted["rdzv_id"]:
        added.append(f"--rdzv-id=hosts-{os.urandom(6).hex()}")
    has_ranks = wanted["nnodes"] is None and wanted["rdzv_backend"] != "c10d" and len(hosts) > 1
    flags = [flag for flag in job_line.flags if flag.key != "dry_run"]
    arguments = resulting_arguments(flags, wanted, rest)
    commands = []
    for rank, host in enumerate(hosts):
        count = _slots(host, wanted)
        of_node = [f"--nproc-per-node={count}"] if count else []
        of_node += [f"--node-rank={rank}"] if has_ranks and wanted["node_rank"] is None else []
        commands.append(NodeCommand(host.name, (*added, *of_node, *arguments)))
    options = HostsOptions(
        nodes=tuple(commands),
        least=min(low, high),
        ssh=tuple(_words(given.get("ssh", "ssh"))),
        environ=_token(given, environ) | dict(_variable(text, environ) for text in given["env"]),
        folder=given["chdir"] or os.getcwd(),
        program=given["ft_run"] or _own_path(),
    )
    if wanted["dry_run"]:
        lines = [f"[{one.host}] {shlex.join((options.program, *one.argv))}" for one in commands]
        answer("\n".join(lines))

    return options


def _split(line: CommandLine, argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the leading arguments that are flags of this command, and the rest."""
    flags = {flag.spelling: flag for flag in line.flags} | {"-h": line.flags[-2]}
    at = 0
    while at < len(argv):
        name, equals, _ = argv[at].partition("=")
        flag = flags.get(name.replace("_", "-"))
        if flag is None:
            break
        at += 2 if flag.takes_value and not equals else 1
    job = argv[at:]
    return argv[:at], job[1:] if job and job[0] == "--" else job


def _read_job(
    line: CommandLine, job_line: CommandLine, job: Sequence[str]
) -> tuple[Given, Sequence[str]]:
    try:
        return job_line.read(job, {})
    except UnknownFlagError as error:
        if any(error.word.partition("=")[0] == flag.spelling for flag in line.flags):
            raise UsageError(
                f"{shown(error.word)} stands after an option of the job; expected it before all"
                " of them: ft-run hosts OPTIONS JOB_OPTIONS SCRIPT."
            ) from error
        raise UnknownFlagError(
            error.word, error.guess or line.guess(error.word), line.help_command
        ) from error


def _hosts(given: Given) -> tuple[HostLine, ...]:
    path, listed = given["hostfile"], given["hosts"]
    if (path is None) is (listed is None):
        wrong = (
            "no hosts were given" if path is None else "--hostfile and --hosts exclude each other"
        )
        raise UsageError(f"{wrong}; expected --hostfile FILE or --hosts A,B,C.")
    if listed is not None:
        return read_list(listed, "--hosts")
    try:
        with open(path, encoding="utf-8") as file:
            return read_hostfile(file.read(), path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        bad = BadValue("a file with a line HOST slots=N for each host", str(reason))
        raise values.refuse("--hostfile", path, bad) from error


def _refuse_counts(low: int, count: int) -> None:
    if low > count:
        raise UsageError(
            f"--nnodes asks for {low} nodes, but there are {count} hosts; expected"
            f" --nnodes {count}, or more hosts."
        )


def _refuse_one_node(wanted: Given, count: int) -> None:
    if count > 1 and wanted["standalone"]:
        raise UsageError(
            f"--standalone is for one node, but there are {count} hosts; expected one host,"
            " or no --standalone."
        )
    if count > 1 and wanted["node_rank"] is not None:
        raise UsageError(
            f"--node-rank {wanted['node_rank']} would be the rank of each of the {count} hosts;"
            " omit it: the order of the hosts gives the ranks."
        )


def _slots(host: HostLine, wanted: Given) -> int | None:
    """Return the number of workers of a host; None if the job's options set it."""
    workers = wanted["nproc_per_node"]
    if workers is None:
        return host.slots
    if host.slots is not None and workers.isdecimal() and int(workers) != host.slots:
        raise UsageError(
            f"{host.where} has slots={host.slots}, but --nproc-per-node is {workers}; expected"
            f" slots={workers}, or no --nproc-per-node."
        )
    return None


def _own_path() -> str:
    """Return the path of this command; for ``python -m ft_run``, next to the interpreter."""
    own = os.path.abspath(sys.argv[0])
    return own if os.path.basename(own) == "ft-run" else f"{os.path.dirname(sys.executable)}/ft-run"


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise values.refuse("--ssh", text, BadValue("a command, e.g. 'ssh -p 2222'"))
    return words


def _token(given: Given, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with the job's token, sent over ssh's input; empty without a token."""
    trust = given_token(given, environ)
    if trust is None:
        return {}
    if trust.token is None:
        assert trust.token_file is not None
        token = read_token(trust.token_file, trust.origin)
    else:
        token = checked(trust.token, trust.origin)
    return {TOKEN_VARIABLE: token.reveal()}


def _variable(text: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or (not equals and name not in environ):
        right = "NAME=VALUE, or the NAME of a variable that is set here"
        raise values.refuse("--env", text, BadValue(right))
    if name == TOKEN_VARIABLE and equals:
        raise UsageError(
            f"--env {name}=VALUE shows the token in this host's list of processes; expected"
            f" --token-file FILE, or {name} in the environment."
        )
    return name, value if equals else environ[name]
