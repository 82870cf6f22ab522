"""Runs a program several times at once, in forks of one process that has imported torch."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

_PARENT = """
import json, os, sys
modules, program, calls = json.load(sys.stdin)
for module in modules:
    __import__(module)
code = compile(program, "<program>", "exec")
children = []
for argv in calls:
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(into, 1)
        sys.argv[1:] = argv
        try:
            exec(code, {"__name__": "__main__"})
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    os.close(into)
    children.append((pid, out))
found = []
for pid, out in children:
    with open(out) as lines:
        output = lines.read()
    found.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output])
json.dump(found, sys.stdout)
"""


class Ended(NamedTuple):
    """A fork that has ended."""

    status: int
    """As of ``subprocess``."""
    output: str


def run_forked(
    program: str,
    calls: Sequence[Sequence[object]],
    modules: Sequence[str] = ("torch.distributed",),
    pass_fds: Sequence[int] = (),
) -> list[Ended]:
    """Run a program once with each list of arguments, all at the same time; return how they ended.

    Args:
        program: its source.
        calls: the arguments of each fork.
        modules: are imported before the forks.
        pass_fds: descriptors that the forks inherit.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PARENT],
        input=json.dumps([modules, program, [list(map(str, argv)) for argv in calls]]),
        pass_fds=pass_fds,
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    )
    return [Ended(*one) for one in json.loads(done.stdout)]
