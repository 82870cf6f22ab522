"""Runs in a watched worker: reports its progress, and writes its stacks on a signal.

The worker and the agent share a page of memory (a memfd). Each number there is written by one
aligned store of 8 bytes, so the agent never reads half of one. Only the worker's own process
writes, not processes that it forks or starts.

Interpreters without ft-run load it too, as a module of a package that has this folder only
(``starter/sitecustomize.py``): it imports nothing of ft-run but the modules beside it, and at start
nothing that a bare Python has not loaded, e.g. ``typing``: each restart would wait for that.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _weakref import ref  # of which `weakref`, which Python need not have loaded, has it

from .data_wait import WAIT_NS, DataWait
from .imported import IMPORTED, bits_of
from .patching import take_name, when_loaded
from .phases import Phases, time_joining
from .store_wait import RENDEZVOUS, await_before_connecting
from .tuning_page import TuningPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "_ft_run_hook"
"""The name in ``sys.modules`` under which ``ft_run.training`` finds it."""

PAGE_BYTES = 4096
STACKS_SIGNAL = 62
"""A real-time signal (``SIGRTMAX - 2``) on which all stacks are written."""

PID, STEPS, LAST_NS, LONGEST_NS, TICKS, STACKS_FD = range(6)
"""Indexes of 8-byte words in the page: the process id (0: none yet); completed steps; the time of
the last progress (CLOCK_MONOTONIC, 0: none yet); the longest time between two of them; their
number; the descriptor to which stacks are written."""

FURTHEST, MARK_NS, MARK_STEPS, BEFORE_NS, BEFORE_STEPS = range(6, 11)
"""The highest step that the script has reported plus 1 (0: it reports none); start time and steps
of the last interval of at least ``STRETCH_NS``, and of the one before it: the steps per second
follow from these."""
STRETCH_NS = 10_000_000_000
USES_DEVICE, CPU_NS, CPU_WALL_NS, CPU_BEGAN_NS, WALL_BEGAN_NS = range(11, 16)
"""Whether an accelerator is used; nanoseconds of CPU time of this process since its first step, and
of the time in which it had them; both clocks at the first step. They are read once a second."""
_CPU_EVERY_NS = 1_000_000_000
MARK_WAIT_NS, BEFORE_WAIT_NS, FIRST, TOTAL, REPORTS_ITSELF = range(507, 512)
"""Indexes of the waits for data at the start of the same two intervals; of the first step that the
script has reported plus 1 (0: none); of the steps of the whole training (0: not known), and of
whether the worker sends its progress to Kubeflow by itself."""

PAGE_FILE, STACKS_FILE = "/memfd:ft-run-page", "/memfd:ft-run-stacks"
"""Their names in /proc/PID/fd."""
_OPTIMIZERS = "torch.optim.optimizer"
_LOADERS = "torch.utils.data.dataloader"
_GROUPS = "torch.distributed.distributed_c10d"
_KUBEFLOW = "KUBEFLOW_TRAINER_SERVER_URL"
"""Set in a TrainJob that shows its progress."""
_CALLBACKS = "transformers.integrations.integration_utils"
_KUBEFLOW_SDK = "kubeflow.trainer.backends.kubernetes.utils"
_FD_MIN = 100
"""Above the descriptors that programs usually get."""


class Hook:
    """The worker's side of the page."""

    def __init__(self, page: Any) -> None:
        """Initialize the page for this process.

        Args:
            page: a ``memoryview`` of 8-byte words.
        """
        self._page = page
        self._pid = os.getpid()
        self._reports_steps = False
        self._outermost: tuple[object, Any] | None = None
        """The optimizer that is stepping, and its frame."""
        self._stepped: dict[int, Any] = {}
        """Optimizers that have stepped since the current step began, by id."""
        for word in range(FURTHEST, BEFORE_STEPS + 1):
            page[word] = 0
        for word in range(USES_DEVICE, WALL_BEGAN_NS + 1):
            page[word] = 0
        for word in range(MARK_WAIT_NS, REPORTS_ITSELF + 1):
            page[word] = 0
        page[IMPORTED] = 0
        page[STEPS] = page[LAST_NS] = page[LONGEST_NS] = page[TICKS] = 0
        self.phases, self.data_wait = Phases(page), DataWait(page)
        page[PID] = self._pid

    def progress(self, step: int) -> None:
        """Record progress, and the script's number of steps unless it is -1."""
        if os.getpid() != self._pid:
            return
        if step >= 0:
            if not self._reports_steps:
                self._reports_steps = True
                self._page[MARK_NS] = 0  # so far optimizer steps were counted
                self._page[FIRST] = step + 1
            self._page[STEPS] = step
            if step >= self._page[FURTHEST]:
                self._page[FURTHEST] = step + 1
        self._tick()

    def expect(self, total: int) -> None:
        """Record the steps of the whole training."""
        if os.getpid() == self._pid:
            self._page[TOTAL] = total

    def reports_itself(self) -> None:
        """Record that the worker sends its progress to Kubeflow."""
        if os.getpid() == self._pid:
            self._page[REPORTS_ITSELF] = 1

    def piece(self) -> None:
        """Record a confirmed piece of ``shared_work``: a step, in a script that does no other."""
        if os.getpid() != self._pid:
            return
        if not self._reports_steps and not self._stepped:
            self._page[STEPS] += 1
        self._tick()

    def before_step(self, optimizer: object, *_: object) -> None:
        """Record that an optimizer begins a step, maybe inside that of its wrapper."""
        frame = sys._getframe(1)
        outermost = self._outermost
        # An optimizer whose step raised an exception never ends it.
        if outermost is None or outermost[0] is optimizer or not _is_running(outermost[1], frame):
            self._outermost = optimizer, frame

    def after_step(self, optimizer: object, *_: object) -> None:
        """Record that an optimizer has ended a step."""
        if self._outermost is None or self._outermost[0] is not optimizer:
            return
        self._outermost = None
        if os.getpid() != self._pid:
            return
        if self._is_new_step(optimizer) and not self._reports_steps:
            self._page[STEPS] += 1
        self._tick()

    def batch(self) -> None:
        """Record a batch of a data loader: progress in evaluation and gradient accumulation.

        It is ignored before the first step, which may be compiled for minutes.
        """
        if self._page[TICKS] and os.getpid() == self._pid:
            self._tick()

    def _is_new_step(self, optimizer: object) -> bool:
        """Return whether an optimizer step counts as a step of the script.

        Of several optimizers that alternate, the one that steps most counts. Optimizers that are
        created for each batch each count.
        """
        number, stepped = id(optimizer), self._stepped
        known = stepped.get(number)
        if known is None or known() is not optimizer:
            if stepped and all(one() is not None for one in stepped.values()):
                stepped[number] = ref(optimizer)
                return False
        elif len(stepped) == 1:
            return True
        self._stepped = {number: ref(optimizer)}
        return True

    def _tick(self) -> None:
        page = self._page
        now = time.monotonic_ns()
        last = page[LAST_NS]
        if not last:
            self.phases.stepped()
            page[IMPORTED] = bits_of(sys.modules)
            page[USES_DEVICE] = _uses_device()
            page[CPU_BEGAN_NS], page[WALL_BEGAN_NS] = time.process_time_ns(), now
            # Before the functions that libraries have registered, which may wait for others.
            atexit.register(self.phases.enter, "stopping")
        elif now - page[WALL_BEGAN_NS] - page[CPU_WALL_NS] >= _CPU_EVERY_NS:
            page[CPU_NS] = time.process_time_ns() - page[CPU_BEGAN_NS]
            page[CPU_WALL_NS] = now - page[WALL_BEGAN_NS]
        if last and now - last > page[LONGEST_NS]:
            page[LONGEST_NS] = now - last
        page[LAST_NS] = now
        page[TICKS] += 1
        mark = page[MARK_NS]
        if now - mark >= STRETCH_NS:
            is_first = not mark
            page[BEFORE_NS] = now if is_first else mark
            page[BEFORE_STEPS] = page[STEPS] if is_first else page[MARK_STEPS]
            page[BEFORE_WAIT_NS] = page[WAIT_NS] if is_first else page[MARK_WAIT_NS]
            page[MARK_NS], page[MARK_STEPS] = now, page[STEPS]
            page[MARK_WAIT_NS] = page[WAIT_NS]


