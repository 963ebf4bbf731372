"""`aotlm chat` from a pipe, and the keys that `aotlm bench` promises."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.server_process import ServerProcess, run_aotlm


def bench(*arguments: str) -> dict[str, Any]:
    """Run `aotlm bench ... --json` and read what it prints."""
    result = run_aotlm("bench", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_chat_from_a_pipe(compiled_model: str) -> None:
    result = run_aotlm(
        "chat", compiled_model, "--temperature", "0", stdin="What is the capital of France?\n"
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert "\x1b" not in result.stdout  # no terminal, no colours


def test_bench_engine_reports_the_promised_keys(compiled_model: str) -> None:
    sizes = ("--prompt-tokens", "64", "--new-tokens", "16", "--batch", "1")
    report = bench("engine", compiled_model, *sizes)
    for key in ("prefill_tok_s", "decode_tok_s", "ttft_s", "peak_rss_mb"):
        assert report[key] > 0, key


def test_bench_http_reports_the_promised_keys(server: ServerProcess, compiled_model: str) -> None:
    target = ("--base-url", f"{server.url}/v1", "--model", compiled_model)
    load = ("--concurrency", "2", "--requests", "3", "--max-tokens", "8", "--prompt-tokens", "20")
    report = bench("http", *target, *load)
    assert report["errors"] == 0
    assert report["broken_streams"] == 0
    assert report["output_tok_s"] > 0
    for key in ("ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms"):
        assert report[key] >= 0, key
