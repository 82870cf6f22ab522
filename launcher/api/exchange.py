"""Passes a function, its arguments and its results between processes of one user on one node.

They are pickles, and unpickling can run any code, so they are never sent over the network. They are
files (0600) in a directory that only this user can open (0700), created for one call and removed
after it. A cleaner of /tmp may remove the directory of a long job, and its name is in the arguments
of processes, so another user can create it again. Therefore a file is not unpickled if another user
owns it or could have written it.

    <folder>/call          what to call, for all workers of this node
    <folder>/running       locks of the workers whose function has not returned
    <folder>/result.<pid>  what it returned, one per worker that finished
    <folder>/outcome       JSON, by the agent: how the job ended
"""

import json
import os
import pickle
import stat
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import spawn
from typing import Any, BinaryIO

_PREPARATION = ("sys_path", "sys_argv", "orig_dir", "dir", "start_method", "log_level",
                "init_main_from_name", "init_main_from_path")  # fmt: skip
"""Entries of multiprocessing's description of this process that a worker needs to find functions.
"""


class UnsafeFileError(RuntimeError):
    """Raised if another user may have written a file that is to be unpickled."""


def write_call(folder: str, function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Write the function that the workers call, and its arguments.

    Raises:
        Exception: from pickle, if the function or an argument cannot be pickled.
    """
    known = spawn.get_preparation_data("")
    main = known.get("init_main_from_path")
    if main is not None and not os.path.isfile(main):  # typed in, or piped
        del known["init_main_from_path"]
    preparation = {key: known[key] for key in _PREPARATION if key in known}
    _write(folder, "call", pickle.dumps(preparation) + pickle.dumps((function, tuple(args))))


def read_call(
    folder: str, prepare: Callable[[dict[str, Any]], None]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function to call, and its arguments.

    Args:
        prepare: receives the description of the calling process before the function is looked up.

    Raises:
        UnsafeFileError: If another user may have written the file.
    """
    with _open_own(folder, "call") as file:
        prepare(pickle.load(file))  # noqa: S301 - written by this user, see above
        function, args = pickle.load(file)  # noqa: S301 - the same file
    return function, args


def write_result(folder: str, value: object) -> None:
    """Write the return value of the function in this process."""
    _write(folder, f"result.{os.getpid()}", pickle.dumps(value))


def read_results(folder: str, pids: Mapping[int, int]) -> dict[int, Any]:
    """Return the function's results by rank; ``pids`` are the workers of the last round by rank.

    Raises:
        UnsafeFileError: If another user may have written a file.
    """
    return {rank: _read_result(folder, f"result.{pid}") for rank, pid in pids.items()}


def _read_result(folder: str, name: str) -> Any:
    try:
        with _open_own(folder, name) as file:
            return pickle.load(file)  # noqa: S301 - written by this user, see above
    except FileNotFoundError:  # it ended by sys.exit(0)
        return None


def write_outcome(folder: str, outcome: Mapping[str, object]) -> None:
    """Write how the job ended."""
    _write(folder, "outcome", json.dumps(outcome).encode())


def read_outcome(folder: str) -> dict[str, Any] | None:
    """Return how the job ended; None if the agent died before it wrote this."""
    try:
        with open(os.path.join(folder, "outcome"), "rb") as file:
            outcome: dict[str, Any] = json.load(file)
            return outcome
    except FileNotFoundError:
        return None


def _write(folder: str, name: str, data: bytes) -> None:
    """Write a file that only this user can read, completely or not at all."""
    path = os.path.join(folder, name)
    descriptor = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.rename(f"{path}.part", path)


def _open_own(folder: str, name: str) -> BinaryIO:
    file = open(os.path.join(folder, name), "rb")  # noqa: SIM115 - the caller closes it
    status = os.fstat(file.fileno())
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        file.close()
        raise UnsafeFileError(
            f"{file.name} belongs to user {status.st_uid} with mode "
            f"{stat.S_IMODE(status.st_mode):04o}; expected user {os.geteuid()} and mode 0600, "
            "since nothing is unpickled that another user could have written."
        )
    return file
