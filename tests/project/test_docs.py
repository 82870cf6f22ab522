"""The commands that the documents show: ft-run takes them, and scripts do what they promise."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_run.launcher.cli import parse

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = (ROOT / "README.md", ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md")))
LINKED = (*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md")
BLOCK = re.compile(r"^```(?:bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LEADER_WORKER_SET = {
    "LWS_GROUP_SIZE": "16",
    "LWS_WORKER_INDEX": "0",
    "LWS_LEADER_ADDRESS": "digits-0.digits.default",
}
"""An environment for ``--auto-config``."""
ENDS = {";", "&&", "||", "|", "&"}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Return (document, arguments) of every ``ft-run`` in the blocks of shell commands."""
    for path in DOCUMENTS:
        for block in BLOCK.findall(path.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                # What a task of srun is given stands after the name of its inner script.
                shell = line.replace("' task ", "ft-run ", 1).removeprefix("$ ")
                if not re.match(r"(\S*/|[A-Z_]+=\S+ |srun .*)?ft-run ", shell):
                    continue
                lexer = shlex.shlex(shell, posix=True, punctuation_chars=";&|")
                lexer.whitespace_split = True
                words = list(lexer)
                begin = next(i for i, word in enumerate(words) if Path(word).name == "ft-run") + 1
                ends = (i for i, word in enumerate(words[begin:], begin) if word in ENDS)
                yield str(path.relative_to(ROOT)), words[begin : next(ends, len(words))]


@pytest.mark.parametrize(("document", "argv"), list(commands()))
def test_every_command_line_is_taken(
    document: str, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"$SLURM_NNODES": "2", "$SLURM_JOB_ID": "7", "$SLURM_SUBMIT_DIR": "/home/me"}
    (tmp_path / "train.py").touch()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    filled = []
    for word in argv:
        for name, value in values.items():
            word = word.replace(name, value)
        filled.append(word.replace("$head", "node0"))
    (tmp_path / "job.toml").write_text("[checks]\nnetwork-check = true\n")
    (tmp_path / "hosts").write_text("gpu001 slots=8\n")
    environ = LEADER_WORKER_SET if "--auto-config" in filled else {}
    if "--dry-run" in filled:
        with pytest.raises(SystemExit, match=r"^0$"):
            parse.parse(filled, environ)
    else:
        parse.parse(filled, environ)


def test_no_document_with_commands_is_overlooked() -> None:
    found = [name for name, _ in commands()]
    assert {"README.md", "examples/README.md"} <= {*found}
    overlooked = {f"docs/guide/{path.name}" for path in GUIDES} - {*found}
    # These have commands of other programs only: docker, mpirun, kubectl, torchrun, or Python.
    assert {Path(name).stem for name in overlooked} == {
        *("containers", "kubernetes", "leaving", "mpi", "python-api"),
    }
    assert found.count("docs/guide/failure-policy.md") == 4


GUIDES = sorted((DOCS / "guide").glob("*.md"))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_opens_with_a_command_and_is_short(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[2] in {"```bash", "```python"}
    assert len(lines) <= 150


def test_the_index_has_every_page_once() -> None:
    index = (DOCS / "README.md").read_text()
    listed = re.findall(r"^\| \[.*?\]\(([^)]*)\)", index, re.MULTILINE)
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    pages.remove("README.md")
    assert sorted(listed) == sorted([*pages, "../benchmarks/README.md"])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


CODE = re.compile(r"\bdocs/[\w/.-]+\.(?:md|1)\b")


def test_the_code_names_pages_that_exist() -> None:
    sources = [path for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    named = {name for path in sources for name in CODE.findall(path.read_text())}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


SRUN = """#!/bin/bash
# As srun: the command once for each task; the highest exit code of all.
while [ $# -gt 0 ] && [ "$1" != bash ]; do shift; done
highest=0
for status in $STATUSES; do
  STATUS=$status "$@"
  status=$?
  [ $status -le $highest ] || highest=$status
done
exit $highest
"""


@pytest.mark.parametrize(
    ("statuses", "exit_code", "requeued"),
    [
        ("0 0", 0, False),
        ("0 30 0", 0, False),
        ("1 30 1", 1, False),
        ("2", 2, False),
        ("3 30", 3, False),
        ("41 0", 41, False),
        ("30 30", 0, True),
        ("40 30", 0, True),
        ("20 20", 0, True),
        ("137 1", 0, True),
        ("137 0", 0, False),
    ],
)
def test_the_script_for_slurm_requeues_what_may_yet_succeed(
    statuses: str, exit_code: int, requeued: bool, tmp_path: Path
) -> None:
    blocks = BLOCK.findall((DOCS / "guide" / "failure-policy.md").read_text())
    (script,) = (block for block in blocks if "scontrol requeue" in block)
    programs = {
        "srun": SRUN,
        "ft-run": '#!/bin/bash\nexit "$STATUS"\n',
        "scontrol": '#!/bin/bash\n[ "$1" = show ] && echo node0 || echo "$@" >> "$CALLS"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "STATUSES": statuses,
            "CALLS": str(calls),
            "SLURM_JOB_ID": "7",
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_NODELIST": "node0",
        },
        check=False,
        timeout=60,
    )
    assert ended.returncode == exit_code
    assert calls.exists() is requeued
    if requeued:
        assert calls.read_text() == "requeue 7\n"
