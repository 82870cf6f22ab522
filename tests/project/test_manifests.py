"""The manifests of ``examples/kubernetes``: fields, names, statuses, the command of each pod."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from ft_run import defaults, exit_codes
from ft_run.launcher.cli.master_flags import StatusOptions
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.options import LaunchOptions
from ft_run.tests.harness.kubernetes.manifests import (
    Document,
    Pod,
    failure_policy,
    job_of,
    load,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
RECIPES = {
    "indexed-job": ["indexed-job.yaml"],
    "jobset": ["jobset.yaml"],
    "trainjob": ["trainjob.yaml", "clustertrainingruntime.yaml"],
    "leaderworkerset": ["leaderworkerset.yaml"],
}
CUSTOM: Document = json.loads((ROOT / "tests/project/custom_kinds.json").read_text())["kinds"]
"""Fields of the kinds that are not Kubernetes' own, from their definitions. ``x-core`` stands where
one has a part that is."""


def wrong(document: Document) -> list[str]:
    """Return what is wrong with a document: unknown fields, and values of other types."""
    schema = CUSTOM.get(document["kind"])
    if schema is None:
        return _wrong_in_core(document)
    found = [
        f"{error.json_path}: {error.message}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]
    for kind, part in _core_parts(schema, document):
        version, name = kind.split()
        found += _wrong_in_core({"apiVersion": version, "kind": name, **_whole(name, part)})
    return found


def _wrong_in_core(document: Document) -> list[str]:
    try:
        for version in ("1.31", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{error.version}: {list(error.path)}: {error.message}"]
    return []


def _whole(kind: str, part: Document) -> Document:
    return {"template": part} if kind == "PodTemplate" else part


def _core_parts(schema: Document, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value that are Kubernetes' own, each with its kind."""
    if schema.get("x-core", "any") != "any":
        yield schema["x-core"], value
    for name, part in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            yield from _core_parts(part, value[name])
    if isinstance(value, list):
        for entry in value:
            yield from _core_parts(schema.get("items", {}), entry)


@pytest.mark.parametrize("name", [path.name for path in FOLDER.glob("*.yaml")])
def test_every_field_is_known(name: str) -> None:
    for document in load(FOLDER / name):
        assert wrong(document) == []