# A compiled step breaks its graph here and calls these as they are (what torch.compiler.disable
# sets, without its import).
for _function in (Hook.before_step, Hook.after_step):
    _function._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch reads it
    _function._torchdynamo_disable_msg = None  # type: ignore[attr-defined]  # likewise


def _count_steps(optimizers: Any, hook: Hook) -> None:
    register = getattr(optimizers, "register_optimizer_step_pre_hook", None)
    if register is not None:  # since torch 2.0
        register(hook.before_step)
        optimizers.register_optimizer_step_post_hook(hook.after_step)


def _notice_batches(loaders: Any, hook: Hook) -> None:
    iterators = getattr(loaders, "_BaseDataLoaderIter", None)
    fetch = getattr(iterators, "__next__", None)
    if iterators is None or fetch is None:
        return

    def next_batch(iterator: Any) -> Any:
        if hook.data_wait.begin():
            has_batch = False
            try:
                batch = fetch(iterator)
                has_batch = True
            finally:
                hook.data_wait.end(iterator, has_batch=has_batch)
        else:
            batch = fetch(iterator)
        hook.batch()
        return batch

    take_name(next_batch, fetch)
    iterators.__next__ = next_batch


def _notice_reports(owner: Any, name: str, hook: Hook) -> None:
    """Record the calls of a function of a module or class that sends progress to Kubeflow."""
    report = getattr(owner, name, None)
    if report is None:
        return

    def reports(*arguments: Any, **named: Any) -> Any:
        hook.reports_itself()
        return report(*arguments, **named)

    reports.__name__, reports.__qualname__ = report.__name__, report.__qualname__
    reports.__doc__, reports.__module__ = report.__doc__, report.__module__
    setattr(owner, name, reports)


