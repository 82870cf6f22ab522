"""Every kind of node in each place that is no scheduler of a cluster: what ``--dry-run`` prints.

The variables are those that a first, a middle and a last node, a job of one node, a job without
GPUs, and a second attempt have, as the places' documentation gives them. ``test_auto_config`` has
the recorded ones of Slurm and MPI, and what is refused.
"""

import socket
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.parse import parse


def skypilot(rank: int, *hosts: str, gpus: str = "8") -> dict[str, str]:
    return {
        "SKYPILOT_TASK_ID": "sky-2026-11-22-10-00-00-000000_train_1",
        "SKYPILOT_CLUSTER_INFO": '{"cluster_name": "train", "cloud": "AWS"}',
        "SKYPILOT_NODE_IPS": "\n".join(hosts),
        "SKYPILOT_NUM_NODES": str(len(hosts)),
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
    }


def leader_worker_set(index: int, size: int, group: int = 0) -> dict[str, str]:
    return {
        "LWS_LEADER_ADDRESS": f"digits-{group}.digits.default",
        "LWS_GROUP_SIZE": str(size),
        "LWS_WORKER_INDEX": str(index),
    }


def job_set(index: int, attempt: str = "0", **more: str) -> dict[str, str]:
    return {
        "JOB_COMPLETION_INDEX": str(index),
        "JOBSET_NAME": "digits",
        "JOBSET_REPLICATEDJOB_NAME": "node",
        "JOBSET_REPLICATEDJOB_REPLICAS": "1",
        "JOBSET_RESTART_ATTEMPT": attempt,
        **more,
    }


def train_job(rank: int, nodes: str = "2", workers: str = "auto") -> dict[str, str]:
    """A node of Kubeflow's TrainJob, whose pods are those of a JobSet."""
    return {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": workers,
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "digits-node-0-0.digits",
        "PET_MASTER_PORT": "29400",
        "JOB_COMPLETION_INDEX": str(rank),
    }


def sagemaker(own: int, count: int, gpus: str = "8", **more: str) -> dict[str, str]:
    hosts = ",".join(f'"algo-{number}"' for number in range(1, count + 1))
    return {
        "SM_HOSTS": f"[{hosts}]",
        "SM_CURRENT_HOST": f"algo-{own}",
        "SM_NUM_GPUS": gpus,
        "SM_NUM_CPUS": "96",
        "SM_NETWORK_INTERFACE_NAME": "eth0",
        "TRAINING_JOB_NAME": "digits-2026-11-22",
        **more,
    }


