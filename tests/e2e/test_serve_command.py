"""`aotlm serve` as a process: start, memory, stop, and the ways it can go wrong."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from tests.e2e.server_process import ServerProcess, run_aotlm

# The target is 2 s on an idle machine; tests share theirs with others.
FIRST_TOKEN_LIMIT_S = 10.0
RESIDENT_LIMIT_MB = 400.0


def test_first_token_memory_and_end(compiled_model: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "log.txt", model=compiled_model) as server:
        server.wait_until_ready()
        body = {
            "model": compiled_model,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "max_tokens": 1,
        }
        status, answer = server.post("/v1/chat/completions", body)
        first_token_s = time.monotonic() - server.started
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] == 1
        assert first_token_s < FIRST_TOKEN_LIMIT_S
        assert server.resident_mb() < RESIDENT_LIMIT_MB
        assert server.terminate() == 0
        assert "Traceback" not in server.output()


def test_port_in_use_is_one_clear_line(compiled_model: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run_aotlm("serve", compiled_model, "--host", "127.0.0.1", "--port", str(port))
    assert result.returncode != 0
    lines = result.stderr.strip().splitlines()
    assert str(port) in lines[-1]
    assert "in use" in lines[-1]
    assert "Traceback" not in result.stderr


def test_unknown_model_is_one_clear_line() -> None:
    result = run_aotlm("serve", "no-such-model")
    assert result.returncode != 0
    assert "no-such-model" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_lists_the_commands() -> None:
    result = run_aotlm("--help")
    assert result.returncode == 0
    for command in ("compile", "serve", "chat", "bench", "artifacts", "devices"):
        assert command in result.stdout
