"""`aotlm bench engine`: how fast a model runs in this process, without a server.

Drives the engine's own `step`, so scheduling and sampling are in the figures.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aotlm.errors import RequestError
from aotlm.request import GenerationConfig, Request, TokenOutput

if TYPE_CHECKING:
    from aotlm.engine.engine import Engine

_EXAMPLES = """\
examples:
  aotlm bench engine smollm2-135m
  aotlm bench engine ./model --prompt-tokens 512 --new-tokens 128 --batch 8 --json
  aotlm bench engine ./model --context 2048     decode with 2,048 tokens in the cache
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """`context`: tokens in the cache of each sequence when the measured decoding begins."""

    prompt_tokens: int
    new_tokens: int
    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """Tokens per second over the whole batch; `ttft_s` is the mean time to a first token."""

    prefill_tok_s: float
    decode_tok_s: float
    ttft_s: float


def main(argv: Sequence[str]) -> int:
    """Run `aotlm bench engine ARGV...` and return the exit code. Raises AotlmError."""
    arguments = _parser().parse_args(argv)
    from aotlm.artifact import find_model, read_manifest
    from aotlm.config import EngineConfig
    from aotlm.engine.loading import load_engine

    path = find_model(arguments.model)
    workload = Workload(
        arguments.prompt_tokens,
        arguments.new_tokens,
        arguments.batch,
        arguments.context or arguments.prompt_tokens,
    )
    limits = read_manifest(path).limits
    pages = _longest(workload, limits.prefill_chunk) // limits.page_size + 1
    begin = time.perf_counter()
    engine = load_engine(
        EngineConfig(
            artifact=path,
            max_batch_size=workload.batch,
            cache_tokens=workload.batch * pages * limits.page_size,
            threads=arguments.threads,
            busy_prefill_tokens=limits.prefill_chunk,  # so that all sequences start early
        )
    )
    load_s = time.perf_counter() - begin
    measured = measure(engine, workload, arguments.repeat)
    report = {
        "model": Path(path).resolve().name,
        **asdict(workload),
        "repeat": arguments.repeat,
        "load_s": round(load_s, 3),
        **{key: round(value, 4) for key, value in asdict(measured).items()},
        "peak_rss_mb": round(peak_rss_mb(), 1),
    }
    print(json.dumps(report) if arguments.json else _human(report))
    return 0


def measure(engine: Engine, workload: Workload, repeat: int) -> Measurement:
    """The median of `repeat` runs, after one that is not counted.

    Raises RequestError when the workload does not fit the engine.
    """
    _check_fits(engine, workload)
    bench = _Bench(engine)
    bench.run(replace(workload, new_tokens=min(workload.new_tokens, 4)))  # touches all memory
    runs = [bench.run(workload) for _ in range(repeat)]
    return Measurement(
        *(
            statistics.median(getattr(run, name) for run in runs)
            for name in ("prefill_tok_s", "decode_tok_s", "ttft_s")
        )
    )


def peak_rss_mb() -> float:
    """The most memory this process has held, in 10^6 bytes."""
    try:  # ru_maxrss survives exec: it may be that of the shell's other child
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class _Bench:
    """Sends random prompts through the engine and watches the clock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = random.Random(0)
        self._count = 0

    def run(self, workload: Workload) -> Measurement:
        prefill_tok_s, ttft_s = self._prefill(workload)
        return Measurement(prefill_tok_s, self._decode(workload), ttft_s)

    def _prefill(self, workload: Workload) -> tuple[float, float]:
        """Prompt tokens per second, and the mean time to a first token in seconds."""
        names = self._add(workload.batch, workload.prompt_tokens, max_tokens=1)
        begin = time.perf_counter()
        first: dict[str, float] = {}
        while len(first) < len(names):
            for name in self._step():
                first.setdefault(name, time.perf_counter() - begin)
        tokens = workload.batch * workload.prompt_tokens
        return tokens / max(first.values()), statistics.mean(first.values())

    def _decode(self, workload: Workload) -> float:
        """Tokens per second from when every sequence has its context and a first token."""
        names = self._add(workload.batch, workload.context, max_tokens=None)
        started: set[str] = set()
        while len(started) < len(names):
            started.update(self._step())
        begin = time.perf_counter()
        count = sum(len(self._step()) for _ in range(workload.new_tokens))
        seconds = time.perf_counter() - begin
        for name in names:
            self._engine.abort(name)
        return count / seconds

    def _add(self, batch: int, prompt_tokens: int, max_tokens: int | None) -> list[str]:
        config = GenerationConfig(temperature=0.0, max_tokens=max_tokens)
        names = [f"bench-{self._count + index}" for index in range(batch)]
        self._count += batch
        for name in names:
            prompt = self._random.choices(range(self._engine.vocab_size), k=prompt_tokens)
            self._engine.add(Request(name, tuple(prompt), config))
        return names

    def _step(self) -> list[str]:
        """One step; whose each token was. Raises what a request failed with."""
        results = self._engine.step()
        for result in results:
            if not isinstance(result, TokenOutput):
                raise result.error
        return [result.request_id for result in results]


def _longest(workload: Workload, prefill_chunk: int) -> int:
    """Tokens that the longest sequence comes to; the first one decodes while others prefill."""
    waiting = math.ceil((workload.batch - 1) * workload.context / prefill_chunk)
    return max(workload.prompt_tokens + 1, workload.context + waiting + workload.new_tokens + 2)


def _check_fits(engine: Engine, workload: Workload) -> None:
    longest = _longest(workload, engine.limits.prefill_chunk)
    if longest > engine.limits.context_window:
        raise RequestError(
            f"{longest} tokens are needed and the context window holds "
            f"{engine.limits.context_window}: lower --prompt-tokens, --context or --new-tokens"
        )


def _human(report: dict[str, object]) -> str:
    return "\n".join(
        [
            f"{report['model']}: batch {report['batch']}, median of {report['repeat']}",
            f"  prefill   {report['prefill_tok_s']:>10.1f} tokens/s"
            f"  ({report['prompt_tokens']} tokens a prompt)",
            f"  decode    {report['decode_tok_s']:>10.1f} tokens/s"
            f"  ({report['new_tokens']} tokens after {report['context']})",
            f"  first     {float(str(report['ttft_s'])) * 1e3:>10.1f} ms",
            f"  memory    {report['peak_rss_mb']:>10.1f} MB at the most",
            f"  load      {report['load_s']:>10.2f} s",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aotlm bench engine",
        description="Measure a compiled model in this process: prefill, decode, memory.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a compiled model: its folder, the folder's name or its own"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=_number,
        default=512,
        metavar="N",
        help="tokens of each prompt (default 512)",
    )
    parser.add_argument(
        "--new-tokens",
        type=_number,
        default=128,
        metavar="N",
        help="tokens generated for each (default 128)",
    )
    parser.add_argument(
        "--batch", type=_number, default=1, metavar="N", help="sequences at once (default 1)"
    )
    parser.add_argument(
        "--context",
        type=_number,
        metavar="N",
        help="tokens in the cache when decoding is measured (default: the prompt)",
    )
    parser.add_argument("--repeat", type=_number, default=3, metavar="N", help="runs (default 3)")
    parser.add_argument("--threads", type=_number, metavar="N", help="default: all cores")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
