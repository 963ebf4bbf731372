"""`aotlm serve`: flags in, a running server out."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aotlm_server.settings import Settings

_EXAMPLES = """\
examples:
  aotlm serve smollm2-135m                     compile the recipe's model if needed, and serve it
  aotlm serve ./model.gguf --port 9000         the same for a checkpoint of your own
  aotlm serve model_libs/build/smollm2-135m-gguf-cpu
                                               a compiled model; the compiler is not needed
  AOTLM_PORT=9000 aotlm serve smollm2-135m     every flag is an environment variable too

Flags win over AOTLM_* environment variables, those over the defaults (in parentheses).
"""


def parser() -> argparse.ArgumentParser:
    """The command's flags. Their names are those of `settings.Settings`."""
    parser = argparse.ArgumentParser(
        prog="aotlm serve",
        description="Serve a model over an OpenAI-compatible HTTP API.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", metavar="MODEL", help="artifact (path or name), recipe, GGUF file or folder"
    )
    flag = parser.add_argument
    flag("--host", metavar="ADDRESS", help="interface to listen on (127.0.0.1)")
    flag("--port", metavar="N", help="TCP port, 0 for any free one (8000)")
    flag("--served-model-name", metavar="NAME", help="what clients call the model (its own name)")
    flag("--max-batch-size", metavar="N", help="sequences under way at once (the artifact's)")
    flag("--stream-interval", metavar="N", help="tokens gathered in one chunk of a stream (1)")
    flag("--max-tokens", metavar="N", help="answer length when a request names none (the context)")
    flag("--default-temperature", metavar="T", help="when a request names none (the model's or 1)")
    flag("--default-top-p", metavar="P", help="when a request names none (the model's or 1)")
    flag("--default-top-k", metavar="K", help="when a request names none (the model's or off)")
    flag("--max-body-mb", metavar="N", help="larger request bodies get 413 (16)")
    flag("--grace-period", metavar="S", help="seconds running requests get at the end (10)")
    flag("--log-format", metavar="text|json", help="of the log on stderr (text)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `aotlm serve`. Returns the exit code; an error is one line on stderr.

    1 is for an error, 2 for a wrong flag or variable, as argparse has it.
    """
    flags = vars(parser().parse_args(argv))
    target = flags.pop("target")

    # Only now: `--help` and wrong flags should not wait for these.
    from aotlm.errors import AotlmError
    from aotlm_server.settings import load_settings

    try:
        settings = load_settings(flags, os.environ)
    except AotlmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        _serve(target, settings)
    except AotlmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        # A compiler that failed has told why; one that was killed could not.
        if error.returncode < 0:
            print(f"error: the compiler was ended by signal {-error.returncode}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(target: str, settings: Settings) -> None:
    import asyncio

    from aotlm_server.compiling import find_or_compile
    from aotlm_server.loading import load_model
    from aotlm_server.middleware.access_log import set_up_logging
    from aotlm_server.served_model import ServedModel
    from aotlm_server.serving import bind, serve

    async def load() -> ServedModel:
        return await load_model(await find_or_compile(target), settings)

    def announce(line: str) -> None:
        print(line, flush=True)

    set_up_logging(settings.log_format)
    # Before anything that takes long: a port in use should not cost a compile.
    with bind(settings.host, settings.port) as listener:
        asyncio.run(serve(load, settings, listener, announce))


if __name__ == "__main__":
    sys.exit(main())
