"""The names of metrics, and what ``promtool`` says of them."""

import re
import shutil
import subprocess

import pytest
from ft_run.launcher.metrics.catalogue import METRICS, Samples
from ft_run.launcher.metrics.exposition import written


def everything() -> Samples:
    """Return a sample of each metric."""
    samples = Samples()
    for metric in METRICS:
        samples.put(metric, 1, *(f"a {label}" for label in metric.labels))
    return samples


def test_names_follow_the_conventions() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"ftrun(_[a-z]+)+", metric.name)
        assert metric.help.endswith(".")
        assert all(re.fullmatch("[a-z_]+", label) for label in metric.labels)
        # Target labels of Prometheus, which would hide these.
        assert not {"job", "instance"} & set(metric.labels)


def test_all_are_written_in_order() -> None:
    text = written(everything(), "")[0].decode()
    assert re.findall(r"# TYPE (\S+)", text) == [metric.name for metric in METRICS]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (prometheus) is missing")
def test_promtool_has_nothing_to_say() -> None:
    text = written(everything(), "")[0]
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
