"""The guide for users of another launcher: what it names exists."""

import importlib
import re
from pathlib import Path

import pytest
from ft_run.launcher.cli import launch_flags, rdzv_conf

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "migrating.md"
WORD = re.compile(r"(?<![\w-])--[a-z][a-z_-]*")


def rows() -> list[tuple[str, str, str]]:
    """Return (section, what it was, what it is) of every row of every table."""
    found: list[tuple[str, str, str]] = []
    section = ""
    for line in GUIDE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == 2 and not cells[0].startswith("---"):
            found.append((section, cells[0], cells[1]))
    return found


def test_every_flag_that_it_recommends_is_one_of_ours() -> None:
    ours = {word for flag in launch_flags.launch_command().flags for word in flag.opts}
    named = {word for _, _, new in rows() for word in WORD.findall(new)}
    # What a script is given, and what one row says of accelerate.
    assert named - ours == {"--local-rank", "--same_network"}


def test_every_module_that_it_recommends_has_what_it_names() -> None:
    for module, names in re.findall(r"from (ft_run[\w.]*) import ([\w, ]+)", GUIDE.read_text()):
        found = importlib.import_module(module)
        assert [name for name in names.split(", ") if not hasattr(found, name)] == []


def test_what_keeps_its_name_does() -> None:
    ours = {word for flag in launch_flags.launch_command().flags for word in flag.opts}
    same = [old for _, old, new in rows() if new.startswith("the same names")]
    assert len(same) == 4
    for old in same:
        for word in WORD.findall(old):
            assert word.replace("_", "-") in ours


def test_every_flag_of_torchs_launch_module_that_torchrun_lacks_is_explained() -> None:
    launch = pytest.importorskip("torch.distributed.launch")
    parsed = vars(launch.parse_args(["script.py"]))
    known = {flag.key for flag in launch_flags.launch_command().flags}
    extra = set(parsed) - known - {"training_script", "training_script_args"}
    text = " ".join(old for section, old, _ in rows() if section.endswith("distributed.launch"))
    assert extra == {"use_env"}
    assert all(f"--{name.replace('_', '-')}" in text for name in extra)


def test_the_keys_of_the_rendezvous_that_it_names_are_read() -> None:
    for key in ("join_timeout", "last_call_timeout", "timeout", "read_timeout", "connect_timeout"):
        assert rdzv_conf.parse_conf(f"{key}=7").warnings == ()
        assert key in GUIDE.read_text()


def test_accelerates_flags_exist() -> None:
    parser = pytest.importorskip("accelerate.commands.launch").launch_command_parser()
    theirs = {word for action in parser._actions for word in action.option_strings}
    named = {
        word
        for section, old, _ in rows()
        if section == "From accelerate launch"
        for word in WORD.findall(old)
    }
    spelled = {word.replace("-", "_") for word in theirs}
    unknown = {word for word in named if word.replace("-", "_") not in spelled}
    assert unknown == {"--fsdp_", "--dynamo_"}  # and so on
