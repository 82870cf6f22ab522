"""The log folder: torchrun's layout, the plan of each stream, and errors before anything runs."""

import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from ft_run.errors import LogDirError
from ft_run.launcher.flags.stream_values import Streams, StreamSelection
from ft_run.launcher.log_options import LogOptions
from ft_run.launcher.logs.log_dir import LogDir, check_log_dir, console_prefix
from ft_run.launcher.logs.log_file import Route, Stream, StreamPlan, open_log


def select(default: Streams = Streams.NONE, **by_rank: Streams) -> StreamSelection:
    return StreamSelection(default, {int(rank[1:]): std for rank, std in by_rank.items()})


@pytest.fixture
def full_disk(small_disk: Path) -> Path:
    with suppress(OSError):
        (small_disk / "filler").write_bytes(b"x" * (1 << 20))
    return small_disk


@pytest.fixture(autouse=True)
def _temporary_folder_is_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_layout_is_that_of_torchrun(tmp_path: Path) -> None:
    base = tmp_path / "not" / "yet"
    logs = LogDir.create(LogOptions(str(base), redirects=select(Streams.BOTH)), "job")

    attempt = logs.attempt(restart_count=3, local_world_size=2)

    assert attempt.directory is not None
    assert re.fullmatch(r"job_[a-z0-9_]{8}/attempt_3", os.path.relpath(attempt.directory, base))
    assert attempt.warning is None
    for rank, worker in enumerate(attempt.workers):
        folder = f"{attempt.directory}/{rank}"
        assert worker.error_file == f"{folder}/error.json"
        assert not os.path.exists(worker.error_file)
        assert worker.streams == {
            Stream.STDOUT: StreamPlan(Route.FILE, f"{folder}/stdout.log"),
            Stream.STDERR: StreamPlan(Route.FILE, f"{folder}/stderr.log"),
        }
        assert sorted(os.listdir(folder)) == ["stderr.log", "stdout.log"]
    assert logs.path is not None
    assert stat.S_IMODE(os.stat(logs.path).st_mode) == 0o700


def test_folder_of_a_worker_exists_for_its_error_file_alone(tmp_path: Path) -> None:
    attempt = LogDir.create(LogOptions(str(tmp_path)), "job").attempt(0, 1)
    assert os.path.isdir(os.path.dirname(attempt.workers[0].error_file))


def test_relative_log_dir_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logs = LogDir.create(LogOptions("logs"), "job")
    monkeypatch.chdir("/")
    directory = logs.attempt(0, 1).directory
    assert directory is not None
    assert directory.startswith(str(tmp_path))


def test_no_attempt_is_ever_overwritten(tmp_path: Path) -> None:
    logs = LogDir.create(LogOptions(str(tmp_path), redirects=select(Streams.OUT)), "job")
    names = []
    for restart_count in (0, 0, 0, 1, 1):
        attempt = logs.attempt(restart_count, 1)
        path = attempt.workers[0].streams[Stream.STDOUT].path
        assert attempt.directory is not None
        assert path is not None
        Path(path).write_text(attempt.directory)
        names.append(os.path.basename(attempt.directory))

    assert names == ["attempt_0", "attempt_0.1", "attempt_0.2", "attempt_1", "attempt_1.1"]
    assert logs.path is not None
    for name in names:
        assert Path(logs.path, name, "0/stdout.log").read_text().endswith(name)


def test_two_nodes_may_share_a_log_dir(tmp_path: Path) -> None:
    options = LogOptions(str(tmp_path))
    assert LogDir.create(options, "job").path != LogDir.create(options, "job").path


@pytest.mark.parametrize(
    ("job_id", "name"),
    [
        ("team/run/7", "team_run_7"),
        ("../../etc", ".._.._etc"),
        ("a\nb\0c", "a_b_c"),
        ("plain id-1.2", "plain id-1.2"),
        ("", ""),
        ("ü" * 300, "ü" * 100),
    ],
)
def test_job_id_becomes_one_file_name(tmp_path: Path, job_id: str, name: str) -> None:
    path = LogDir.create(LogOptions(str(tmp_path)), job_id).path
    assert path is not None
    assert os.path.dirname(path) == str(tmp_path)
    assert os.path.basename(path)[:-9] == name


