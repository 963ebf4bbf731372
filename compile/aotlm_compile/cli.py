"""`aotlm compile`: the command line of the compiler."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from aotlm.artifact import build_root
from aotlm.errors import AotlmError

from .driver import compile_artifact
from .listing import list_text, plan_text
from .plan import MAX_BATCH, MAX_CONTEXT, MAX_PREFILL_CHUNK, MIN_CONTEXT, Flags, make_plan
from .progress import make_display
from .reuse import up_to_date

_DESCRIPTION = """\
Compile a language model ahead of time into an artifact: a folder with a native library,
packed weights and the tokenizer, ready to be served.

MODEL is the name of a recipe (see --list), a GGUF file, or a Hugging Face folder with
safetensors weights. An artifact that is up to date is reused. The last line on stdout is the
artifact's path; everything else goes to stderr."""

_EXAMPLES = """\
examples:
  aotlm compile smollm2-135m
  aotlm compile ./model.Q4_1.gguf --context-window 4096
  aotlm compile ./TinyLlama-1.1B --quantization q4f32_1 -o ./tinyllama
  aotlm compile smollm2-135m --target cpu:plain     a library for any CPU of this kind
  aotlm compile ./model.gguf --dry-run              say what would be compiled
  aotlm compile --list                              recipes, artifacts, quantizations, targets
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aotlm compile`. 0: the artifact is there; 1: one line on stderr says why not."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.model is None and not arguments.list:
        parser.error("name a MODEL, or ask for --list")
    previous = signal.signal(signal.SIGTERM, _terminate)  # so that what is half-written goes
    try:
        return _run(arguments)
    except AotlmError as error:
        print(f"aotlm compile: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise  # whoever read our output left: `aotlm` ends without a word
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"aotlm compile: {place}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("aotlm compile: interrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(arguments: argparse.Namespace) -> int:
    root = build_root()
    if arguments.list:
        print(list_text(root))
        return 0
    flags = Flags(
        model=arguments.model,
        quantization=arguments.quantization,
        target=arguments.target,
        output=arguments.output,
        context_window=arguments.context_window,
        prefill_chunk=arguments.prefill_chunk,
        max_batch_size=arguments.max_batch_size,
        opt_level=arguments.opt,
    )
    plan, checkpoint = make_plan(flags, root)
    if arguments.dry_run:
        reused = not arguments.force and up_to_date(Path(plan.output), plan)
        print(plan_text(plan, checkpoint, reused))
        return 0
    display = make_display(arguments.progress, sys.stderr)
    finished = compile_artifact(
        plan,
        display,
        force=arguments.force,
        verbose=arguments.verbose,
        notify=_notify,
    )
    display.show(finished)
    if finished.reused and arguments.progress != "json":
        _notify("up to date, reused (--force compiles it again)")
    print(finished.path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aotlm compile",
        usage="aotlm compile MODEL [options]\n       aotlm compile --list",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="recipe, GGUF file or folder")
    parser.add_argument(
        "--quantization",
        metavar="Q",
        help="how weights are stored; default: the recipe's, else gguf (as in the file) for GGUF "
        "and q4f32_1 for safetensors",
    )
    parser.add_argument(
        "--target", metavar="T", default="cpu", help="device; default: cpu, the best level here"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        help="folder of the artifact; default: model_libs/build/<model>-<quantization>-<target>",
    )
    limits = parser.add_argument_group("limits, fixed when compiling")
    limits.add_argument(
        "--context-window",
        metavar="N",
        type=_count(MAX_CONTEXT, MIN_CONTEXT),
        help="tokens of prompt and answer together; default: what the model was trained for, "
        "at most 8192",
    )
    limits.add_argument(
        "--prefill-chunk",
        metavar="N",
        type=_count(MAX_PREFILL_CHUNK),
        help="prompt tokens computed in one step; default: 512",
    )
    limits.add_argument(
        "--max-batch-size",
        metavar="N",
        type=_count(MAX_BATCH),
        help="sequences computed together; default: 16",
    )
    parser.add_argument(
        "--opt",
        metavar="N",
        type=int,
        choices=range(4),
        default=3,
        help="optimization level of the code generator, 0 to 3; default: 3",
    )
    parser.add_argument("--force", action="store_true", help="compile even if it is up to date")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be compiled, and compile nothing"
    )
    parser.add_argument(
        "--list", action="store_true", help="list recipes, artifacts, quantizations and targets"
    )
    parser.add_argument(
        "--progress",
        choices=("auto", "plain", "json"),
        default="auto",
        help="bars on a terminal (auto), lines, or JSON lines, on stderr",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show what the code generator prints"
    )
    return parser


def _count(limit: int, least: int = 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number") from None
        if not least <= value <= limit:
            raise argparse.ArgumentTypeError(f"{value} is not in {least}..{limit}")
        return value

    return parse


def _notify(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