def aws_batch(index: int, count: int, main: int = 0, attempt: str = "1") -> dict[str, str]:
    variables = {
        "AWS_BATCH_JOB_ID": f"0c1f1d3e-2a#{index}",
        "AWS_BATCH_JOB_ATTEMPT": attempt,
        "AWS_BATCH_JOB_NUM_NODES": str(count),
        "AWS_BATCH_JOB_NODE_INDEX": str(index),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main),
    }
    if index != main:  # only the others are told it
        variables["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "10.0.0.4"
    return variables


SKY_ID = "--rdzv-id=sky-2026-11-22-10-00-00-000000_train_1"
POD = "digits-node-0-0.digits:29400"
ADDRESSED = "--master-addr=digits-node-0-0.digits --master-port=29400"
BATCH_ID = "--rdzv-id=0c1f1d3e-2a"

COMMANDS = [
    # what the environment is, flags, what --dry-run prints between ft-run and the script
    (skypilot(0, "10.0.0.4", "10.0.0.7"), "",
     f"--nproc-per-node=8 --nnodes=2 --rdzv-endpoint=10.0.0.4:29400 {SKY_ID} --node-rank=0"),
    (skypilot(3, "10.0.0.4", "10.0.0.7", "fd00::3", "fd00::4"), "",
     "--nproc-per-node=8 --nnodes=4 '--rdzv-endpoint=10.0.0.4:29400,10.0.0.7:29400,[fd00::3]:29400'"
     f" {SKY_ID} --node-rank=3"),
    (skypilot(0, "10.0.0.4"), "", f"--nproc-per-node=8 --nnodes=1 {SKY_ID}"),
    (skypilot(1, "10.0.0.4", "10.0.0.7"), "--nproc-per-node=4 --nnodes=1",
     f"--nproc-per-node=4 --nnodes=1 --rdzv-endpoint=10.0.0.4:29400 {SKY_ID}"),  # a spare

    (leader_worker_set(0, 2), "",
     "--nproc-per-node=auto --nnodes=2 --rdzv-endpoint=digits-0.digits.default:29400"
     " --rdzv-id=digits-0 --node-rank=0"),
    (leader_worker_set(4, 5, group=3), "",
     "--nproc-per-node=auto --nnodes=5 --rdzv-endpoint=digits-3.digits.default:29400,"
     "digits-3-1.digits.default:29400,digits-3-2.digits.default:29400 --rdzv-id=digits-3"
     " --node-rank=4"),
    (leader_worker_set(2, 3) | {"LWS_GROUP_SIZE": ""}, "--nnodes=3",
     "--nproc-per-node=auto --nnodes=3 --rdzv-endpoint=digits-0.digits.default:29400"
     " --rdzv-id=digits-0 --node-rank=2"),
    (leader_worker_set(0, 1), "", "--nproc-per-node=auto --nnodes=1 --rdzv-id=digits-0"),

    (job_set(0), "--nnodes=2",
     f"--nproc-per-node=auto --nnodes=2 --rdzv-endpoint={POD} --rdzv-id=digits --node-rank=0"),
    (job_set(1, attempt="2"), "--nnodes=2",
     f"--nproc-per-node=auto --nnodes=2 --rdzv-endpoint={POD} --rdzv-id=digits-r2 --node-rank=1"),
    (job_set(1) | {"PET_NNODES": "2"}, "",
     f"--nproc-per-node=auto --nnodes=2 --rdzv-endpoint={POD} --rdzv-id=digits --node-rank=1"),
    (job_set(1), "--nnodes=1:4",
     f"--nproc-per-node=auto --nnodes=1:4 --rdzv-endpoint={POD},{POD.replace('-0.', '-1.')},"
     f"{POD.replace('-0.', '-2.')} --rdzv-id=digits --node-rank=1"),
    # Spares: pods beyond --nnodes have no rank.
    (job_set(3), "--nnodes=3",
     f"--nproc-per-node=auto --nnodes=3 --rdzv-endpoint={POD},{POD.replace('-0.', '-1.')},"
     f"{POD.replace('-0.', '-2.')} --rdzv-id=digits"),
    (job_set(3), "--nnodes=2:3",
     f"--nproc-per-node=auto --nnodes=2:3 --rdzv-endpoint={POD},{POD.replace('-0.', '-1.')},"
     f"{POD.replace('-0.', '-2.')} --rdzv-id=digits"),
    ({"JOB_COMPLETION_INDEX": "2"}, "--nnodes=2",
     f"--nproc-per-node=auto --nnodes=2 --rdzv-endpoint={POD} --rdzv-id=digits-node-0"),
    (leader_worker_set(3, 4), "--nnodes=3",
     "--nproc-per-node=auto --nnodes=3 --rdzv-endpoint=digits-0.digits.default:29400,"
     "digits-0-1.digits.default:29400,digits-0-2.digits.default:29400 --rdzv-id=digits-0"),
    # Each of the two Jobs may have fewer pods than three.
    (job_set(1, JOBSET_REPLICATEDJOB_REPLICAS="2"), "--nnodes=4",
     f"--nproc-per-node=auto --nnodes=4 --rdzv-endpoint={POD} --rdzv-id=digits"),

    (train_job(0), "",
     f"--nproc-per-node=auto --nnodes=2 --rdzv-id=digits-node-0 --node-rank=0 {ADDRESSED}"),
    (train_job(1, nodes="1:2", workers="gpu"), "",
     f"--nproc-per-node=gpu --nnodes=1:2 --rdzv-id=digits-node-0 --node-rank=1 {ADDRESSED}"),

    (sagemaker(1, 2), "",
     "--nproc-per-node=8 --nnodes=2 --rdzv-endpoint=algo-1:29400 --rdzv-id=digits-2026-11-22"
     " --node-rank=0"),
    (sagemaker(2, 2, gpus="0"), "",
     "--nproc-per-node=auto --nnodes=2 --rdzv-endpoint=algo-1:29400 --rdzv-id=digits-2026-11-22"
     " --node-rank=1"),
    (sagemaker(2, 3), "",
     "--nproc-per-node=8 --nnodes=3 --rdzv-endpoint=algo-1:29400,algo-2:29400,algo-3:29400"
     " --rdzv-id=digits-2026-11-22 --node-rank=1"),

    (aws_batch(1, 2), "",
     f"--nproc-per-node=auto --nnodes=2 --rdzv-endpoint=10.0.0.4:29400 {BATCH_ID} --node-rank=1"),
    (aws_batch(0, 2), "",
     f"--nproc-per-node=auto --nnodes=2 --rdzv-endpoint=own.name:29400 {BATCH_ID} --node-rank=0"),
    (aws_batch(0, 3, main=2, attempt="2"), "--nproc-per-node=8",
     f"--nproc-per-node=8 --nnodes=3 --rdzv-endpoint=10.0.0.4:29400 {BATCH_ID}-r1 --node-rank=0"),
    (aws_batch(0, 1), "", f"--nproc-per-node=auto --nnodes=1 {BATCH_ID}"),
]  # fmt: skip

REFUSALS = [
    # what the environment is, words of the sentence
    (skypilot(2, "10.0.0.4", "10.0.0.7"),
     "SKYPILOT_NODE_RANK is 2, but SKYPILOT_NUM_NODES is 2, and the last rank is 1"),
    (skypilot(0,
     "10.0.0.4", gpus="all"), "invalid value 'all' for SKYPILOT_NUM_GPUS_PER_NODE: expected a"),
    (leader_worker_set(0, 0), "invalid value '0' for LWS_GROUP_SIZE: expected a whole number >= 1"),
    (leader_worker_set(0, 2) | {"LWS_LEADER_ADDRESS": "a b"},
     "invalid value 'a b:29400' for LWS_LEADER_ADDRESS"),
    (skypilot(0, "10.0.0.4") | {"SKYPILOT_NUM_NODES": "3"},
     "SKYPILOT_NUM_NODES is 3, but SKYPILOT_NODE_IPS has 1 host"),
    (job_set(0), "the pods of a JobSet have no variable with their number; expected --nnodes N"),
    (job_set(1, PET_NNODES="2", JOBSET_REPLICATEDJOB_NAME=""),
     "--auto-config found no endpoint in JobSet; expected"),
    (job_set(-1, PET_NNODES="2"),
     "invalid value '-1' for JOB_COMPLETION_INDEX: expected a whole number"),
    (train_job(2),
     "invalid value '2' for PET_NODE_RANK (the job has 2 nodes): expected a rank from 0 to 1"),
    (train_job(0, nodes="two"), "invalid value 'two' for PET_NNODES"),
    (sagemaker(1, 0),
     'invalid value \'[]\' for SM_HOSTS: expected a JSON list of hosts, e.g. ["algo-1"'),
    (sagemaker(1, 2) | {"SM_HOSTS": "algo-1"}, "invalid value 'algo-1' for SM_HOSTS"),
    (sagemaker(1, 2) | {"SM_HOSTS": "[5]"}, "invalid value '[5]' for SM_HOSTS"),
    (sagemaker(1, 2) | {"SM_HOSTS": "[" * 9999}, "for SM_HOSTS: expected a JSON list"),
    (sagemaker(3, 2), "SM_CURRENT_HOST is algo-3, but SM_HOSTS is"),
    (aws_batch(0, 2, main=1) | {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": ""},
     "--auto-config found no endpoint in AWS Batch"),
    (leader_worker_set(4, 4), "LWS_WORKER_INDEX is 4, but LWS_GROUP_SIZE is 4"),
    (aws_batch(2, 2), "AWS_BATCH_JOB_NODE_INDEX is 2, but AWS_BATCH_JOB_NUM_NODES is 2"),
    (aws_batch(0, 2, attempt="0"),
     "invalid value '0' for AWS_BATCH_JOB_ATTEMPT: expected a whole number"),
]  # fmt: skip


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return "train.py"


@pytest.mark.parametrize(("environ", "flags", "command"), COMMANDS)
def test_what_dry_run_prints(
    environ: dict[str, str],
    flags: str,
    command: str,
    script: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = environ.get("JOB_COMPLETION_INDEX")
    name = "own.name" if index is None else f"digits-node-0-{index}.digits"
    monkeypatch.setattr(socket, "getfqdn", lambda: name)
    with pytest.raises(SystemExit) as ending:
        parse(["--auto-config", "--dry-run", *flags.split(), script], environ)
    assert ending.value.code == 0
    assert capfd.readouterr().out == f"ft-run {command} train.py\n"


@pytest.mark.parametrize(("environ", "sentence"), REFUSALS)
def test_what_is_refused(environ: dict[str, str], sentence: str, script: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(["--auto-config", script], environ)
    assert sentence in error.value.sentence