@pytest.mark.parametrize(
    ("redirect", "tee", "shown", "out", "err"),
    [
        (Streams.NONE, Streams.NONE, True, Route.INHERIT, Route.INHERIT),
        (Streams.NONE, Streams.NONE, False, Route.DISCARD, Route.DISCARD),
        (Streams.OUT, Streams.NONE, True, Route.FILE, Route.INHERIT),
        (Streams.ERR, Streams.NONE, False, Route.DISCARD, Route.FILE),
        (Streams.NONE, Streams.OUT, True, Route.RELAY, Route.INHERIT),
        (Streams.BOTH, Streams.ERR, True, Route.FILE, Route.RELAY),
        (Streams.NONE, Streams.BOTH, False, Route.FILE, Route.FILE),
    ],
)
def test_route_of_a_stream(
    tmp_path: Path, redirect: Streams, tee: Streams, shown: bool, out: Route, err: Route
) -> None:
    options = LogOptions(
        str(tmp_path),
        redirects=select(r1=redirect),
        tee=select(r1=tee),
        console_local_ranks=None if shown else frozenset({0}),
    )
    streams = LogDir.create(options, "job").attempt(0, 2).workers[1].streams
    assert (streams[Stream.STDOUT].route, streams[Stream.STDERR].route) == (out, err)


def test_only_streams_that_are_shown_by_tee_are_filtered(tmp_path: Path) -> None:
    options = LogOptions(
        str(tmp_path),
        redirects=select(r1=Streams.BOTH),
        tee=select(r0=Streams.BOTH, r2=Streams.BOTH),
        console_local_ranks=frozenset({0, 1}),
        stdout_filters=("loss", "ü"),
    )
    attempt = LogDir.create(options, "job").attempt(0, 3)

    plans = [worker.streams[Stream.STDOUT] for worker in attempt.workers]
    filtered = f"{attempt.directory}/filtered_stdout.log"
    assert [plan.filtered_path for plan in plans] == [filtered, None, None]
    assert plans[0].filters == (b"loss", "ü".encode())
    assert attempt.workers[0].streams[Stream.STDERR].filters == ()
    assert os.path.exists(filtered)
    assert not os.path.exists(f"{attempt.directory}/filtered_stderr.log")


def test_dev_null_means_no_files_and_plain_streams(tmp_path: Path) -> None:
    options = LogOptions(
        os.devnull,
        redirects=select(Streams.BOTH),
        tee=select(Streams.BOTH),
        stdout_filters=("x",),
    )
    logs = LogDir.create(options, "job")
    attempt = logs.attempt(0, 2)

    assert logs.path is None
    assert attempt.directory is None
    assert not logs.needs_relay
    for worker in attempt.workers:
        assert worker.error_file == ""
        assert {plan.route for plan in worker.streams.values()} == {Route.INHERIT}
    logs.remove_if_temporary()


@pytest.mark.parametrize(
    ("tee", "needed"),
    [(select(), False), (select(Streams.OUT), True), (select(r12=Streams.ERR), True)],
)
def test_relay_is_needed_for_tee(tmp_path: Path, tee: StreamSelection, needed: bool) -> None:
    options = LogOptions(str(tmp_path), redirects=select(Streams.BOTH), tee=tee)
    assert LogDir.create(options, "job").needs_relay is needed


def test_temporary_folder_is_removed_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    logs = LogDir.create(LogOptions(redirects=select(Streams.BOTH)), "job")
    logs.attempt(0, 2)
    assert logs.path is not None
    assert re.fullmatch(
        r"torchelastic_[a-z0-9_]{8}/job_[a-z0-9_]{8}", os.path.relpath(logs.path, tmp_path)
    )

    logs.remove_if_temporary()

    assert os.listdir(tmp_path) == []


def test_log_dir_of_the_user_is_never_removed(tmp_path: Path) -> None:
    logs = LogDir.create(LogOptions(str(tmp_path)), "job")
    logs.attempt(0, 1)
    logs.remove_if_temporary()
    assert logs.path is not None
    assert os.path.exists(logs.path)


def test_unusable_tmpdir_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "good"
    good.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setenv("TEMP", str(good))
    logs = LogDir.create(LogOptions(), "job")
    assert logs.path is not None
    assert logs.path.startswith(str(good))


