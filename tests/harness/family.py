"""The processes of one agent, found as a person finds them: by parents and names."""

from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name_of(pid: int) -> str:
    """Return the name of a process as ``killall`` and ``ps`` know it."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def state_of(pid: int) -> str:
    """Return the letter of a process's state; empty for one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[0]


def guard_of(agent: int) -> int:
    """Return the only guard of an agent, which is the parent of its spawner."""
    (guard,) = [pid for pid in children(agent) if name_of(pid) == "ftrun-guard"]
    return guard


def relay_of(agent: int) -> int:
    """Return the relay of an agent."""
    (relay,) = [pid for pid in children(agent) if name_of(pid) == "ft-run-relay"]
    return relay


def spawner_of(agent: int) -> int:
    """Return the only spawner of an agent."""
    (spawner,) = children(guard_of(agent))
    return spawner


def fork_server_of(agent: int) -> int:
    """Return the fork server of an agent."""
    (server,) = [pid for pid in children(spawner_of(agent)) if "forkserver_main" in command_of(pid)]
    return server
