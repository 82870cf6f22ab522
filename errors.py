"""Every error that a user can cause, each with its exit code and one clear sentence.

The sentence says what is wrong, what was given and what would be right. ``main`` prints it and
exits; a traceback from ft-run is always a bug of ft-run.
"""

from . import exit_codes


class FtRunError(Exception):
    """Base class of every error that ends ``ft-run`` with a sentence and an exit code."""

    exit_code: int = exit_codes.USAGE

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class UsageError(FtRunError):
    """Raised when the command line, a ``PET_*`` variable or a file it names cannot work."""


class LogDirError(UsageError):
    """Raised when log files cannot be written where they were asked for."""


class RendezvousError(FtRunError):
    """Raised when no master could be reached, or too few nodes came in time."""

    exit_code = exit_codes.RENDEZVOUS_FAILED


class PortInUseError(RendezvousError):
    """Raised when the port of the endpoint is held by something that is not a master."""


class RefusedError(FtRunError):
    """Raised when the master refuses this node: configuration, version, job id or identity."""

    exit_code = exit_codes.REFUSED


class NodeExcludedError(FtRunError):
    """Raised when this node is ruled out: by the failure policy, or by the checks."""

    exit_code = exit_codes.NODE_EXCLUDED


class NodeUnfitError(NodeExcludedError):
    """Raised when the checks send this node away: for good (30), or worth retrying (20)."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class NoProcessError(FtRunError):
    """Raised when the kernel makes no process for a part of ft-run; ``limits`` says why."""

    exit_code = exit_codes.WORKERS_FAILED


class SpawnerLostError(FtRunError):
    """Raised when the spawner process died; the workers have died with it."""

    exit_code = exit_codes.WORKERS_FAILED
