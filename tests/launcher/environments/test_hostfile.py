"""Hostfiles, and what ``ft-run hosts`` makes of them: checked before anything starts."""

import secrets
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.hosts_flags import read_hosts
from ft_run.launcher.hosts_options import HostsOptions


def read(*argv: str, hostfile: str | None = None) -> HostsOptions:
    words = list(argv)
    if hostfile is not None:
        Path("hosts").write_text(hostfile)
        words = ["--hostfile", "hosts", *words]
    return read_hosts(words, {"TOKEN": "t"})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FILE = "# nodes\nme@gpu1 slots=8\n\ngpu2 slots=4   # an old one\n10.0.0.3\n"


def test_each_host_gets_what_the_job_does_not_say() -> None:
    options = read("--max-restarts", "3", "train.py", "--lr", "1", hostfile=FILE)
    hosts = {node.host: node.argv for node in options.nodes}
    assert list(hosts) == ["me@gpu1", "gpu2", "10.0.0.3"]
    given = ("--max-restarts=3", "train.py", "--lr", "1")
    job = hosts["gpu2"][2]
    assert job.startswith("--rdzv-id=hosts-")
    both = ("--nnodes=3", "--rdzv-endpoint=gpu1:29400,gpu2:29400,10.0.0.3:29400", job)
    assert hosts["me@gpu1"] == (*both, "--nproc-per-node=8", "--node-rank=0", *given)
    assert hosts["gpu2"] == (*both, "--nproc-per-node=4", "--node-rank=1", *given)
    assert hosts["10.0.0.3"] == (*both, "--node-rank=2", *given)
    assert options.least == 3
    assert options.ssh == ("ssh",)


def test_what_the_job_says_stays() -> None:
    options = read(
        *("--hosts", "a,c", "--ssh", "ssh -p 2222", "--env", "A=1 2", "--env"),
        *("TOKEN", "--chdir", "/data", "--ft_run", "/opt/ft-run", "--", "--nnodes=1:2"),
        *("--rdzv-id=x", "--nproc-per-node=2", "--rdzv-endpoint=h:1", "-m", "package.train"),
    )
    job = (
        *("--nproc-per-node=2", "--nnodes=1:2", "--rdzv-endpoint=h:1", "--rdzv-id=x"),
        *("--module", "package.train"),
    )
    assert [(node.host, node.argv) for node in options.nodes] == [("a", job), ("c", job)]
    assert options.least == 1
    assert options.ssh == ("ssh", "-p", "2222")
    assert options.environ == {"A": "1 2", "TOKEN": "t"}
    assert (options.folder, options.program) == ("/data", "/opt/ft-run")


def test_the_token_is_in_the_environment_of_the_job_and_not_in_its_arguments() -> None:
    secret = secrets.token_hex(32)
    Path("job.token").write_text(f"{secret}\n")
    Path("job.token").chmod(0o600)
    by_file = read("--token-file", "job.token", "--hosts", "a,b", "train.py")
    by_variable = read_hosts(["--hosts", "a,b", "train.py"], {"FT_RUN_TOKEN": secret})
    by_its_file = read_hosts(["--hosts", "a,b", "train.py"], {"FT_RUN_TOKEN_FILE": "job.token"})
    for options in (by_file, by_variable, by_its_file):
        assert options.environ == {"FT_RUN_TOKEN": secret}
        assert not any("token" in word or secret in word for word in options.nodes[0].argv)


def test_dry_run_prints_the_commands_of_the_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ssh", "/no/ssh", "--ft-run", "/opt/ft-run", "--max-restarts", "1", "--dry-run"]
    with pytest.raises(SystemExit) as stop:
        read(*words, "--rdzv_id=7", "train.py", "--lr", "a b", hostfile="a slots=2\nb slots=2\n")
    assert stop.value.code == 0
    job = "--rdzv-id=7 --max-restarts=1 train.py --lr 'a b'"
    where = "/opt/ft-run --nnodes=2 --rdzv-endpoint=a:29400 --nproc-per-node=2"
    assert capsys.readouterr().out.splitlines() == [
        f"[a] {where} --node-rank=0 {job}",
        f"[b] {where} --node-rank=1 {job}",
    ]


