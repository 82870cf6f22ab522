"""``--metrics``: what Prometheus sees of jobs, and what it costs."""

import json
import re
import shutil
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ft_run.tests.harness.status_server import KubeflowServer

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

MONITORING = Path(__file__).resolve().parents[3] / "examples" / "monitoring"
SCRAPES = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus (Debian's package) is missing"
)

# Steps until the file of its attempt is there: then rank 0 of attempt 0 fails, and attempt 1 begins
# with step 2.
WORKER = """
import os, sys, time
from ft_run.training import progress
folder, attempt = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
step = 0 if attempt == "0" else 1
while not os.path.exists(f"{folder}/end.{attempt}"):
    time.sleep(0.05)
    step += 1
    progress(step)
if attempt == "0":
    time.sleep(0 if os.environ["RANK"] == "0" else 1000)
    sys.exit(3)
"""


def metrics_of(node: "Command") -> str:
    """Return the URL at which a node serves its metrics."""
    (match,) = node.expect(r" metrics: (http\S+)$")
    return match[1]


def scraped(url: str) -> dict[str, float]:
    """Return the samples of an endpoint by name and labels."""
    with urllib.request.urlopen(url, timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def until(ft: "Launcher", url: str, name: str, least: float) -> dict[str, float]:
    """Scrape an endpoint until one of its samples has a value."""
    found: dict[str, float] = {}

    def is_there() -> bool:
        found.update(scraped(url))
        return found.get(name, -1.0) >= least

    ft.wait_until(is_there, f"{name} is {least}")
    return found


def test_a_job_that_is_restarted(ft: "Launcher") -> None:
    script = ft.script(WORKER)
    job = ft.start(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--watch-workers"),
        *("--rdzv-id", "run1", "--metrics", 0, script, ft.folder),
    )
    url = metrics_of(job)
    before = until(ft, url, 'ftrun_rank_steps_total{rank="1"}', 5)
    assert before['ftrun_phase_seconds_total{phase="training"}'] > 0
    assert before['ftrun_nodes{state="training"}'] == 1
    assert 0 <= time.time() - before["ftrun_last_step_timestamp_seconds"] < 60
    assert before['ftrun_rank_resident_memory_bytes{rank="0"}'] > 1e6
    (ft.folder / "end.0").touch()
    after = until(ft, url, "ftrun_round", 1)
    assert after['ftrun_restarts_total{cause="worker"}'] == 1
    after = until(ft, url, 'ftrun_lost_seconds_total{cause="worker"}', 1e-6)
    assert after['ftrun_rank_steps_total{rank="1"}'] >= before['ftrun_rank_steps_total{rank="1"}']
    labels = [name for name in after if name.startswith("ftrun_job_info")]
    assert re.search(r'attempt="0",job_id="run1",node="[^"]+/0",version="[^"]+"', labels[0])
    (ft.folder / "end.1").touch()
    assert job.wait() == 0
    with pytest.raises(urllib.error.URLError):
        scraped(url)


def test_a_port_in_use_is_one_line(ft: "Launcher") -> None:
    holder = ft.start("master", "--bind", "127.0.0.1:0", "--metrics", 0)
    port = metrics_of(holder).rpartition(":")[2].partition("/")[0]
    job = ft.run("--standalone", "--metrics", port, "--no-python", "true")
    assert job.process.returncode == 0
    (line,) = (line for line in job.stderr.splitlines() if "metrics" in line)
    assert line.endswith(
        f"no metrics at 127.0.0.1:{port}: port {port} of this host is in use; the job runs without"
        " them"
    )
    holder.send(signal.SIGTERM)
    holder.wait()


def switches(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        match = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.MULTILINE)
        found += int(match[1]) if match else 0
    return found


@pytest.mark.slow
def test_an_idle_agent_sleeps_between_scrapes(ft: "Launcher") -> None:
    job = ft.start(*("--standalone", "--metrics", 0, "--no-python", "sleep", 1000))
    url = metrics_of(job)
    until(ft, url, "ftrun_round", 0)
    time.sleep(2)  # the start is over
    before = switches(job.pid)
    time.sleep(10)
    assert switches(job.pid) - before <= 2
    job.send(signal.SIGTERM)
    job.wait()


# --- a real Prometheus -------------------------------------------------------------------------


class Prometheus:
    """A server that scrapes endpoints every second, with the rules of ``examples``."""

    def __init__(self, ft: "Launcher", port: int, urls: list[str]) -> None:
        config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(path) for path in MONITORING.glob("*_rules.yml")]
        targets = [urllib.parse.urlsplit(url).netloc for url in urls]
        config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
        path = ft.folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        self._address = f"127.0.0.1:{port}"
        self.command = ft.start(
            f"--config.file={path}",
            f"--storage.tsdb.path={ft.folder / 'data'}",
            f"--web.listen-address={self._address}",
            program=("prometheus",),
        )

    def ask(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of an expression; empty while it does not answer."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{query}") as reply:
                found: Any = json.load(reply)
        except urllib.error.URLError:
            return []
        return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]

    def value(self, expression: str) -> float:
        """Return the only value of an expression; -1 while there is none."""
        found = self.ask(expression)
        assert len(found) < 2, found
        return found[0][1] if found else -1.0

    def close(self) -> None:
        self.command.send(signal.SIGTERM)
        assert self.command.wait() == 0


@SCRAPES
@pytest.mark.slow
def test_prometheus_scrapes_a_job_of_two_nodes(
    ft: "Launcher", free_port: int, tmp_path: Path
) -> None:
    kubeflow = KubeflowServer(tmp_path)
    script = ft.script(WORKER)
    endpoint = f"127.0.0.1:{free_port}"
    options = (
        *("--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "run1", "--max-restarts", 1),
        *("--watch-workers", "--metrics", 0, script, ft.folder),
    )
    first = ft.start(*options, env=kubeflow.environ())
    first.expect("hosted here")
    nodes = [first, ft.start(*options, env=kubeflow.environ())]
    prometheus = Prometheus(ft, free_port + 1, list(map(metrics_of, nodes)))

    def await_value(expression: str, least: float) -> None:
        ft.wait_until(lambda: prometheus.value(expression) >= least, f"{expression} is {least}")

    await_value("count(up == 1)", 2)
    await_value('job_id:ftrun_nodes:max{job_id="run1",state="training"}', 2)
    await_value('job_id:ftrun_step_seconds:p50_rate5m{job_id="run1"}', 0.03)
    await_value('job_id:ftrun_goodput:ratio_rate5m{job_id="run1"}', 0.01)
    assert prometheus.value("time() - job_id:ftrun_last_step_timestamp_seconds:max") < 60
    kubeflow.await_requests(lambda: len(kubeflow.received) >= 2)
    (ft.folder / "end.0").touch()
    await_value('max(ftrun_restarts_total{cause="worker"})', 1)
    await_value('max(ftrun_lost_seconds_total{cause="worker"})', 1e-6)
    # Nobody is called about one restart.
    assert prometheus.ask('ALERTS{alertstate="firing"}') == []

    (ft.folder / "end.1").touch()
    assert [node.wait() for node in nodes] == [0, 0]
    prometheus.close()
    kubeflow.close()
    assert kubeflow.refused == []
    times = [at for at, _ in kubeflow.received]
    assert all(later - sooner > 4 for sooner, later in pairwise(times[:-1]))
    *before, last = [status for _, status in kubeflow.received]
    assert last["progressPercentage"] == 100
    assert not any("progressPercentage" in status for status in before)
