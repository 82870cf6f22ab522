"""The page in a browser: both widths and colour schemes, the timeline by pointer and by keys."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_run.launcher.history.accounting import Account, Phase
from ft_run.launcher.history.advice import Advice, Measured
from ft_run.launcher.history.answers import FailureNote, JobSummary
from ft_run.launcher.report.job_report import FailureEntry, JobReport, Saved
from ft_run.launcher.report.lanes import Lane, PhaseNames, Process
from ft_run.launcher.report.page import page_of
from ft_run.launcher.report.reading import Reading
from ft_run.launcher.report.restarts import RestartParts
from ft_run.tests.harness.browser import CHROMIUM, Page, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]

NODES, ROUNDS, LOADS_WITHIN_MS = 1000, 200, 2000
T0 = 1_764_000_000.0
PARTS = {
    Phase.WAITING: 2.0,
    Phase.SPAWNING: 0.3,
    Phase.BUILDING: 14.0,
    Phase.TRAINING: 900.0,
    Phase.HANGING: 20.0,
    Phase.STOPPING: 5.0,
}
ROUND_S = sum(PARTS.values())
EVIL = "</script><script>document.title = 'evil'</script><img src=x onerror=alert(1)>"


def lane(name: str, names: PhaseNames, chance: random.Random) -> Lane:
    found = Lane(name, names, host=f"host-{name}", address="10.0.0.1", workers=8)
    for round_ in range(ROUNDS):
        at_s = T0 + round_ * ROUND_S + chance.random()
        for phase, seconds in PARTS.items():
            found.starts_s.append(at_s)
            found.phases.append(names.number(phase.value))
            at_s += seconds
    found.at_s = T0 + ROUNDS * ROUND_S
    found.processes.append(Process(T0, ROUNDS * ROUND_S, 1, 0))
    found.account = Account({phase: seconds * ROUNDS for phase, seconds in PARTS.items()})
    found.end()
    return found


def large() -> JobReport:
    names, chance = PhaseNames(), random.Random(1)
    lanes = [lane(f"gpu-{number:04}", names, chance) for number in range(NODES)]
    at_s = [T0 + number * ROUND_S for number in range(ROUNDS)]
    notes = [
        FailureNote(n, at_s[n], "worker", n, n, f"gpu-{n:04}", f"rank {n}: {EVIL}", (EVIL,) * 5)
        for n in range(ROUNDS)
    ]
    return JobReport(
        summary=JobSummary(
            "large",
            started_at_s=T0,
            at_s=T0 + ROUNDS * ROUND_S,
            measured=Measured(8, 2, 2, 1, 8.0, 8, idle_cpu_s=620.0, idle_of_s=100.0, wait_s=30.0),
            advice=(Advice("num_workers", "2", "4", EVIL),),
        ),
        lanes=lanes,
        attempts=[],
        account=lanes[0].account,
        job_lane=lane("job", names, chance),
        names=names,
        rates=[(T0 + n * 90, n * 100, 2 + chance.random()) for n in range(2000)],
        restarts=[RestartParts(1, n, at_s[n], "worker", EVIL) for n in range(ROUNDS)],
        failures=[FailureEntry(1, note.host, True, note) for note in notes],
        checkpoints=[Saved(T0 + n * 600, "gpu-0000", n, 12.0, 10**9, EVIL) for n in range(300)],
        checks=[],
        notices=[],
        damaged=0,
    )


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(large(), Reading()))
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        yield page


def load(page: Page, html: Path, *, width: int, scheme: str) -> float:
    """Load the page; return the time until it was shown, in milliseconds."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    page.call("Emulation.setEmulatedMedia", features=media)
    page.call("Page.navigate", url=html.as_uri())
    page.wait("Page.loadEventFired")
    drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.run(f"{drawn}.then(() => performance.now())")
    return float(page.run("performance.timing.loadEventEnd - performance.timing.navigationStart"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_it_is_shown_without_a_request_or_an_error(
    page: Page, html: Path, width: int, scheme: str
) -> None:
    page.events.clear()
    load(page, html, width=width, scheme=scheme)
    names = [event["method"] for event in page.events]
    assert "Runtime.exceptionThrown" not in names
    assert "Runtime.consoleAPICalled" not in names
    assert "Log.entryAdded" not in names
    asked = [event for event in page.events if event["method"] == "Network.requestWillBeSent"]
    assert [one["params"]["request"]["url"] for one in asked] == [html.as_uri()]
    assert page.run("document.title") == "large · ft-run report"
    assert page.run("document.images.length + document.scripts.length") == 2
    assert page.run("document.documentElement.scrollWidth") == width
    paper = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128")
    assert paper == (scheme == "dark")
    assert page.run("document.querySelectorAll('h2').length") >= 6
    advice = page.run("document.querySelector('[aria-labelledby=advice]').innerText")
    assert advice.splitlines()[-1] == (
        "Measured in 0 ms of training with num_workers 2: data wait 30.0 s, 6.2 of 8 CPUs idle."
        " Nothing was changed."
    )
    assert EVIL in advice


def test_a_thousand_nodes_are_shown_within_two_seconds(page: Page, html: Path) -> None:
    taken = [load(page, html, width=1400, scheme="light") for _ in range(3)]
    assert min(taken) < LOADS_WITHIN_MS


def view(page: Page) -> tuple[float, float]:
    first, last = page.run("[timeline.from, timeline.to]")
    return first, last


def mouse(page: Page, kind: str, x: float, y: float, **more: object) -> None:
    page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def test_the_timeline_by_pointer(page: Page, html: Path) -> None:
    load(page, html, width=1400, scheme="light")
    script = "document.querySelector('.timeline').scrollIntoView({block: 'center'})"
    page.run(f"{script}; timeline.show(0, {ROUND_S})")
    left, top = page.run("(({left, top}) => [left, top])(timeline.canvas.getBoundingClientRect())")
    x = left + page.run("timeline.x(400)")
    y = top + page.run("timeline.top + 8 + 3 * 18")
    mouse(page, "mouseMoved", x, y)
    tip = page.run("timeline.tip.hidden ? '' : timeline.tip.textContent")
    assert tip.startswith("training, 15:00\ngpu-0003\n24 Nov 16:00:1")
    mouse(page, "mouseMoved", left + page.run("timeline.x(0.5)"), top + 26 + 24 + 10)
    assert EVIL in page.run("timeline.tip.textContent")
    mouse(page, "mouseWheel", x, y, deltaX=0, deltaY=-300, modifiers=2)
    zoomed = view(page)
    assert zoomed[0] < 400 < zoomed[1]
    assert zoomed[1] - zoomed[0] < 0.6 * ROUND_S
    page.run(f"timeline.show(0, {ROUND_S})")
    begin, end = left + page.run("timeline.x(100)"), left + page.run("timeline.x(300)")
    mouse(page, "mousePressed", begin, y, button="left", clickCount=1)
    mouse(page, "mouseMoved", end, y, button="left", buttons=1)
    mouse(page, "mouseReleased", end, y, button="left", clickCount=1)
    dragged = view(page)
    assert dragged == pytest.approx((100, 300), abs=3)
    mouse(page, "mouseWheel", x, y, deltaX=0, deltaY=-300)  # without Ctrl the page scrolls
    assert view(page) == dragged


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        page.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def test_the_timeline_by_keys(page: Page, html: Path) -> None:
    load(page, html, width=1400, scheme="light")
    page.run("timeline.canvas.focus()")
    press(page, "ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight")
    spoken = page.run("timeline.spoken.textContent")
    assert spoken.startswith("starting workers, 300 ms\ngpu-0001\n")
    press(page, "+", "+")
    first, last = view(page)
    assert last - first == pytest.approx(ROUNDS * ROUND_S / 4, rel=0.01)
    press(page, "0")
    assert view(page)[0] == 0
    page.run("timeline.filter.value = 'gpu-09'; timeline.choose()")
    assert page.run("timeline.rows.length") == 100
