"""Host lists: expanded as ``scontrol show hostnames`` does, or refused."""

import shutil
import subprocess

import pytest
from ft_run.launcher.environments.hostlist import MOST_HOSTS, BadHostListError, expand

LISTS = {
    "node0": ["node0"],
    "a,b,c": ["a", "b", "c"],
    "gpu[1-3]": ["gpu1", "gpu2", "gpu3"],
    "gpu[001-003,020]": ["gpu001", "gpu002", "gpu003", "gpu020"],
    "gpu[09-11],login1": ["gpu09", "gpu10", "gpu11", "login1"],
    "gpu[8-10]": ["gpu8", "gpu9", "gpu10"],
    "rack[1-2]n[01-02]": ["rack1n01", "rack1n02", "rack2n01", "rack2n02"],
    "gpu[1-2]-ib": ["gpu1-ib", "gpu2-ib"],
    "b2,a1,b1": ["b2", "a1", "b1"],
    "n[3,1]": ["n3", "n1"],
}


@pytest.mark.parametrize("text", LISTS)
def test_a_list_is_expanded(text: str) -> None:
    assert list(expand(text)) == LISTS[text]


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Debian's slurm-wlm is not installed")
@pytest.mark.parametrize("text", LISTS)
def test_slurm_expands_it_alike(text: str) -> None:
    command = ["scontrol", "show", "hostnames", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:  # some versions want a configuration for it
        assert done.stdout.split() == LISTS[text]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gpu[1-3", "unmatched brackets"),
        ("gpu1-3]", "unmatched brackets"),
        ("gpu[1-[2]]", "unmatched brackets"),
        ("a,,b", "empty name"),
        ("", "empty name"),
        ("gpu[]", "neither a number nor a range"),
        ("gpu[1-]", "neither a number nor a range"),
        ("gpu[a-c]", "neither a number nor a range"),
        ("gpu[3-1]", "runs backwards"),
        ("a b", "is not a host name"),
        ("$(reboot)", "is not a host name"),
        (f"gpu[1-{MOST_HOSTS + 1}]", "more than"),
        ("n[0-999999999]n[0-999999999]", "more than"),
    ],
)
def test_nonsense_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadHostListError, match=why):
        expand(text)