def _uses_device() -> bool:
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, name, None) for name in ("cuda", "xpu", "npu", "hpu"))
    asked = (getattr(kind, "is_initialized", None) for kind in kinds)
    return any(is_initialized is not None and is_initialized() for is_initialized in asked)


def _is_running(frame: Any, inner: Any) -> bool:
    while inner is not None and inner is not frame:
        inner = inner.f_back
    return inner is not None


def install_or_say(page_fd: int, stacks_fd: int) -> None:
    """Install the hooks, or log why not: the worker runs in any case."""
    try:
        install(page_fd, stacks_fd)
    except Exception as error:
        now = time.strftime("%H:%M:%S")
        os.write(2, f"{now} ft-run cannot watch this worker: {error!r}\n".encode())


def install(page_fd: int, stacks_fd: int) -> None:
    """Install the hooks in this process, unless another live process uses the same page.

    Args:
        page_fd: of the page; the caller may close it.
        stacks_fd: of the file for stacks; the caller may close it.

    Raises:
        OSError: a descriptor is invalid, or the kernel refuses.
    """
    import faulthandler
    import fcntl
    import mmap

    # A process may have inherited the variable without the descriptors.
    if not os.readlink(f"/proc/self/fd/{page_fd}").startswith(PAGE_FILE):
        raise OSError(f"descriptor {page_fd} is not the page that is shared with ft-run")
    # mmap keeps a duplicate of the descriptor, with the lowest free number.
    fillers = [os.dup(page_fd)]
    while fillers[-1] < _FD_MIN:
        fillers.append(os.dup(page_fd))
    page = memoryview(mmap.mmap(page_fd, PAGE_BYTES)).cast("Q")
    for fd in fillers:
        os.close(fd)
    if page[PID] and page[PID] != os.getpid() and os.path.exists(f"/proc/{page[PID]}"):
        return
    file = fcntl.fcntl(stacks_fd, fcntl.F_DUPFD_CLOEXEC, _FD_MIN)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    page[STACKS_FD] = file
    hook = Hook(page)
    module: Any = type(sys)(NAME)
    module.progress, module.expect, module.piece = hook.progress, hook.expect, hook.piece
    module.tuning = TuningPage(page)
    module.enter, module.leave = hook.phases.enter, hook.phases.leave
    sys.modules[NAME] = module
    if os.environ.get(_KUBEFLOW):
        when_loaded(
            {
                _CALLBACKS: lambda module: _notice_reports(
                    getattr(module, "KubeflowCallback", None), "__init__", hook
                ),
                _KUBEFLOW_SDK: lambda sdk: _notice_reports(sdk, "update_trainjob_status", hook),
            }
        )
    when_loaded(
        {
            _OPTIMIZERS: lambda optimizers: _count_steps(optimizers, hook),
            _LOADERS: lambda loaders: _notice_batches(loaders, hook),
            RENDEZVOUS: await_before_connecting,
            _GROUPS: lambda c10d: time_joining(c10d, hook.phases),
        }
    )
