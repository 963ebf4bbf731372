"""`aotlm bench http`: load on any OpenAI-compatible server, measured from the client's side.

Tokens are counted by the server's usage where it gives one (`stream_options.include_usage`),
else one for each chunk with text. A stream counts as broken when it ends without a finish
reason or without `[DONE]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aotlm_server.flag_types import http_url, positive

if TYPE_CHECKING:
    import aiohttp

_EXAMPLES = """\
examples:
  aotlm bench http --base-url http://127.0.0.1:8000/v1 --concurrency 8 --requests 32
  aotlm bench http --base-url http://127.0.0.1:8000/v1 --model m --max-tokens 96 --json
"""

# Common words: about one token each in every tokenizer, so a prompt's length can be aimed at.
_WORDS = (
    "time year people way day man thing woman life child world school state family student "
    "group country problem hand part place case week company system program question work "
    "government number night point home water room mother area money story fact month lot "
    "right study book eye job word business issue side kind head house service friend father"
)


@dataclass(slots=True)
class StreamResult:
    """One request: times in seconds on one clock, tokens as counted by the server."""

    start: float
    text_times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None
    broken: bool = False


def make_prompt(tokens: int, seed: int) -> str:
    """About `tokens` tokens of words, another text for another seed."""
    chooser = random.Random(seed)
    words = _WORDS.split()
    chosen = [chooser.choice(words) for _ in range(max(tokens - 5, 1))]
    return "Continue this list of words: " + " ".join(chosen)


async def request_stream(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]
) -> StreamResult:
    """Send one streaming chat request and time its events; errors are in the result."""
    import aiohttp

    from aotlm_server.sse import DONE, read_events

    result = StreamResult(time.perf_counter())
    finished = done = False
    try:
        async with session.post(url, json=body, headers=headers) as response:
            if response.status != 200:
                result.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                return result
            async for data in read_events(response.content):
                if data == DONE:
                    done = True
                    break
                event = json.loads(data)
                if "error" in event:
                    result.error = str(event["error"])[:200]
                    continue
                finished |= _read_chunk(event, result)
    except (aiohttp.ClientError, ValueError, KeyError, OSError, TimeoutError) as error:
        result.error = f"{type(error).__name__}: {error}"
    result.broken = not (finished and done)
    if not result.completion_tokens:
        result.completion_tokens = len(result.text_times)
    return result


def _read_chunk(event: dict[str, Any], result: StreamResult) -> bool:
    """Note what a chunk carries; True when it carries a finish reason."""
    finished = False
    for choice in event.get("choices") or ():
        if choice["delta"].get("content"):
            result.text_times.append(time.perf_counter())
        finished |= choice.get("finish_reason") is not None
    usage = event.get("usage")
    if usage:
        result.prompt_tokens = usage["prompt_tokens"]
        result.completion_tokens = usage["completion_tokens"]
    return finished


async def run_load(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keep `concurrency` requests under way until all are done; returns the summary."""
    import aiohttp

    url = arguments.base_url + "/chat/completions"
    headers = {"Authorization": f"Bearer {arguments.api_key}"} if arguments.api_key else {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=arguments.timeout)
    numbers = iter(range(arguments.requests))
    results: list[StreamResult] = []

    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def worker() -> None:
            for number in numbers:
                body = _body(arguments, number)
                results.append(await request_stream(session, url, body, headers))

        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(arguments.concurrency)))
        wall_s = time.perf_counter() - start
    return summarize(results, wall_s)


def _body(arguments: argparse.Namespace, number: int) -> dict[str, Any]:
    prompt = make_prompt(arguments.prompt_tokens, arguments.seed + number)
    return {
        "model": arguments.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": arguments.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if arguments.ignore_eos else {}),
    }


def summarize(results: Sequence[StreamResult], wall_s: float) -> dict[str, Any]:
    """Numbers over all requests; times are in milliseconds, absent ones null."""
    good = [result for result in results if result.error is None and result.text_times]
    first = [result.text_times[0] - result.start for result in good]
    gaps = [
        later - earlier
        for result in good
        for earlier, later in zip(result.text_times, result.text_times[1:], strict=False)
    ]
    errors = [result.error for result in results if result.error is not None]
    output = sum(result.completion_tokens for result in results)
    return {
        "requests": len(results),
        "errors": len(errors),
        "broken_streams": sum(result.broken for result in results),
        "wall_s": round(wall_s, 3),
        "prompt_tokens": sum(result.prompt_tokens for result in results),
        "output_tokens": output,
        "output_tok_s": round(output / wall_s, 1),
        "ttft_p50_ms": _percentile_ms(first, 50),
        "ttft_p95_ms": _percentile_ms(first, 95),
        "itl_p50_ms": _percentile_ms(gaps, 50),
        "itl_p95_ms": _percentile_ms(gaps, 95),
        "first_error": errors[0] if errors else None,
    }


def _percentile_ms(values: Sequence[float], percent: int) -> float | None:
    """The nearest-rank percentile of seconds, in milliseconds."""
    if not values:
        return None
    rank = -(-len(values) * percent // 100)  # rounded up
    return round(sorted(values)[rank - 1] * 1000, 2)


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(
        prog="aotlm bench http",
        description="Measure an OpenAI-compatible server with streaming chat requests.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag = parser.add_argument
    url = "http://127.0.0.1:8000/v1"
    flag("--base-url", type=http_url, default=url, metavar="URL", help=f"of the server ({url})")
    flag("--model", default="default", metavar="NAME", help="as the server names it (default)")

    def number(name: str, default: int, about: str) -> None:
        flag(name, type=positive, default=default, metavar="N", help=f"{about} ({default})")

    number("--concurrency", 8, "requests under way at once")
    number("--requests", 8, "requests in all")
    number("--max-tokens", 96, "output tokens a request")
    number("--prompt-tokens", 60, "about this many tokens a prompt")
    flag(
        "--ignore-eos",
        action="store_true",
        help="always max-tokens; not every server knows it (off)",
    )
    flag("--seed", type=int, default=0, metavar="N", help="another one, other prompts (0)")
    flag(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds of silence that are an error (120)",
    )
    flag("--api-key", metavar="KEY", help="sent as Authorization: Bearer KEY (none)")
    flag("--json", action="store_true", help="one JSON object on stdout, not a table (off)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `aotlm bench http`. Exit code 1 when a request failed."""
    arguments = parser().parse_args(argv)
    try:
        summary = asyncio.run(run_load(arguments))
    except KeyboardInterrupt:
        return 130
    if arguments.json:
        print(json.dumps(summary))
    else:
        for name, value in summary.items():
            print(f"{name:>15}  {'-' if value is None else value}")
    failed = summary["errors"] or summary["broken_streams"]
    if failed and not arguments.json:
        print(f"error: {summary['first_error'] or 'a stream was broken'}", file=sys.stderr)
    return 1 if failed else 0