@pytest.mark.parametrize(
    ("name", "right", "mistake"),
    [
        ("indexed-job.yaml", "podFailurePolicy", "podFailurePolice"),
        ("indexed-job.yaml", "defaultMode: 0400", 'defaultMode: "0400"'),
        ("jobset.yaml", "action: FailJobSet", "action: FailJobset"),
        ("jobset.yaml", "publishNotReadyAddresses", "publishNotReadyAddress"),
        ("jobset.yaml", "livenessProbe", "livelinessProbe"),
        ("clustertrainingruntime.yaml", "numNodes: 3", "numNodes: three"),
        ("clustertrainingruntime.yaml", "failureThreshold", "failureTreshold"),
        ("trainjob.yaml", "runtimeRef", "runtimeReference"),
        ("leaderworkerset.yaml", "restartPolicy: None", "restartPolicy: Never"),
        ("leaderworkerset.yaml", "mountPath", "mountpath"),
    ],
)
def test_a_mistake_is_found(name: str, right: str, mistake: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text()
    assert right in text
    (tmp_path / name).write_text(text.replace(right, mistake))
    assert [error for document in load(tmp_path / name) for error in wrong(document)]


def pods(recipe: str) -> list[Pod]:
    return job_of(load(*(FOLDER / name for name in RECIPES[recipe]))).pods


def options_of(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> LaunchOptions:
    """Return what ft-run is asked to do in a pod."""
    name = f"{pod.name}.{pod.subdomain}.default.svc.cluster.local"
    monkeypatch.setattr("socket.getfqdn", lambda: name)
    words = pod.command("10.0.0.1")
    if words[0] == "sh":  # the shell's "$@", as that of leaderworkerset.yaml
        words = ["ft-run", *words[4:], "/examples/train_digits.py", "--checkpoint-dir=/checkpoints"]
    assert words[0] == "ft-run"
    words = [word.replace("/examples/", f"{ROOT}/examples/") for word in words]
    options = parse(words[1:], pod.environment("10.0.0.1"))
    assert isinstance(options, LaunchOptions)
    return options


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("attempt", [0, 1])
def test_auto_config_knows_each_pod(
    recipe: str, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = load(*(FOLDER / name for name in RECIPES[recipe]))
    found = job_of(documents, attempt).pods
    assert len(found) == 3
    again = "-r1" if attempt and recipe in ("jobset", "trainjob") else ""
    for rank, pod in enumerate(found):
        rendezvous = options_of(pod, monkeypatch).rendezvous
        namespace = ".default" if recipe == "leaderworkerset" else ""
        assert [endpoint.host for endpoint in rendezvous.endpoints] == [
            f"{other.name}.{other.subdomain}{namespace}" for other in found
        ]
        assert rendezvous.job_id == {"leaderworkerset": "digits-0"}.get(recipe, f"digits{again}")
        assert (rendezvous.min_nodes, rendezvous.max_nodes) == (2, 3)
        assert rendezvous.node_rank == rank


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_is_run_as_it_should_be_run(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(pods(recipe)[0], monkeypatch)
    assert options.rendezvous.max_restarts > 0
    assert options.preload == ("torch", "torch._dynamo")
    assert options.hang is not None
    assert options.checks is not None
    assert options.rendezvous.trust is not None


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_kubernetes_does_fits_ft_run(recipe: str) -> None:
    job = job_of(load(*(FOLDER / name for name in RECIPES[recipe])))
    pod = job.pods[0]
    assert pod.spec["terminationGracePeriodSeconds"] > defaults.SHUTDOWN_TIMEOUT_S
    for kind in ("startupProbe", "livenessProbe"):
        probe = pod.container[kind]
        command = probe["exec"]["command"]
        if command[:2] == ["sh", "-c"]:  # of a LeaderWorkerSet: after training, nothing listens
            command = shlex.split(command[2].removeprefix("[ -e /checkpoints/digits.pt ] || "))
        (word, *words) = command
        asked = parse(words, pod.environment("10.0.0.1"))
        assert word == "ft-run"
        assert isinstance(asked, StatusOptions)
        assert asked.timeout_s < probe["timeoutSeconds"]
    if recipe == "leaderworkerset":  # pods of a StatefulSet are always started again
        assert "restartPolicy" not in load(FOLDER / "leaderworkerset.yaml")[0]["spec"]
        return
    assert pod.spec["restartPolicy"] == "Never"
    codes = exit_codes
    ending = (codes.WORKERS_FAILED, codes.USAGE, codes.POLICY_ENDED_JOB, codes.REFUSED)
    for status in range(1, 256):
        expected = "FailJob" if status in ending else "Count"
        expected = "Ignore" if status == codes.NODE_EXCLUDED else expected
        assert job.answer(status, disrupted=False) == expected
        assert job.answer(status, disrupted=True) == "Ignore"
    # A failed index would end the job after its success: it is examined before successPolicy.
    assert "FailIndex" not in {rule["action"] for rule in job.spec["podFailurePolicy"]["rules"]}
    assert job.spec["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    assert job.spec["backoffLimitPerIndex"] > 0
    assert "backoffLimit" not in job.spec


@pytest.mark.parametrize("recipe", RECIPES)
def test_lost_machine_is_given_up_soon_and_a_drain_takes_one_pod(recipe: str) -> None:
    documents = load(*(FOLDER / name for name in RECIPES[recipe]))
    (budget,) = (one for one in documents if one["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 2  # Jobs have no scale, which maxUnavailable needs
    selected = budget["spec"]["selector"]["matchLabels"].items()
    for pod in job_of(documents).pods:
        assert selected <= pod.labels.items()
        given_up = {one["key"]: one["tolerationSeconds"] for one in pod.spec["tolerations"]}
        assert given_up == {f"node.kubernetes.io/{why}": 30 for why in ("unreachable", "not-ready")}


@pytest.mark.parametrize("recipe", ["jobset", "trainjob"])
def test_rules_of_a_jobset_have_names_that_its_webhook_accepts(recipe: str) -> None:
    policy = failure_policy(load(*(FOLDER / name for name in RECIPES[recipe])))
    assert policy is not None
    for rule in policy["rules"]:
        assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])


def test_the_commands_of_the_comments_are_for_what_is_there() -> None:
    for path in FOLDER.glob("*.yaml"):
        for line in path.read_text().splitlines():
            if line.startswith("#     kubectl apply"):
                assert shlex.split(line[1:])[-1] == path.name
            if line.startswith("#     kubectl create secret"):
                assert "digits-token" in line
