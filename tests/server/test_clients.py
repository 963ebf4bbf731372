"""`aotlm chat` and `aotlm bench http` against a live server."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from aotlm_server import bench, chat
from aotlm_server.bench import StreamResult, make_prompt, parser, run_load, summarize
from tests.server.live_server import LiveServer, eventually

_MAIN = "import sys; from aotlm_server.chat import main; sys.exit(main())"


async def _chat(live: LiveServer, stdin: str | bytes, *flags: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MAIN, "--base-url", live.url, *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin.encode() if isinstance(stdin, str) else stdin)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def _prompts(live: LiveServer) -> list[str]:
    """What the engine was asked, special tokens left out."""
    return [live.tokenizer.decode(request.prompt_ids) for request in live.engine.requests]


async def test_chat_one_turn_a_line(live: LiveServer) -> None:
    live.play("héllo 👩")
    flags = ("--system", "Be brief.", "--temperature", "0")
    code, out, err = await _chat(live, "one\n\ntwo\n/reset\nthree\n/exit\nfour\n", *flags)
    assert (code, err) == (0, "")
    assert out == "héllo 👩\n" * 3
    first, second, third = _prompts(live)
    assert first == "system\nBe brief.\nuser\none\nassistant\n"
    assert second == first + "héllo 👩\nuser\ntwo\nassistant\n"
    assert third == "system\nBe brief.\nuser\nthree\nassistant\n"
    assert all(request.config.temperature == 0 for request in live.engine.requests)


async def test_chat_commands(live: LiveServer) -> None:
    code, out, err = await _chat(live, "/help\n/system Speak up.\nx\n/system\ny\n/nope\n")
    assert code == 0
    assert "/reset" in out
    assert "unknown command /nope" in err
    assert _prompts(live) == ["system\nSpeak up.\nuser\nx\nassistant\n", "user\ny\nassistant\n"]


async def test_chat_shows_errors_and_goes_on(live: LiveServer) -> None:
    code, out, err = await _chat(live, "refuse me\nok\n", "--model", "scripted")
    assert code == 1
    assert "the template refuses" in err
    assert "Traceback" not in err
    assert out == "Hello there, friend.\n"
    assert _prompts(live) == ["user\nok\nassistant\n"]


async def test_ctrl_c_stops_the_answer_not_the_program(live: LiveServer) -> None:
    live.play("Hello there, friend.", stall_after=2)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MAIN, "--base-url", live.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\n")
    shown = await process.stdout.readuntil(b"Hello there")
    process.send_signal(signal.SIGINT)
    shown += await process.stdout.readline()
    assert shown == b"Hello there [stopped]\n"
    await eventually(lambda: not live.engine.running)
    live.play("fine")
    out, err = await process.communicate(b"two\n")
    assert (process.returncode, out, err) == (0, b"fine\n", b"")
    assert _prompts(live)[1] == "user\none\nassistant\nHello there\nuser\ntwo\nassistant\n"


async def test_chat_without_a_server(live: LiveServer) -> None:
    process_url = live.url.replace(live.url.split(":")[2].split("/")[0], "9")
    live.url = process_url
    code, _, err = await _chat(live, "hi\n")
    assert code == 1
    assert err.startswith("error: no answer from http://127.0.0.1:9/v1")
    assert err.count("\n") == 1


async def test_chat_input_must_be_utf8(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for locale in ("C", "C.UTF-8"):
        monkeypatch.setenv("LC_ALL", locale)
        code, out, err = await _chat(live, b"caf\xe9\n")
        assert (code, out) == (1, "")
        assert err == "error: the input is not UTF-8 text: it has a byte 0xe9\n"


async def test_chat_max_tokens(live: LiveServer) -> None:
    assert (await _chat(live, "hi\n", "--max-tokens", "7"))[0] == 0
    assert [request.config.max_tokens for request in live.engine.requests] == [7]


@pytest.mark.parametrize("main", [chat.main, bench.main])
def test_a_url_without_its_scheme(
    capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--base-url", "127.0.0.1:8123"])
    assert caught.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "'127.0.0.1:8123' must begin with http:// or https://" in line


@pytest.mark.parametrize("parser", [chat.parser(), bench.parser()])
def test_help_describes_every_flag(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        assert action.help
        if action.option_strings and action.dest != "help":
            assert action.help.endswith(")")  # its default
        assert not action.type or action.metavar
    assert "With neither" in chat.parser().format_help()


async def _bench(live: LiveServer, *flags: str) -> dict[str, Any]:
    return await run_load(
        parser().parse_args(["--base-url", live.url, "--prompt-tokens", "12", *flags])
    )


async def test_bench_counts_tokens(live: LiveServer) -> None:
    live.play("Hello there, friend. " * 3, delay_s=0.002)
    summary = await _bench(live, "--requests", "5", "--concurrency", "2", "--max-tokens", "9")
    assert summary["requests"] == 5
    assert summary["errors"] == summary["broken_streams"] == 0
    assert summary["output_tokens"] == 45
    assert summary["output_tok_s"] > 0
    assert summary["prompt_tokens"] == sum(len(r.prompt_ids) for r in live.engine.requests)
    for key in ("ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms"):
        assert summary[key] > 0
    assert len({request.prompt_ids for request in live.engine.requests}) == 5
    json.dumps(summary)


async def test_bench_tells_errors_from_broken_streams(live: LiveServer) -> None:
    summary = await _bench(live, "--requests", "2", "--model", "gpt-9")
    assert summary["errors"] == 2
    assert "404" in summary["first_error"]
    live.play("Hello there, friend.", fail_after=2)
    summary = await _bench(live, "--requests", "2")
    assert summary["errors"] == summary["broken_streams"] == 2


def test_bench_percentiles() -> None:
    results = [StreamResult(0.0, [float(i), i + 0.5], 1, 2) for i in range(1, 21)]
    summary = summarize(results, wall_s=4.0)
    assert summary["output_tok_s"] == 10.0
    assert summary["ttft_p50_ms"] == 10_000
    assert summary["ttft_p95_ms"] == 19_000
    assert summary["itl_p50_ms"] == 500


def test_bench_prompts_differ_and_have_the_length() -> None:
    assert make_prompt(60, 1) != make_prompt(60, 2)
    assert len(make_prompt(60, 1).split()) == 60
