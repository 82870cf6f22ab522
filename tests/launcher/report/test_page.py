"""The page as a file: nothing in events becomes a part of it other than text."""

import base64
import hashlib
import json
import re
from typing import Any

import pytest
from ft_run.events.node import JobEnded
from ft_run.events.workers import RestartBegun, RoundStarted, WorkerFailed
from ft_run.launcher.report.job_report import JobReport, make_report
from ft_run.launcher.report.lanes import GONE
from ft_run.launcher.report.page import json_of, page_of
from ft_run.launcher.report.reading import Reading
from ft_run.launcher.report.text import text_of
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.messages import Outcome, Verdict
from ft_run.tests.harness.job_events import Job

EVIL = "</script><script>alert(1)</script><!--<script>{{style}}\u2028\ud800 &amp;"
FAILED = Failure(FailureKind.WORKER, 1, 0, 0, EVIL, 7, 1, 5, message=EVIL, stderr_tail=EVIL)


def report_of(job: Job) -> JobReport:
    return make_report(job.records, lambda nodes: (r for r in job.records if r["node"] in nodes))


@pytest.fixture
def job() -> Job:
    job = Job()
    job.starts("a/0", EVIL)
    job.round(0, "a/0", EVIL)
    job.minutes("a/0", 3, rate=2.0)
    job.happens("a/0", WorkerFailed(0, 0, FAILED), RestartBegun(1, 0, FAILED, EVIL, False, 1, 3))
    job.round(1, "a/0", EVIL)
    verdict = Verdict(Outcome.WORKERS_FAILED, 1, EVIL, 1, 2, FAILED, (FAILED,), 1)
    job.happens("a/0", 60.0, JobEnded(verdict))
    return job


def parts(page: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page, re.DOTALL)


def data_of(page: str) -> Any:
    return json.loads(parts(page, "script")[0])


def test_the_text_of_events_is_data_only(job: Job) -> None:
    page = page_of(report_of(job), Reading())
    assert page.encode()  # a lone surrogate would be an error
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page
    assert "alert(1)</" not in page
    data = data_of(page)
    assert data["failures"][0]["lines"][0].startswith("</script><script>alert(1)</script>")
    assert data["nodes"][0]["node"].startswith("</script>")


def test_only_its_own_script_and_style_may_run(job: Job) -> None:
    page = page_of(report_of(job), Reading())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    hashes = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, text in (("script", parts(page, "script")[1]), ("style", parts(page, "style")[0]))
    }
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes['style']}'; "
        f"script-src 'sha256-{hashes['script']}'"
    )
    own = page.replace(parts(page, "script")[0], "")
    assert not re.findall(r"https?://|@import|url\(|innerHTML|insertAdjacent|\bsrc=", own)


def test_lanes_are_coded_in_whole_numbers(job: Job) -> None:
    report = report_of(job)
    data = data_of(page_of(report, Reading()))
    for lane, node in zip(report.lanes, data["nodes"], strict=True):
        at, found = 0, []
        for number in node["lane"]:
            at += number // 64
            found.append((at / 100, number % 64))
        began_s = data["began_s"]
        assert [phase for _, phase in found] == lane.phases
        times = [at_s - began_s for at_s in lane.starts_s]
        assert [at_s for at_s, _ in found] == pytest.approx(times, abs=0.01)
        assert found[-1][1] == GONE
    assert data["phases"][report.lanes[-1].phases[-2]] == "training"


def test_the_json_is_the_page_without_what_each_node_did_when(job: Job) -> None:
    report, reading = report_of(job), Reading(events=9, torn=2)
    found, data = json.loads(json_of(report, reading)), data_of(page_of(report, reading))
    assert found["note"] == "2 incomplete or invalid line(s) skipped"
    assert found["time"] == data["time"]
    assert found["restarts"][0]["down_s"] == data["restarts"][0]["down_s"]
    assert data.keys() - found.keys() == {"began_s", "phases", "job_lane", "rates"}


def test_an_event_with_fields_of_other_types_is_skipped(job: Job) -> None:
    failed = next(r for r in job.records if r["name"] == "worker.failed")
    bad: list[Any] = [None, [], {"kind": 5}, {"kind": "worker", "rank": "one"}, "text"]
    for failure in bad:
        job.records.append({**failed, "failure": failure})
    job.records.append({**failed, "name": "round.started", "round": "zero"})
    job.records.append({**failed, "name": "job.ended", "verdict": 7})
    report = report_of(job)
    assert report.damaged >= 6
    assert page_of(report, Reading())
    assert text_of(report)


def test_a_node_without_a_round() -> None:
    job = Job()
    job.starts("a/0")
    report = report_of(job)
    assert page_of(report, Reading())
    assert "Training    no, waiting for nodes; step not known" in text_of(report)
    assert report.attempts == []


def test_workers_that_are_not_watched() -> None:
    job = Job()
    job.starts("a/0")
    job.happens("a/0", RoundStarted(0, 0, 1, 2, 0, "r"), 5.0)
    report = report_of(job)
    assert report.account.goodput is None or report.account.goodput == 0.0
    assert page_of(report, Reading())
