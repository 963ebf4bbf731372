"""Fixtures of the end-to-end tests: the real model, compiled, and a server that serves it.

Everything here is a process of its own and needs the package installed (`make test` does that):
the tests see what a user sees.

Two major versions of the openai SDK must work. 2.x is in the environment; 3.x lies in
`<environment>/openai3`, or where AOTLM_TEST_OPENAI3 says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server_process import MODEL, ServerProcess, run_aotlm


@pytest.fixture(scope="session")
def compiled_model() -> str:
    """The name of the default model, its artifact made in the place where users have it."""
    result = run_aotlm("compile", MODEL, timeout=600)
    assert result.returncode == 0, result.stderr
    return MODEL


@pytest.fixture(scope="session")
def server(
    compiled_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """One server for all tests that only ask it something."""
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with ServerProcess(log, model=compiled_model) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(params=["2", "3"], ids=["openai2", "openai3"])
def sdk(request: pytest.FixtureRequest) -> tuple[str, str]:
    """(major version, PYTHONPATH to find it) of each openai SDK."""
    major = str(request.param)
    if major == "2":
        return major, ""
    folder = Path(os.environ.get("AOTLM_TEST_OPENAI3", Path(sys.prefix) / "openai3"))
    assert (folder / "openai").is_dir(), f"no openai 3.x in {folder}; `make test` puts it there"
    return major, str(folder)
