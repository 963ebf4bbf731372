"""The access log: one line a request, whatever a client puts into the path."""

from __future__ import annotations

import json
import logging

import pytest
from yarl import URL

from aotlm_server.middleware.access_log import JsonFormatter, printable, set_up_logging
from tests.server.live_server import LiveServer

_NASTY = "/x%0A12:00:00%20GET%20/forged%1B[31m%00%7F%C2%9B%E2%80%A8%5Cn"


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_a_path_cannot_forge_a_line(
    live: LiveServer, capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    set_up_logging(log_format)
    async with live.session.get(URL(live.root + _NASTY, encoded=True)) as response:
        assert response.status == 404
    (line,) = capsys.readouterr().err.splitlines()  # which also splits at U+2028
    assert line.isprintable()
    text = json.loads(line)["message"] if log_format == "json" else line
    assert text.isprintable()
    assert r"/x\n12:00:00 GET /forged\x1b[31m\x00\x7f\x9b\u2028\\n 404 " in text


def test_ordinary_text_stays_readable() -> None:
    assert printable("/v1/models/héllo 東京 👩") == "/v1/models/héllo 東京 👩"
    assert printable("\ud800") == r"\ud800"


def test_json_log_is_one_object_a_line() -> None:
    record = logging.LogRecord("aotlm", logging.INFO, "", 0, 'a\n"b"\x1b', None, None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == 'a\n"b"\x1b'
