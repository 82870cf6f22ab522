"""The log directory of a job on this node, and the destination of each worker's streams.

The layout is the same as torchrun's::

    <log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}
    <log_dir>/<run_id>_<random>/attempt_<n>/filtered_{stdout,stderr}.log

``n`` is the restart count. A regroup starts the workers again without counting a restart; its
directories are then ``attempt_<n>.1``, ``attempt_<n>.2`` etc., so earlier attempts are not changed.
"""

import contextlib
import errno
import itertools
import os
import shutil
import string
import tempfile
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from ...errors import LogDirError
from ..flags.stream_values import Streams
from ..log_options import LogOptions
from .log_file import Route, Stream, StreamPlan, open_log

_TEMPORARY_PREFIX = "torchelastic_"
_RUN_ID_MAX_BYTES = 200
_PROBE_BYTES = 4096


class WorkerLogs(Struct, frozen=True):
    """The plan for one worker."""

    streams: Mapping[Stream, StreamPlan]
    error_file: str
    """The value of ``TORCHELASTIC_ERROR_FILE``; empty if no files are written."""


class AttemptLogs(Struct, frozen=True):
    """The plan for one start of all workers; ``workers`` is ordered by local rank."""

    workers: tuple[WorkerLogs, ...]
    directory: str | None
    """None if no files are written."""
    warning: str | None = None
    """A message, if the requested files cannot be written."""
    prefix_template: str = ""


class LogDir:
    """The log directory of one job on this node. Use ``create`` to create it."""

    def __init__(self, options: LogOptions, run_dir: str | None, temporary_dir: str | None) -> None:
        self._options = options
        self._temporary_dir = temporary_dir
        self.path = run_dir
        """The absolute path of the run's directory; None with ``--log-dir /dev/null``."""

    @classmethod
    def create(cls, options: LogOptions, job_id: str) -> "LogDir":
        """Create the run's directory; raise ``LogDirError`` if it is not writable."""
        if options.log_dir == os.devnull:
            return cls(options, None, None)
        prefix = f"{_file_name_of(job_id)}_"
        if not options.log_dir:
            base, run_dir = _make_temporary(prefix)
            return cls(options, run_dir, base)
        base = os.path.abspath(options.log_dir)
        try:
            os.makedirs(base, exist_ok=True)
            return cls(options, _make_probed(base, prefix), None)
        except OSError as error:
            raise LogDirError(_cannot_write(options.log_dir, error)) from error

    @property
    def keeps_files(self) -> bool:
        """Whether the files are kept after the job, because the user requested them."""
        return self.path is not None and self._temporary_dir is None

    @property
    def needs_relay(self) -> bool:
        """Whether any worker's output can go through the relay."""
        tee = self._options.tee
        return self.path is not None and any((tee.default, *tee.by_local_rank.values()))

    def attempt(self, restart_count: int, local_world_size: int) -> AttemptLogs:
        """Create the directory and empty log files of the next start, and plan its streams.

        This never fails, because a full disk must not end a job that trains: the output then goes
        only to the console, and ``warning`` says so.
        """
        if self.path is None:
            # As in torchrun: without files, neither tee nor the filters have an effect.
            inherited = dict.fromkeys(Stream, StreamPlan(Route.INHERIT))
            return AttemptLogs((WorkerLogs(inherited, ""),) * local_world_size, None)
        template = self._options.prefix_template
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            directory = _make_attempt_dir(self.path, restart_count)
            workers = self._plan(directory, local_world_size)
            for path in self._files(directory, workers):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.close(open_log(path))
            for local_rank in range(local_world_size):
                os.makedirs(os.path.join(directory, str(local_rank)), exist_ok=True)
        except OSError as error:
            warning = _cannot_write(self.path, error) + " The output goes to the console only."
            without_files = (_without_files(w) for w in self._plan("", local_world_size))
            return AttemptLogs(tuple(without_files), None, warning, template)
        return AttemptLogs(workers, directory, prefix_template=template)

    def remove_if_unused(self) -> None:
        """Remove the directory if no round started; a temporary one if it contains no file."""
        if self._temporary_dir is not None:
            for folder, _, _ in os.walk(self._temporary_dir, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)  # does not remove files
            return
        if self.path is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self.path)

    def remove_if_temporary(self) -> None:
        """Remove the directory unless it was given by ``--log-dir``."""
        if self._temporary_dir is None:
            return
        shutil.rmtree(self._temporary_dir, ignore_errors=True)

    def _plan(self, directory: str, local_world_size: int) -> tuple[WorkerLogs, ...]:
        return tuple(
            WorkerLogs(
                {stream: self._plan_stream(directory, rank, stream) for stream in Stream},
                os.path.join(directory, str(rank), "error.json"),
            )
            for rank in range(local_world_size)
        )

    def _plan_stream(self, directory: str, local_rank: int, stream: Stream) -> StreamPlan:
        """Plan one stream according to the rules of torchrun's ``DefaultLogsSpecs``.

        Tee implies redirect. The rank filter hides a stream from the console, and also from the
        filtered file, which in torchrun contains only lines that are tee'd and shown.
        """
        options = self._options
        shown = options.console_local_ranks is None or local_rank in options.console_local_ranks
        bit = Streams.OUT if stream is Stream.STDOUT else Streams.ERR
        teed = bool(options.tee.of(local_rank) & bit)
        if not teed and not options.redirects.of(local_rank) & bit:
            return StreamPlan(Route.INHERIT if shown else Route.DISCARD)
        path = os.path.join(directory, str(local_rank), f"{stream.value}.log")
        if not teed or not shown:
            return StreamPlan(Route.FILE, path)
        filters = self._filters(stream)
        if not filters:
            return StreamPlan(Route.RELAY, path)
        encoded = tuple(text.encode(errors="surrogateescape") for text in filters)
        return StreamPlan(Route.RELAY, path, encoded, _filtered_path(directory, stream))

    def _filters(self, stream: Stream) -> tuple[str, ...]:
        options = self._options
        return options.stdout_filters if stream is Stream.STDOUT else options.stderr_filters

    def _files(self, directory: str, workers: Iterable[WorkerLogs]) -> Iterator[str]:
        for stream in Stream:
            if self._filters(stream):  # the file exists even if no line matches
                yield _filtered_path(directory, stream)
        for worker in workers:
            yield from (plan.path for plan in worker.streams.values() if plan.path)


