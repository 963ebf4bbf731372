"""The official openai SDK, in every major version that is installed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.server.live_server import LiveServer

# 2.x is in the environment; `make` puts 3.x beside it (the two cannot share one).
_BESIDE = Path(os.environ.get("AOTLM_TEST_OPENAI3", Path(sys.prefix) / "openai3"))
_PLACES = {"2": None} | ({"3": _BESIDE} if (_BESIDE / "openai").is_dir() else {})


@pytest.mark.parametrize("major", _PLACES)
async def test_sdk(live: LiveServer, major: str) -> None:
    place = _PLACES[major]
    path = os.pathsep.join(filter(None, [str(place or ""), os.environ.get("PYTHONPATH", "")]))
    script = Path(__file__).with_name("sdk_script.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), live.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["sdk"].split(".")[0] == major
