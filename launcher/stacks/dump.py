"""Parses a dump of ``faulthandler``: the frames of a process's main thread.

The format is that of CPython's ``Python/traceback.c``: a line for each thread (``Thread 0x… (most
recent call first):`` or ``Current thread 0x…``), then one for each frame. The main thread is the
last: threads are listed from the newest to the oldest.
"""

import linecache
import os
import re
import sysconfig

from ... import training
from ...rendezvous.protocol.stacks import FRAMES_MAX, TEXT_MAX, Frame
from ...training.worker import hook

_THREAD = re.compile(r"^(?:Thread|Current thread) 0x[0-9a-f]+(?: \[[^\]]*\])? \(most recent call")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
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

    Args:
        dump: the output of the process; of several dumps the last is used.
    """
    frames: list[Frame] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            frames = []
        elif (found := _FRAME.match(line)) and len(frames) < FRAMES_MAX:
            if found["file"] == hook.__file__:
                continue  # around the fetching of a batch
            frames.append(_frame(found["file"], int(found["line"]), found["function"]))
    if frames and frames[-1].file == _FORK_SERVER:
        del frames[-1]  # the fork server's frame, in which the worker was forked
    return tuple(frames)


def _frame(file: str, line: int, function: str) -> Frame:
    name, is_library = short_name(file)
    source = "" if is_library else linecache.getline(file, line).strip()
    return Frame(name[-TEXT_MAX:], line, function[:TEXT_MAX], is_library, source[:TEXT_MAX])


def short_name(file: str) -> tuple[str, bool]:
    """Return the display name of a file, and whether it belongs to a library."""
    if file.startswith("<frozen "):
        return file, True
    package = _PACKAGES.sub("", file)
    if package != file:
        return package, True
    if file.startswith(_TRAINING):  # in a checkout of ft-run
        return f"ft_run/training/{file.removeprefix(_TRAINING)}", True
    # The workers' interpreter may be another one: its library is identified by its folder's name.
    standard = re.sub(r"^.*/lib/python3\.\d+/", "", os.path.realpath(file))
    if file.startswith(_STDLIB) or standard != os.path.realpath(file):
        return standard, True
    return os.path.basename(file) or file, False
