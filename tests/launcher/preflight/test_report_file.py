"""Where the report of checks goes: files are replaced in one step, all else is refused."""

import os
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.preflight.report_file import check_report_path, write_report

REPORT = '{"conclusion": "fine"}'


def test_a_file_is_replaced_in_one_step_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with path.open() as reader:
        check_report_path(str(path))
        write_report(str(path), REPORT)
        assert path.read_text() == REPORT + "\n"
        assert reader.read() == "old"  # a reader that had it open sees no half of the new one
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_to_a_file_stays_a_link(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "report.json", tmp_path / "link"
    if exists:
        target.write_text("old")
    link.symlink_to(target)
    check_report_path(str(link))
    write_report(str(link), REPORT)
    assert link.is_symlink()
    assert target.read_text() == REPORT + "\n"


@pytest.mark.parametrize(
    "kind",
    [
        *("folder", "link to a folder", "in a folder that is missing", "pipe", "device"),
        "redirected stream",
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, kind: str) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    os.mkfifo(tmp_path / "pipe")
    paths = {"folder": folder, "link to a folder": link, "pipe": tmp_path / "pipe"}
    paths["device"] = Path("/dev/null")
    with (tmp_path / "stdout").open("w") as stream:
        paths["redirected stream"] = Path(f"/proc/self/fd/{stream.fileno()}")
        path = str(paths.get(kind, tmp_path / "missing" / "report.json"))
        with pytest.raises(UsageError) as error:
            check_report_path(path)
    assert error.value.sentence == (
        f"cannot write --check-report {path!r}; expected a regular file in a directory that exists"
        " and is writable."
    )
    assert link.is_symlink()


@pytest.mark.parametrize("kind", ["folder", "in a folder that is missing"])
def test_what_cannot_be_written_after_all_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path if kind == "folder" else tmp_path / "missing" / "report.json"
    with pytest.raises(UsageError, match=r"cannot write --check-report .*: "):
        write_report(str(path), REPORT)
    assert list(tmp_path.iterdir()) == []
