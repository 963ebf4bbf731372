"""A server process around the scripted engine: `python -m tests.server.scripted_server`.

Arguments: tokenizer.json, the text to answer, seconds a token takes, grace period.
"""

from __future__ import annotations

import asyncio
import sys

from aotlm.text.tokenizer import Tokenizer
from aotlm_server.served_model import ServedModel
from aotlm_server.serving import bind, serve
from aotlm_server.settings import Settings
from tests.server.live_server import make_model
from tests.server.scripted_engine import Script, ScriptedEngine


def main(tokenizer_file: str, text: str, delay_s: str, grace_s: str) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_file)
    tokens = tokenizer.encode(text, allow_special=False)

    async def load() -> ServedModel:
        return make_model(ScriptedEngine(Script(tokens, delay_s=float(delay_s))), tokenizer)

    settings = Settings(port=0, grace_period=float(grace_s))
    with bind(settings.host, settings.port) as listener:
        asyncio.run(serve(load, settings, listener, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