def test_unwritable_directory_is_refused() -> None:
    # No user, root included, can make a directory in /proc.
    with pytest.raises(LogDirError, match=r"'/proc/ft-run': .* this user may write"):
        LogDir.create(LogOptions("/proc/ft-run"), "job")


@pytest.mark.root
def test_full_disk_is_refused_and_nothing_is_left_there(full_disk: Path) -> None:
    with pytest.raises(LogDirError, match="no space is left on its disk"):
        LogDir.create(LogOptions(str(full_disk)), "job")
    assert os.listdir(full_disk) == ["filler"]


@pytest.mark.root
def test_full_temporary_folder_is_passed_over(
    full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(full_disk))
    monkeypatch.setenv("TEMP", str(tmp_path))
    logs = LogDir.create(LogOptions(), "job")
    assert logs.path is not None
    assert os.path.dirname(os.path.dirname(logs.path)) == str(tmp_path)
    assert os.listdir(full_disk) == ["filler"]


def test_restart_goes_on_without_files_when_they_cannot_be_made(tmp_path: Path) -> None:
    options = LogOptions(
        str(tmp_path / "logs"),
        redirects=select(r0=Streams.BOTH),
        tee=select(r1=Streams.BOTH),
        console_local_ranks=frozenset({0, 1}),
        stdout_filters=("x",),
    )
    logs = LogDir.create(options, "job")
    logs.attempt(0, 3)
    (tmp_path / "logs").rename(tmp_path / "away")
    (tmp_path / "logs").write_text("in the way")

    attempt = logs.attempt(1, 3)

    assert attempt.directory is None
    assert attempt.warning is not None
    assert "there is a file in its place" in attempt.warning
    routes = [worker.streams[Stream.STDOUT] for worker in attempt.workers]
    assert routes == [StreamPlan(Route.INHERIT), StreamPlan(Route.RELAY), StreamPlan(Route.DISCARD)]
    assert {worker.error_file for worker in attempt.workers} == {""}


@pytest.mark.parametrize("below", ["", "logs", "logs/of/today"])
def test_a_folder_that_a_job_could_make_is_right_and_is_not_made(
    tmp_path: Path, below: str
) -> None:
    check_log_dir(str(tmp_path / below))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, "", "/dev/null"])
def test_where_no_files_are_wanted_there_is_nothing_to_refuse(path: str | None) -> None:
    check_log_dir(path)


def make_log_dir(path: str) -> None:
    LogDir.create(LogOptions(path), "job")


@pytest.mark.parametrize(
    ("refuse", "below"),
    [
        (make_log_dir, "file"),
        (make_log_dir, "file/logs"),
        (check_log_dir, "file"),
        (check_log_dir, "file/logs"),
        (check_log_dir, "dangling/logs"),
    ],
)
def test_what_no_folder_can_be_made_of_is_refused(
    tmp_path: Path, refuse: Callable[[str], None], below: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    path = str(tmp_path / below)
    with pytest.raises(LogDirError) as error:
        refuse(path)
    assert error.value.sentence == (
        f"Log files cannot be written to {path!r}: there is a file in its place;"
        " name a directory with --log-dir."
    )


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(LogDirError) as error:
        check_log_dir(str(tmp_path / "logs"))
    assert "Permission denied; name a directory that this user may write" in error.value.sentence


def test_removed_run_folder_is_made_again(tmp_path: Path) -> None:
    logs = LogDir.create(LogOptions(str(tmp_path)), "job")
    assert logs.path is not None
    os.rmdir(logs.path)
    assert logs.attempt(0, 1).warning is None


def test_open_log_appends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old ")
    fd = open_log(str(path))
    os.write(fd, b"new")
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert path.read_bytes() == b"old new"


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("", b"[trainer1]:"),
        ("${role_name}/${rank}/$local_rank> ", b"trainer/5/1> "),
        ("[${other}]", b"[${other}]"),
        ("${hostname}:", f"{socket.gethostname()}:".encode()),
    ],
)
def test_console_prefix(template: str, prefix: bytes) -> None:
    assert console_prefix("trainer", rank=5, local_rank=1, template=template) == prefix
