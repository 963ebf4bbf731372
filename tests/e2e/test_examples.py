"""Each file of examples/ runs as its docstring says, against the real model."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.server_process import REPOSITORY, ServerProcess, clean_environment, run_aotlm

EXAMPLES = REPOSITORY / "examples"
QUESTION = "What is the capital of France?"


def run_example(name: str, *arguments: str) -> str:
    """What the example prints."""
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        env=clean_environment(),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_example_is_run_here() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"chat_with_openai_sdk.py", "generate_in_process.py"}


def test_chat_with_openai_sdk(server: ServerProcess) -> None:
    answer = run_example("chat_with_openai_sdk.py", QUESTION, "--base-url", f"{server.url}/v1")
    assert "Paris" in answer


def test_generate_in_process(compiled_model: str) -> None:
    artifact = run_aotlm("compile", compiled_model).stdout.splitlines()[-1]
    assert "Paris" in run_example("generate_in_process.py", artifact, QUESTION)