def console_prefix(role: str, rank: int, local_rank: int, template: str) -> bytes:
    """Return the prefix of each console line of a tee'd stream, by default ``[<role><n>]:``.

    ``template`` has names of ``--log-line-prefix-template``; unknown names stay unchanged.
    """
    prefix = f"[{role}{local_rank}]:"
    if template:
        prefix = string.Template(template).safe_substitute(
            role_name=role, rank=rank, local_rank=local_rank, hostname=os.uname().nodename
        )
    return prefix.encode(errors="surrogateescape")


def _filtered_path(directory: str, stream: Stream) -> str:
    return os.path.join(directory, f"filtered_{stream.value}.log")


def _without_files(worker: WorkerLogs) -> WorkerLogs:
    """Return the plan that shows on the console what cannot be written to a file."""
    routes = {stream: plan.route for stream, plan in worker.streams.items()}
    instead = {Route.FILE: Route.INHERIT}
    return WorkerLogs({s: StreamPlan(instead.get(r, r)) for s, r in routes.items()}, "")


def _file_name_of(job_id: str) -> str:
    """Return ``job_id`` without characters that a file name cannot contain, and not too long."""
    name = "".join(c if c.isprintable() and c != "/" else "_" for c in job_id)
    return name.encode()[:_RUN_ID_MAX_BYTES].decode(errors="ignore")


def _make_attempt_dir(run_dir: str, restart_count: int) -> str:
    path = os.path.join(run_dir, f"attempt_{restart_count}")
    for regroups in itertools.count():
        candidate = f"{path}.{regroups}" if regroups else path
        with contextlib.suppress(FileExistsError):
            os.mkdir(candidate)
            return candidate
    raise AssertionError("an endless sequence has ended")


def check_log_dir(path: str | None) -> None:
    """Raise ``LogDirError`` if a log directory could not be written, ignoring the free space.

    Nothing is created: the directory need not exist yet. None or ``/dev/null`` means no directory.
    """
    if not path or path == os.devnull:
        return
    folder = os.path.abspath(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    code = errno.ENOTDIR if not os.path.isdir(folder) else errno.EACCES
    if code == errno.ENOTDIR or not os.access(folder, os.W_OK | os.X_OK):
        error = OSError(code, os.strerror(code))
        raise LogDirError(_cannot_write(path, error)) from error


def _make_probed(parent: str, prefix: str) -> str:
    """Create a run's directory and write a probe to it; on failure, leave nothing behind."""
    path = tempfile.mkdtemp(prefix=prefix, dir=parent)
    probe = os.path.join(path, ".probe")
    try:
        try:
            with open(probe, "wb", buffering=0) as file:
                if file.write(b"\0" * _PROBE_BYTES) != _PROBE_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(probe)
    except OSError:
        os.rmdir(path)
        raise
    return path


def _make_temporary(prefix: str) -> tuple[str, str]:
    """Create ``torchelastic_<random>/<run>`` in the first writable temporary directory."""
    try:
        base = tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX)
        try:
            return base, _make_probed(base, prefix)
        except OSError:
            os.rmdir(base)
            raise
    except OSError as error:
        raise LogDirError(
            "No temporary folder for the workers' error files can be written "
            f"({error}); set TMPDIR to a writable directory, or set --log-dir."
        ) from error


def _cannot_write(path: str, error: OSError) -> str:
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        what = "there is a file in its place"
        remedy = "name a directory"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "no space is left on its disk"
        remedy = "free some or name another directory"
    else:
        what = error.strerror or str(error)
        remedy = "name a directory that this user may write"
    return f"Log files cannot be written to {path!r}: {what}; {remedy} with --log-dir."
