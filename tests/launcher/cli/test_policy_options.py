"""The command line of the failure policy: flags, variables, the file, what cannot work."""

import json
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli import parse
from ft_run.launcher.cli.policy_flags import PolicyOptions
from ft_run.launcher.commands.policy import failure_of
from ft_run.launcher.main import main
from ft_run.launcher.options import LaunchOptions
from ft_run.rendezvous.protocol.messages import PolicySpec

ENDPOINT = ("--rdzv-endpoint", "h:1", "--rdzv-id", "x", "--max-restarts", "3")


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def launch(*argv: str, **environ: str) -> LaunchOptions:
    options = parse.parse([*argv, "train.py"], environ)
    assert isinstance(options, LaunchOptions)
    return options


def policy(*argv: str, **environ: str) -> PolicySpec:
    found = launch(*ENDPOINT, *argv, **environ).policy
    assert found is not None
    return found


def sentence(*argv: str, **environ: str) -> str:
    with pytest.raises(UsageError) as error:
        launch(*argv, **environ)
    return error.value.sentence


# --- flags and variables ---------------------------------------------------------------------


def test_without_any_of_them_nothing_travels() -> None:
    options = launch(*ENDPOINT)
    assert options.policy is None
    assert not options.propagate_exit_code
    assert launch(*ENDPOINT, "--max-node-failures", "3", "--success-policy=all").policy is None


def test_every_flag() -> None:
    options = launch(
        *ENDPOINT, "--on-failure", "exit:3=fail", "--on_failure=oom=replace-node",
        "--restart-window", "24h", "--restart-backoff", "0s:1m", "--max-node-failures", "never",
        "--success-policy", "rank0", "--propagate-exit-code",
    )  # fmt: skip
    assert options.policy == PolicySpec(
        rules=("exit:3=fail", "oom=replace-node"),
        restart_window_s=86400.0,
        backoff_first_s=0.0,
        backoff_max_s=60.0,
        max_node_failures=0,
        rank0_decides=True,
    )
    assert options.propagate_exit_code


TIME = "a duration in seconds, or with a unit (90s, 5m, 24h)"


@pytest.mark.parametrize(
    ("argv", "most"),
    [
        (("--watch-workers",), 3),
        (("--hang-timeout", "auto"), 3),
        (("--watch-workers", "--max-no-progress", "7"), 7),
    ],
)
def test_restarts_without_a_step_are_limited_where_workers_are_watched(
    argv: tuple[str, ...], most: int
) -> None:
    assert policy(*argv) == PolicySpec(max_no_progress=most)
    assert launch(*ENDPOINT, *argv, "--max-no-progress=never").policy is None
    assert policy("--watch-workers", PET_MAX_NO_PROGRESS="9").max_no_progress == 9
    assert launch(*ENDPOINT, PET_MAX_NO_PROGRESS="never").policy is None


def test_variables_and_the_command_line_beats_them() -> None:
    found = policy(PET_ON_FAILURE="exit:3=fail; oom=restart ;", PET_RESTART_WINDOW="90m")
    assert found.rules == ("exit:3=fail", "oom=restart")
    assert found.restart_window_s == 5400
    found = policy("--on-failure", "exit:4=fail", PET_ON_FAILURE="exit:3=fail")
    assert found.rules == ("exit:4=fail",)
    assert launch(*ENDPOINT, PET_PROPAGATE_EXIT_CODE="yes").propagate_exit_code


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--on-failure", "exit:3"),
         "invalid value 'exit:3' for --on-failure (not MATCH=ACTION): expected MATCH=ACTION"),
        (("--on-failure", "exit:3=die"), "(unknown action 'die'): expected restart"),
        (("--on-failure", "error:(=fail"), "is not a regular expression"),
        (("--restart-window", "0"), f"expected {TIME}, > 0"),
        (("--restart-backoff", "60s"), "expected FIRST:MAX with FIRST <= MAX"),
        (("--restart-backoff", "60s:1s"), "expected FIRST:MAX with FIRST <= MAX"),
        (("--restart-backoff", "0:0"), "expected FIRST:MAX"),
        (("--max-node-failures", "0"), "expected a whole number >= 1, or never"),
        (("--watch-workers", "--max-no-progress", "0"),
         "invalid value '0' for --max-no-progress: expected a whole number >= 1, or never"),
        (("--success-policy", "most"), "expected all or rank0"),
        (("--on-failure", "exit:3=fail", "--on-failure", "exit:3=restart"),
         "the rule exit:3=restart is never used: exit:3=fail comes before it"),
    ],
)  # fmt: skip
def test_what_is_no_value(argv: tuple[str, ...], told: str) -> None:
    assert told in sentence(*ENDPOINT, *argv)


