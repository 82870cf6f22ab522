"""Kubeflow Trainer's status server, on loopback: HTTPS with a CA of its own, and a token.

As its documents and its source have it (pkg/statusserver): 200 with the payload, 403 for another
token, 422 for a payload that the TrainJob's schema refuses, 404 where the TrainJob is gone.
"""

import datetime
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/run1/status"
Answer = tuple[int, dict[str, str]]
_DAY = datetime.timedelta(days=1)


class KubeflowServer:
    """Listens from the start; ``close`` it."""

    def __init__(self, folder: Path) -> None:
        """Write the files that the variables name.

        Args:
            folder: where Kubeflow mounts them.
        """
        self.ca_file, self.token_file = folder / "ca.crt", folder / "token"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_certificate(folder, self.ca_file))
        self.token = ""
        self.rotate("token-1")
        self.received: list[tuple[float, dict[str, Any]]] = []
        """Time and ``trainerStatus`` of each request that was taken."""
        self.refused: list[int] = []
        """The status of the others."""
        self.next_answers: list[Answer] = []
        """Of the next requests, instead of what the server would answer."""
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        """As ``KUBEFLOW_TRAINER_SERVER_URL`` has it."""
        return f"https://localhost:{self._server.server_address[1]}{PATH}"

    def environ(self) -> dict[str, str]:
        """Return the variables that Kubeflow injects."""
        return {
            "KUBEFLOW_TRAINER_SERVER_URL": self.url,
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(self.ca_file),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token_file),
        }

    def rotate(self, token: str) -> None:
        """Replace the token, as the kubelet does: the file and what the server accepts."""
        self.token = token
        self.token_file.with_suffix(".new").write_text(f"{token}\n")
        self.token_file.with_suffix(".new").replace(self.token_file)

    def await_requests(self, is_enough: Callable[[], bool]) -> None:
        """Wait until the server has what a test needs."""
        deadline = time.monotonic() + 60
        while not is_enough():
            assert time.monotonic() < deadline, (self.received, self.refused)
            time.sleep(0.01)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str, authorization: str, body: bytes) -> Answer:
        if self.next_answers:
            return self.next_answers.pop(0)
        if path != PATH:
            return 404, {}
        if authorization != f"Bearer {self.token}":
            return 403, {}
        status = json.loads(body)["trainerStatus"]
        if problem(status):
            return 422, {}
        self.received.append((time.monotonic(), status))
        return 200, {}

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert len(body) <= 1 << 16  # maxBodySize
                given = self.headers.get("Authorization", "")
                status, headers = server._answer(self.path, given, body)
                if status != 200:
                    server.refused.append(status)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def do_GET(self) -> None:
                server.refused.append(405)
                self.send_error(405)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _certificate(folder: Path, ca_file: Path) -> Path:
    """Write a certificate for localhost that is its own CA, and a file with its key; return it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubeflow-trainer")])
    now = datetime.datetime.now()
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - _DAY, now + _DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ca_file.write_bytes(made.public_bytes(pem))
    path = folder / "server.pem"
    path.write_bytes(ca_file.read_bytes() + key.private_bytes(pem, form, secret))
    return path


def problem(status: dict[str, Any]) -> str:
    """Return what the schema of ``TrainerStatus`` refuses; empty: nothing."""
    known = {"lastUpdatedTime", "metrics", "progressPercentage", "estimatedRemainingSeconds"}
    if status.keys() - known or "lastUpdatedTime" not in status:
        return "fields"
    at = datetime.datetime.fromisoformat(status["lastUpdatedTime"].replace("Z", "+00:00"))
    if at.tzinfo is None:
        return "lastUpdatedTime"
    percentage, left_s = (
        status.get(name, 0) for name in ("progressPercentage", "estimatedRemainingSeconds")
    )
    if type(percentage) is not int or not 0 <= percentage <= 100:
        return "progressPercentage"
    if type(left_s) is not int or not 0 <= left_s < 1 << 31:
        return "estimatedRemainingSeconds"
    metrics = status.get("metrics", [])
    values = [value for metric in metrics for value in metric.values()]
    if len(metrics) > 256 or any(metric.keys() != {"name", "value"} for metric in metrics):
        return "metrics"
    if not all(isinstance(value, str) and 1 <= len(value) <= 64 for value in values):
        return "metrics"
    return ""