@pytest.mark.parametrize(
    ("argv", "hostfile", "sentence"),
    [
        (["train.py"], None, "no hosts were given; expected --hostfile FILE or --hosts A,B,C."),
        (["--hosts", "a", "train.py"], "b", "--hostfile and --hosts exclude each other; expected"),
        (["--hosts", "a,,b", "train.py"], None,
         "invalid host name '' (host 2 of --hosts): expected HOST or USER@HOST"),
        (["--hosts", "a,b,a", "train.py"], None,
         "host 3 of --hosts has a, and so has host 1 of --hosts; expected each host once"),
        (["--hosts", "a"], None, "no script was given"),
        (["--hosts", "-oProxyCommand=x", "train.py"], None, "--hosts needs a value"),
        (["--hosts=-oProxyCommand=x", "train.py"], None,
         "invalid host name '-oProxyCommand=x' (host 1 of --hosts)"),
        (["train.py"], "# none\n", "hosts has no host; expected a line HOST slots=N"),
        (["train.py"], "a slots=8\nb max-slots=8\n",
         "unexpected 'max-slots=8' after b (line 2 of hosts); expected slots=N, once"),
        (["train.py"], "a slots=8 slots=9\n", "unexpected 'slots=9' after a (line 1 of hosts)"),
        (["train.py"],
         "a slots=0\n", "invalid value '0' for slots (line 1 of hosts): expected a whole"),
        (["train.py"], "a slots=8\n\nme@a\n", "line 3 of hosts has me@a, and so has line 1 of"),
        (["train.py"], "a;reboot\n", "invalid host name 'a;reboot' (line 1 of hosts): expected"),
        (["--nproc-per-node", "4", "train.py"], "a slots=4\nb slots=8\n",
         "line 2 of hosts has slots=8, but --nproc-per-node is 4; expected slots=4, or no"),
        (["--nnodes", "3", "train.py"], "a\nb\n",
         "--nnodes asks for 3 nodes, but there are 2 hosts; expected --nnodes 2, or more"),
        (["--standalone", "train.py"], "a\nb\n",
         "--standalone is for one node, but there are 2 hosts; expected one host, or no"),
        (["--node-rank", "1", "train.py"], "a\nb\n",
         "--node-rank 1 would be the rank of each of the 2 hosts; omit it: the order of the"),
        (["--env", "FT_RUN_TOKEN=x", "train.py"], "a\n",
         "--env FT_RUN_TOKEN=VALUE shows the token in this host's list of processes; expected"
         " --token-file FILE, or FT_RUN_TOKEN in the environment."),
        (["--token-file", "nosuch", "train.py"], "a\n", "cannot read the token file nosuch"),
        (["--env",
         "NOSUCH", "train.py"], "a\n", "invalid value 'NOSUCH' for --env: expected NAME="),
        (["--ssh", "'", "train.py"], "a\n", "for --ssh: expected a command, e.g. 'ssh"),
        (["--hostfile", "nosuch", "train.py"], None,
         "invalid value 'nosuch' for --hostfile (No such file or directory): expected"),
        (["--chdri", "/x", "train.py"], "a\n", "'--chdri'; did you mean --chdir?"),
        (["--max-restrt", "3", "train.py"], "a\n", "'--max-restrt'; did you mean --max-restarts?"),
        (["--max-restarts", "3", "--chdir", "/x", "train.py"], "a\n",
         "'--chdir' stands after an option of the job; expected it before all of them"),
        (["--no-such-flag", "train.py"], "a\n", "unknown flag '--no-such-flag'"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(argv: list[str], hostfile: str | None, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        read(*argv, hostfile=hostfile)
    assert sentence in error.value.sentence
