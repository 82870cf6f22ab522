"""Starts the same workers the ordinary way and from a fork server, by real spawners.

    preload_driver.py FOLDER < {"modules": […], "workers": [{"argv": […], "env": {…}}, …],
                              "watched": bool, "cold": count}

The ordinary way it starts only the first ``cold`` workers, where that is given. Writes
{"cold": […], "warm": […], "fork_servers": […]} to standard output: exit code, output and errors of
each worker in order, and its progress if it is watched. It is a program of its own because a
spawner is forked from it.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited, ForkServerEvent, Spawned, SpawnerEvent


def run(order: dict[str, Any], folder: Path, *, warm: bool) -> dict[str, Any]:
    """Run all workers of an order at once; return what came out."""
    folder.mkdir(parents=True)
    client = SpawnerClient()
    modules, workers = order["modules"], order["workers"]
    if warm:
        client.preload(modules, workers[0]["argv"], {}, differing=["RANK"])
    results: list[dict[str, Any]] = [{} for _ in workers]
    fork_servers: list[list[str]] = []
    watches = [WorkerWatch() for _ in workers] if order.get("watched") else []

    async def main() -> None:
        over = asyncio.Event()

        def on_event(event: SpawnerEvent) -> None:
            if isinstance(event, Exited):
                results[event.local_rank]["code"] = event.exit_code
            elif isinstance(event, Spawned):
                for result, pid in zip(results, event.pids, strict=True):
                    result["pid"] = pid
            elif isinstance(event, ForkServerEvent):
                fork_servers.append([event.state.value, event.text])
            if all("code" in result for result in results):
                over.set()

        client.listen(on_event)
        commands = []
        files = []
        for index, worker in enumerate(workers):
            out = (folder / f"{index}.out").open("wb")
            err = (folder / f"{index}.err").open("wb")
            files += [out, err]
            command = WorkerCommand(
                tuple(worker["argv"]),
                worker.get("env", {}),
                stdout=out.fileno(),
                stderr=err.fileno(),
                watch=watches[index] if watches else None,
            )
            commands.append(command)
        client.spawn(0, commands)
        for file in files:
            file.close()
        await over.wait()

    asyncio.run(main())
    client.close()
    for result, watch in zip(results, watches, strict=False):
        progress = watch.progress()
        result["progress"] = progress and [progress.steps, progress.ticks]
    for index, result in enumerate(results):
        result["out"] = (folder / f"{index}.out").read_text(errors="replace")
        result["err"] = (folder / f"{index}.err").read_text(errors="replace")
    return {"results": results, "fork_servers": fork_servers}


if __name__ == "__main__":
    given = json.load(sys.stdin)
    base = Path(sys.argv[1])
    first = given["workers"][: given.get("cold")]
    cold = run(given | {"workers": first}, base / "cold", warm=False) if first else {"results": []}
    warm = run(given, base / "warm", warm=True)
    json.dump(
        {"cold": cold["results"], "warm": warm["results"], "fork_servers": warm["fork_servers"]},
        sys.stdout,
    )
