"""What the README shows is what works: its code runs here as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.e2e.server_process import REPOSITORY, ServerProcess, clean_environment

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
SERVED_AT = "http://127.0.0.1:8000"


def python_block(word: str) -> str:
    """The README's one Python block that contains `word`."""
    [block] = [b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if word in b]
    return str(block)


def run_python(code: str) -> str:
    """Run code in a process of its own, in the repository; returns what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=REPOSITORY,
        env=clean_environment(),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_sdk_call(server: ServerProcess) -> None:
    code = python_block("OpenAI(")
    assert SERVED_AT in code
    assert "Paris" in run_python(code.replace(SERVED_AT, server.url))


def test_curl_call(server: ServerProcess) -> None:
    [body] = re.findall(rf"curl {SERVED_AT}/v1/chat/completions .* -d '(.*?)'", README, re.DOTALL)
    status, answer = server.post("/v1/chat/completions", json.loads(body))
    assert status == 200, answer
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_library_call(compiled_model: str) -> None:
    assert compiled_model in python_block("LLM(")
    assert "Paris" in run_python(python_block("LLM("))


def test_relative_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^):]+)\)", README)
    assert links
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
