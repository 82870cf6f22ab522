"""``--auto-tune advise``: what jobs with a loader of their own are advised at their end."""

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.launcher.reporting.status_answer import status_dict
from ft_run.launcher.reporting.status_lines import status_lines
from ft_run.rendezvous.protocol.status import StatusReply

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

# Trains for 12 s; each batch takes some time, and each with a number of this remainder more.
SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader
every, step_s, load_s, processes = int(sys.argv[1]), *map(float, sys.argv[2:])
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        if index % every == every - 1:
            time.sleep(0.8)
        time.sleep(load_s)
        return index
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
end = 0.0
for _ in DataLoader(Data(), num_workers=int(processes), collate_fn=list):  # no tensors, no sockets
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    time.sleep(step_s)
    end = end or time.monotonic() + 12
    if time.monotonic() > end:
        break
"""
BURSTS = r"data wait \d+% in bursts of 0\.\d+ s: prefetch_factor 2 -> \d+"


def start(ft: "Launcher", name: str, *arguments: object) -> "Command":
    options = ("--standalone", "--auto-tune", "advise", "--events", f"{name}.jsonl")
    return ft.start(*options, ft.script(SCRIPT, "train.py"), *arguments)


def report(ft: "Launcher", name: str) -> dict[str, Any]:
    found = ft.run("report", "--json", f"{name}.jsonl")
    assert found.process.returncode == 0
    data: dict[str, Any] = json.loads(found.stdout)
    return data


def test_bursts_of_a_loader_and_a_job_that_is_well(ft: "Launcher") -> None:
    bursty, well = start(ft, "bursty", 15, 0.05, 0, 2), start(ft, "well", 10**6, 0.2, 0, 2)
    for job in (bursty, well):
        job.wait()
        assert job.process.returncode == 0
    assert re.search(rf"Advice:\n  {BURSTS}\n", bursty.stderr)
    assert "Advice: none\n" in well.stderr

    found = report(ft, "bursty")
    (line,) = found["summary"]["advice"]
    assert re.fullmatch(BURSTS, line["text"])
    assert (line["setting"], line["now"]) == ("prefetch_factor", "2")
    measured = found["summary"]["measured"]
    assert 10 <= measured["training_s"] <= found["time"]["phases"]["training"]
    bursts = measured["batches"] / 15
    assert 0.3 * bursts <= measured["wait_s"] <= 0.9 * (bursts + 1)
    assert (measured["num_workers"], measured["prefetch_factor"]) == (2, 2)
    assert int(line["advised"]) == pytest.approx(2 + 0.6 / 0.06 / 2, abs=4)
    text = ft.run("report", "bursty.jsonl")
    assert f"Advice      {line['text']}\n" in text.stdout
    status = status_dict(StatusReply("j", "running", 0, 0, 0, 1, 1, 1, 1.0, 1.0, ()))
    shown = status_lines(status | {"summary": found["summary"]})
    assert shown[-1] == f"advice: {line['text']}"

    found = report(ft, "well")
    assert found["summary"]["advice"] == []
    assert found["summary"]["measured"]["batches"] >= 20
    records = [json.loads(line) for line in (ft.folder / "well.jsonl").read_text().splitlines()]
    assert [r["lines"] for r in records if r["name"] == "tuning.advised"] == [[]]
