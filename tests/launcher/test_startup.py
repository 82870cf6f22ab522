"""Tests of the end of the event loop."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("runner", "quiet"), [("startup.run", True), ("asyncio.run", False)])
def test_a_signal_while_the_loop_closes(runner: str, quiet: bool) -> None:
    """Also with asyncio's own runner, so that this is known to provoke what it is about."""
    program = f"""if True:
        import asyncio, os, signal, socket
        from ft_run.launcher import startup

        class Closing(socket.socket):
            __slots__ = ()

            def close(self):
                super().close()
                os.kill(os.getpid(), signal.SIGCHLD)

        async def main():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGCHLD, print)
            loop._csock.__class__ = Closing  # the one that signals are written to

        {runner}(main())
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (b"wakeup fd" not in done.stderr) == quiet
