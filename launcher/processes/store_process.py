"""The store process of ``--store separate``: ``python -u store_process.py HOST PORT``.

It hosts the ``TCPStore`` of one round, so that the store outlives rank 0. The process that started
it also ends it. It is run by its path and imports nothing of ft_run, because the workers'
interpreter need not have ft_run installed.
"""

import os
import signal
import sys


def main(host: str, port: int) -> None:
    """Serve at all addresses until killed; the store's own client connects to ``host``."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # after sys.path is cleaned

    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",  # as in torch's rendezvous
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    while store:
        signal.pause()


if __name__ == "__main__":
    del sys.path[0]  # this file's directory: its modules would hide others of the same name
    main(sys.argv[1], int(sys.argv[2]))