def test_there_may_be_as_many_rules_as_a_master_accepts() -> None:
    rules = [f"--on-failure=exit:{code}=fail" for code in range(1, 101)]
    assert len(policy(*rules).rules) == 100
    assert sentence(*ENDPOINT, *rules, "--on-failure=oom=fail") == (
        "too many rules of --on-failure (101): expected at most 100."
    )


# --- combinations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "what", "why"),
    [
        (("--restart-window", "24h"), "--restart-window", "--max-restarts is 0"),
        (("--restart-backoff", "0:60"), "--restart-backoff", "--max-restarts is 0"),
        (("--on-failure", "oom=replace-node", "--max-restarts", "1"),
         "the rule oom=replace-node", "no --rdzv-endpoint was given"),
        (("--on-failure", "oom=replace-node", "--rdzv-endpoint", "h:1"),
         "the rule oom=replace-node", "--max-restarts is 0"),
        (("--on-failure", "hang=fail"), "the rule hang=fail", "no --hang-timeout was given"),
        (("--max-no-progress", "2"),
         "--max-no-progress", "neither --hang-timeout nor --watch-workers was given"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused(argv: tuple[str, ...], what: str, why: str) -> None:
    assert sentence(*argv).startswith(f"{what} has no effect, because {why}; expected ")


def test_what_works_although_no_restart_is_counted() -> None:
    found = launch("--on-failure", "exit:75=restart-free", "--restart-backoff", "1:60").policy
    assert found is not None
    assert found.backoff_max_s == 60


# --- the file --------------------------------------------------------------------------------

FILE = """
restart-window = "24h"
restart-backoff = "0s:60s"
max-node-failures = 2
success-policy = "rank0"

[[rule]]
match = "exit:64-79"
action = "fail"

[[rule]]
match = "error:a=b"
action = "restart-free"
"""


def test_a_file_says_the_same_as_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(FILE)
    assert policy("--failure-policy", str(path)) == PolicySpec(
        ("exit:64-79=fail", "error:a=b=restart-free"), 86400.0, 0.0, 60.0, 2, True
    )
    found = policy(
        "--on-failure", "exit:3=fail", "--restart-window", "1h", PET_FAILURE_POLICY=str(path)
    )
    assert found.rules == ("exit:3=fail", "exit:64-79=fail", "error:a=b=restart-free")
    assert found.restart_window_s == 3600


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("restart_windw = '24h'",
         "unknown key 'restart_windw' in FILE; did you mean restart-window?"),
        ("xyz = 1", "unknown key 'xyz' in FILE; expected restart-window, restart-backoff"),
        ("[[rules]]\nmatch='oom'", "unknown key 'rules' in FILE; did you mean rule?"),
        ("[[rule]]\nmatch='oom'\nactoin='fail'",
         "unknown key 'actoin' in rule 1 of FILE; did you mean action?"),
        ("[[rule]]\nmatch='oom'", "rule 1 of FILE has no text for action; expected match"),
        ("[[rule]]\nmatch=3\naction='fail'", "rule 1 of FILE has no text for match"),
        ("rule = 'oom=fail'", "rule is not a list of tables; expected [[rule]] for each"),
        ("[[rule]]\nmatch='om'\naction='fail'",
         "invalid value 'om=fail' for rule 1 of FILE (unknown match 'om'): expected"),
        ("restart-window = 'x'", f"invalid value 'x' for restart-window in FILE: expected {TIME}"),
        ("restart-window = true", "'True' for restart-window in FILE: expected text or a number"),
        ("restart-window = ", "(not TOML: "),
        (f"restart-window = {'[' * 3000}", "(not TOML: "),
        ("checks = 3", "checks is not a table; expected [checks]"),
        ("[checks]\nlevel = 'full'",
         "unknown key 'level' in [checks] of FILE; did you mean check-level?"),
        ("[checks]\nbind = 'x'",
         "unknown key 'bind' in [checks] of FILE; expected network-check, "),
        ("[checks]\nnetwork-check = 'maybe'",
         "for network-check in [checks] of FILE: expected 1/0"),
        ("[checks]\ncheck-level = true",
         "'True' for check-level in [checks] of FILE: expected text or a number"),
        ("[checks]\ncheck-level = 'deep'",
         "invalid value 'deep' for check-level in [checks] of FILE: expected light or full"),
        ("[checks]\nexclude-straggler = [1]",
         "for exclude-straggler in [checks] of FILE: expected true or false"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    assert told.replace("FILE", str(path)) in sentence(*ENDPOINT, "--config", str(path))


CHECKS = """
restart-window = "1h"
[checks]
network-check = true
check-level = "full"
check-timeout = 120
min-memory-gb-per-s = 3.5
exclude-straggler = true
"""


@pytest.mark.parametrize("flag", ["--config", "--failure-policy"])
@pytest.mark.parametrize("is_variable", [False, True])
def test_a_file_has_flags_of_the_checks_too(tmp_path: Path, flag: str, is_variable: bool) -> None:
    path = tmp_path / "job.toml"
    path.write_text(CHECKS)
    variable = "PET_" + flag[2:].replace("-", "_").upper()
    argv, environ = ([], {variable: str(path)}) if is_variable else ([flag, str(path)], {})
    options = launch(*ENDPOINT, *argv, **environ)
    assert options.policy is not None
    assert options.policy.restart_window_s == 3600
    assert options.checks is not None
    spec = options.checks.spec
    assert (spec.level, spec.timeout_s, spec.exclude_straggler) == ("full", 120, True)
    assert spec.minimums == ("memory_gb_per_s=3.5",)
    assert options.warnings == ()


def test_flags_and_variables_override_the_checks_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(CHECKS)
    given = (*ENDPOINT, f"--config={path}", "--check-level=light")
    options = launch(*given, PET_CHECK_TIMEOUT="90", PET_EXCLUDE_STRAGGLER="0")
    assert options.checks is not None
    spec = options.checks.spec
    assert (spec.level, spec.timeout_s, spec.exclude_straggler) == ("light", 90, False)
    without = launch(*ENDPOINT, f"--config={path}", PET_NETWORK_CHECK="0")
    assert without.checks is None
    assert without.warnings == (
        f"[checks] of {path} has no effect without --network-check: ignored.",
    )


def test_a_check_reads_the_checks_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(CHECKS)
    options = parse.parse(["check", "--config", str(path), "--min-memory-gb-per-s=9"], {})
    assert isinstance(options, LaunchOptions)
    assert options.checks is not None
    assert (options.checks.spec.level, options.checks.spec.only) == ("full", True)
    assert options.checks.spec.minimums == ("memory_gb_per_s=9.0",)
    assert options.warnings == ()


def test_ft_run_policy_reads_a_file_with_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.toml").write_text(CHECKS + "[[rule]]\nmatch = 'oom'\naction = 'fail'\n")
    told = explain(capsys, "--explain", "oom", "--config", str(tmp_path / "job.toml"))
    assert "matches  oom=fail (rule)" in told


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    told = sentence(*ENDPOINT, "--config", str(tmp_path / "none.toml"))
    assert "for --config (No such file or directory): expected a TOML file" in told
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "not TOML" in sentence(*ENDPOINT, "--config", str(tmp_path / "binary.toml"))


# --- ft-run policy ---------------------------------------------------------------------------


def explain(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["policy", *argv]) == 0
    return capsys.readouterr().out


def test_explain_names_the_rule_and_those_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    rules = ("--on-failure", "exit:3=fail", "--on-failure", "oom=replace-node")
    assert explain(capsys, "--explain", "exit:137 oom", *rules).splitlines() == [
        "skipped  exit:3=fail: the exit code 137 is not 3",
        "matches  oom=replace-node (rule): the kernel's OOM killer killed the worker",
        "action for 'exit:137 oom': replace-node: the node leaves with exit code 30; a new"
        " round with another in its place, counted.",
    ]


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(explain(capsys, "--explain", "exit:1 error:ImportError: x y", "--json"))
    assert told["action"] == "restart"
    assert told["is_default"]
    assert [over["rule"] for over in told["passed_over"]] == [
        "repeated usage or import error=fail",
        "unequal state=fail",
        "state of another number of ranks=fail",
        "corrupt twice on one node=fail",
        "preempted=restart-free",
    ]
    again = ("--after", "2s", "--again", "--json")
    told = json.loads(explain(capsys, "--explain", "error:ImportError: x y", *again))
    assert (told["action"], told["counted"]) == ("fail", False)


def test_explain_says_why_an_error_without_words_is_no_typo(
    capsys: pytest.CaptureFixture[str],
) -> None:
    again = ("--after", "2s", "--again")
    told = explain(capsys, "--explain", "exit:1", *again)
    assert (
        "skipped  repeated usage or import error=fail: the error is unknown: no exception was "
        "captured, and stderr is captured only by --tee 2 or --redirects 2"
    ) in told
    assert "action for 'exit:1': restart: " in told
    assert "action for 'exit:2': fail: " in explain(capsys, "--explain", "exit:2", *again)


def test_explain_describes_corrupt_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert "action for 'corrupt': restart: " in explain(capsys, "--explain", "corrupt")
    assert "action for 'corrupt': fail: " in explain(capsys, "--explain", "corrupt", "--again")


def test_explain_reads_the_same_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(FILE)
    told = explain(capsys, "--explain", "exit:70", "--failure-policy", "policy.toml")
    assert "matches  exit:64-79=fail (rule): the exit code 70 is within 64 to 79" in told


@pytest.mark.parametrize(
    ("text", "status"),
    [("exit:137 oom", 137), ("signal:SEGV", -11), ("oom", -9), ("error:x", 1), ("exit:3 ", 3)],
)
def test_the_failure_that_is_described(text: str, status: int) -> None:
    assert failure_of(text).exit_code == status


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "invalid value '' for --explain: expected words, e.g. "),
        ("boom", "unknown match 'boom'"),
        ("exit:1-3", "but exit:1-3 is not one failure"),
        ("node-lost oom", "but with node-lost no worker has failed"),
    ],
)
def test_what_describes_no_failure(text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        failure_of(text)
    assert told in error.value.sentence


def test_the_command_and_a_script_of_its_name(tmp_path: Path) -> None:
    options = parse.parse(["policy", "--explain", "oom"], {"PET_ON_FAILURE": "oom=fail"})
    assert options == PolicyOptions("oom", PolicySpec(rules=("oom=fail",)))
    for argv in (["policy"], ["policy", "train.py"], ["policy", "--explain", "oom", "x"]):
        with pytest.raises(UsageError, match=r"or \./policy for a script of that name"):
            parse.parse(argv, {})
    (tmp_path / "policy").touch()
    found = parse.parse(["./policy"], {})
    assert isinstance(found, LaunchOptions)
    assert found.script == "./policy"


def test_dry_run_shows_the_checks_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "ft-run.toml"
    config.write_text("[checks]\nnetwork-check = true\ncheck-level = 'full'\n")
    words = ["--config", str(config), "--dry-run", "--no-python", "true"]
    with pytest.raises(SystemExit):
        parse.parse(words, {})
    assert "--network-check --check-level=full" in capsys.readouterr().out
