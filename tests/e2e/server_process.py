"""`aotlm serve` as a process of its own, the way a user starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
AOTLM = str(Path(sys.executable).with_name("aotlm"))
MODEL = "smollm2-135m"


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without settings of aotlm that the developer may have made."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AOTLM_", "TVM_"))}
    return kept | extra


def run_aotlm(
    *arguments: str, stdin: str = "", timeout: float = 100, cwd: Path = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    """Run `aotlm ARGUMENTS` to its end, as from a pipe: no terminal on any side."""
    return subprocess.run(
        [AOTLM, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env=clean_environment(),
        check=False,
    )


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """A running server; leaving the context ends it, by force if it must be."""

    def __init__(self, log: Path, *arguments: str, model: str = MODEL) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.started = time.monotonic()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    AOTLM,
                    "serve",
                    model,
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(self.port),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env=clean_environment(),
            )

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def get(self, path: str, timeout: float = 30) -> tuple[int, Any]:
        """GET a JSON document: (status, body); error statuses do not raise."""
        return self._open(urllib.request.Request(self.url + path), timeout)

    def post(self, path: str, body: Any, timeout: float = 60) -> tuple[int, Any]:
        """POST a JSON document: (status, body); error statuses do not raise."""
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        return self._open(urllib.request.Request(self.url + path, data, headers), timeout)

    def _open(self, request: urllib.request.Request, timeout: float) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_until_ready(self, timeout: float = 60) -> None:
        """Return when /health says 200; fail with the server's log when it ends or never does."""
        while time.monotonic() - self.started < timeout:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/health", timeout=5)[0] == 200:
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass  # not listening yet
            time.sleep(0.02)
        raise AssertionError(f"the server did not become ready:\n{self.output()}")

    def output(self) -> str:
        """What the server has printed up to now."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def resident_mb(self) -> float:
        """Resident memory of the process in MB (10^6 bytes)."""
        report = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(report.stdout) * 1024 / 1e6

    def terminate(self, timeout: float = 30) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)
