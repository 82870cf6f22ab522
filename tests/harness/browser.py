"""A page in headless Chromium, driven by the DevTools protocol over a small WebSocket client."""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_TEXT, _CLOSE, _PING = 1, 8, 9


class Page:
    """One page; commands are sent and their answers awaited, one at a time."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        found = re.fullmatch(r"ws://([^:/]+):(\d+)(/.*)", url)
        assert found is not None, url
        host, port, path = found.groups()
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._stream = self._socket.makefile("rb")
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
        ]
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        assert b" 101 " in self._stream.readline()
        while self._stream.readline().strip():
            pass
        self._number = 0
        self.events: list[dict[str, Any]] = []
        """What the browser has reported, in order."""

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its result."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": parameters})
        while (message := self._receive()).get("id") != self._number:
            self.events.append(message)
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def wait(self, method: str) -> dict[str, Any]:
        """Wait for an event that was not waited for before; return its parameters."""
        seen = next((one for one in self.events if one["method"] == method), None)
        while seen is None:
            message = self._receive()
            self.events.append(message)
            seen = message if message["method"] == method else None
        seen["method"] += " (seen)"
        found: dict[str, Any] = seen["params"]
        return found

    def run(self, script: str) -> Any:
        """Return the value of an expression of JavaScript, of a promise too."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        head = struct.pack("!BBH", 0x80 | _TEXT, 0x80 | 126, len(data))
        assert len(data) < 1 << 16
        mask = b"\0\0\0\0"
        self._socket.sendall(head + mask + data)

    def _receive(self) -> dict[str, Any]:
        data = b""
        while True:
            first, size = struct.unpack("!BB", self._stream.read(2))
            if size == 126:
                (size,) = struct.unpack("!H", self._stream.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._stream.read(8))
            part = self._stream.read(size)
            assert first & 15 != _CLOSE
            if first & 15 == _PING:
                continue
            data += part
            if first & 0x80:
                message: dict[str, Any] = json.loads(data)
                return message


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with its profile in a folder; yield its page."""
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run"),
        *("--disable-background-networking", "--disable-dev-shm-usage", "about:blank"),
    ]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        url = next(found[1] for line in process.stderr if (found := re.search(r"(ws://\S+)", line)))
        root = Page(url)
        targets = root.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        page = Page(url.partition("/devtools/")[0] + f"/devtools/page/{target}")
        yield page
        page.close()
        root.call("Browser.close")
        root.close()
        process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
