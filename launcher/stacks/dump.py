"""Parses a dump of ``faulthandler``: the frames of the main thread, and of a backward pass.

Format, from CPython's ``Python/traceback.c``: a line for each thread (``Thread 0x… (most recent
call first):`` or ``Current thread 0x…``), then one for each frame. Threads are listed from the
newest to the oldest, so the main thread is last.

With CUDA the backward pass runs in a thread of torch for each GPU, in which hooks, FSDP and
recomputation are called; the main thread only waits for it. This thread is started by torch, not by
Python, so its outermost frame is not in ``threading``.
"""

import linecache
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ... import training
from ...rendezvous.protocol.stacks import FRAMES_MAX, TEXT_MAX, Frame
from ...training.worker import hook

_THREAD = re.compile(r"^(?:Thread|Current thread) 0x[0-9a-f]+(?: \[[^\]]*\])? \(most recent call")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_OURS = str(Path(hook.__file__).parents[1]) + os.sep
BACKWARD = "_engine_run_backward"
_FORK_SERVER = "forkserver_main.py"
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_TRAINING = os.path.dirname(os.path.abspath(training.__file__)) + os.sep
_STDLIB = tuple(
    path + os.sep
    for name in ("stdlib", "platstdlib")
    if (path := os.path.realpath(sysconfig.get_path(name)))
)


def main_thread(dump: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, innermost first; empty if there is no dump.

    In a backward pass, the frames of torch's thread come first. If the output contains several
    dumps, the last is used.
    """
    threads: list[list[re.Match[str]]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif (
            threads
            and (found := _FRAME.match(line))
            and found["file"] != hook.__file__  # around the fetching of a batch
        ):
            threads[-1].append(found)
    frames = threads[-1] if threads else []
    if _is_in_backward(frames):
        frames = [*next(filter(_is_of_torch, threads[-2::-1]), []), *frames]
    if frames and frames[-1]["file"].endswith(_FORK_SERVER):
        del frames[-1]  # the fork server's frame, in which the worker was forked
    return tuple(_frame(frame, is_innermost=frame is frames[0]) for frame in frames[:FRAMES_MAX])


def _is_in_backward(frames: Sequence[re.Match[str]]) -> bool:
    return any(frame["function"] == BACKWARD for frame in frames)


def _is_of_torch(frames: Sequence[re.Match[str]]) -> bool:
    return bool(frames) and not frames[-1]["file"].endswith("threading.py")


def _frame(found: re.Match[str], *, is_innermost: bool) -> Frame:
    file, line, function = found["file"], int(found["line"]), found["function"]
    name, is_library = short_name(file)
    # Keep the innermost line even in a library: `.item()` in a library waits for the GPU too.
    source = "" if is_library and not is_innermost else linecache.getline(file, line).strip()
    return Frame(name[-TEXT_MAX:], line, function[:TEXT_MAX], is_library, source[:TEXT_MAX])


def short_name(file: str) -> tuple[str, bool]:
    """Return the display name of a file, and whether it belongs to a library."""
    if file.startswith("<frozen "):
        return file, True
    if file.startswith(_OURS):
        return f"ft_run/training/{file[len(_OURS) :]}", True
    package = _PACKAGES.sub("", file)
    if package != file:
        return package, True
    if file.startswith(_TRAINING):  # in a checkout of ft-run
        return f"ft_run/training/{file.removeprefix(_TRAINING)}", True
    # The workers may use a different interpreter, so its library is identified by directory name.
    standard = re.sub(r"^.*/lib/python3\.\d+/", "", os.path.realpath(file))
    if file.startswith(_STDLIB) or standard != os.path.realpath(file):
        return standard, True
    return os.path.basename(file) or file, False
