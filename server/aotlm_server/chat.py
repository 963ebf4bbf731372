"""`aotlm chat`: talk to a model in the terminal.

The terminal lives on the main thread and HTTP on an event loop beside it, so that Ctrl-C
reaches whatever is waiting: it stops an answer, not the program.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from aotlm_server.flag_types import http_url, positive

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")

_HELP = """\
/reset          forget the conversation
/system TEXT    set the system message and forget the conversation
/help           this list
/exit           leave (so does Ctrl-D); Ctrl-C stops an answer"""

_DEFAULT_URL = "http://127.0.0.1:8000/v1"

_EXAMPLES = """\
examples:
  aotlm chat                                   talk to the server on port 8000 of this machine
  aotlm chat smollm2-135m                      load a model here and talk to it
  aotlm chat --base-url http://127.0.0.1:8000/v1
                                               talk to a server that is running
  echo "What is the capital of France?" | aotlm chat smollm2-135m --temperature 0
                                               one turn a line, answers on stdout
"""


class Conversation:
    """The turns so far, as the API wants them."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[dict[str, str]] = []

    def messages(self) -> list[dict[str, str]]:
        """All messages, the system message first."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def add(self, role: str, content: str) -> None:
        """Append a turn."""
        self.turns.append({"role": role, "content": content})


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="http", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run to the end; a KeyboardInterrupt here cancels it there and is raised again."""
        future: Future[_T] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class ChatClient:
    """One model of one server."""

    def __init__(self, base_url: str, model: str, sampling: dict[str, float | None]) -> None:
        self._url = base_url
        self._model = model
        self._sampling = {name: value for name, value in sampling.items() if value is not None}

    async def answer(self, messages: list[dict[str, str]], show: Callable[[str], None]) -> None:
        """Stream one answer, `show`ing its text as it comes. Raises ServeError."""
        import aiohttp

        from aotlm.errors import ServeError
        from aotlm_server.sse import DONE, read_events

        body: dict[str, Any] = {"model": self._model, "messages": messages, "stream": True}
        body |= self._sampling
        # An answer may take as long as it takes; only connecting may not.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(f"{self._url}/chat/completions", json=body) as response,
            ):
                if response.status != 200:
                    raise ServeError(error_message(await response.text(), response.status))
                async for data in read_events(response.content):
                    if data == DONE:
                        return
                    event = json.loads(data)
                    if "error" in event:
                        raise ServeError(error_message(data, response.status))
                    for choice in event["choices"]:
                        show(choice["delta"].get("content") or "")
        except aiohttp.ClientError as error:
            raise ServeError(f"no answer from {self._url}: {error}") from None


def error_message(body: str, status: int) -> str:
    """The message of an OpenAI-shaped error body, or what can be said without one."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return f"HTTP status {status}"


class Terminal:
    """Reads turns and commands, shows answers."""

    def __init__(self, conversation: Conversation, answer: Callable[..., None]) -> None:
        self._conversation = conversation
        self._answer = answer
        self._interactive = sys.stdin.isatty()

    def run(self) -> int:
        """Until the input ends or /exit. Returns the exit code: 1 if any answer failed."""
        if not self._interactive and isinstance(sys.stdin, io.TextIOWrapper):
            # Else what is not UTF-8 would pass in some locales, as half surrogate pairs.
            sys.stdin.reconfigure(encoding="utf-8", errors="strict")
        if self._interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  arrow keys and history in input()
            print("/help lists the commands, Ctrl-D leaves")
        failed = False
        for line in self._lines():
            if line == "/exit":
                break
            if line.startswith("/"):
                self._command(line)
            elif line:
                failed |= not self._turn(line)
        return 1 if failed and not self._interactive else 0

    def _lines(self) -> Iterator[str]:
        from aotlm.errors import ServeError

        while True:
            try:
                line = input("> ") if self._interactive else sys.stdin.readline()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                if not self._interactive:
                    return
                print("\n(/exit or Ctrl-D leaves)")
                continue
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise ServeError(f"the input is not UTF-8 text: it has a byte {byte:#x}") from None
            if not self._interactive and not line:
                return
            yield line.strip()

    def _command(self, line: str) -> None:
        command, _, text = line.partition(" ")
        if command == "/reset":
            self._conversation.turns.clear()
        elif command == "/system":
            self._conversation.system = text.strip() or None
            self._conversation.turns.clear()
        elif command == "/help":
            print(_HELP)
        else:
            print(f"unknown command {command}; /help lists them", file=sys.stderr)

    def _turn(self, text: str) -> bool:
        from aotlm.errors import AotlmError

        pieces: list[str] = []

        def show(piece: str) -> None:
            pieces.append(piece)
            print(piece, end="", flush=True)

        self._conversation.add("user", text)
        try:
            self._answer(self._conversation.messages(), show)
        except KeyboardInterrupt:
            print(" [stopped]", end="")
        except AotlmError as error:
            print(f"error: {error}", file=sys.stderr)
            if not pieces:  # the turn did not happen
                self._conversation.turns.pop()
                return False
        print()
        self._conversation.add("assistant", "".join(pieces))
        return True


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(
        prog="aotlm chat",
        description="Talk to a model in the terminal: to one that is loaded here (MODEL), or to "
        f"one of a server (--base-url).\nWith neither, to the server on {_DEFAULT_URL}.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", nargs="?", metavar="MODEL", help="recipe, checkpoint or artifact to load here"
    )
    flag = parser.add_argument
    flag(
        "--base-url",
        type=http_url,
        metavar="URL",
        help=f"talk to this server instead ({_DEFAULT_URL})",
    )
    flag("--model", default="default", metavar="NAME", help="as the server names it (default)")
    flag("--system", metavar="TEXT", help="system message (none)")
    flag("--temperature", type=float, metavar="T", help="0 is greedy (the server's choice)")
    flag("--max-tokens", type=positive, metavar="N", help="longest answer (the server's choice)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `aotlm chat`."""
    arguments = parser().parse_args(argv)
    if arguments.target and arguments.base_url:
        parser().error("give a MODEL or a --base-url, not both")
    from aotlm.errors import AotlmError

    loop = LoopThread()
    try:
        with contextlib.ExitStack() as stack:
            url = arguments.base_url or _DEFAULT_URL
            if arguments.target:
                url = stack.enter_context(_local_server(loop, arguments.target))
            sampling = {
                "temperature": arguments.temperature,
                "max_tokens": arguments.max_tokens,
            }
            client = ChatClient(url, arguments.model, sampling)
            return Terminal(
                Conversation(arguments.system),
                lambda messages, show: loop.run(client.answer(messages, show)),
            ).run()
    except AotlmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError:  # the compiler has told why
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        loop.close()


@contextlib.contextmanager
def _local_server(loop: LoopThread, target: str) -> Iterator[str]:
    """A server in this process, on a free port of this machine alone."""
    from aotlm_server.compiling import find_or_compile
    from aotlm_server.loading import load_model
    from aotlm_server.served_model import ModelSlot
    from aotlm_server.serving import base_url, bind, listening
    from aotlm_server.settings import Settings

    settings = Settings(port=0, grace_period=0)
    listener = bind(settings.host, settings.port)
    slot = ModelSlot()
    server = listening(slot, settings, listener)

    async def start() -> None:
        await server.__aenter__()
        path = await find_or_compile(target)
        slot.fill(await load_model(path, settings))

    async def stop() -> None:
        await server.__aexit__(None, None, None)

    try:
        loop.run(start())
        yield base_url(listener)
    finally:
        loop.run(stop())
