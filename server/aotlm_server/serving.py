"""The life of a server process: bind, listen, load, serve, drain.

It listens before the model is there, so that /health can answer 503 and a port in use is found
before minutes of compiling.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from aotlm.errors import ServeError
from aotlm_server.app import create_app
from aotlm_server.runner import Runner
from aotlm_server.served_model import ModelSlot, ServedModel
from aotlm_server.settings import Settings

# What aiohttp gives finished answers to leave the socket, after the engine has drained.
_FLUSH_S = 2.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ServeError where it cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise ServeError(f"--host: {host!r} is no address of this machine") from None
    try:
        return socket.create_server(address[:2], family=family, backlog=512)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "is in use; stop the program that has it or choose another with --port"
        else:
            reason = f"cannot be listened on: {error.strerror}"
        raise ServeError(f"port {port} on {host} {reason}") from None


def base_url(listener: socket.socket) -> str:
    """Where clients find the API, for example http://127.0.0.1:8000/v1."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


@contextlib.asynccontextmanager
async def listening(
    slot: ModelSlot, settings: Settings, listener: socket.socket
) -> AsyncIterator[None]:
    """Serve on `listener`; on leaving, stop accepting, drain the engine, close."""
    runner = Runner(
        create_app(slot, settings), handler_cancellation=True, shutdown_timeout=_FLUSH_S
    )
    await runner.setup()
    site = web.SockSite(runner, listener)
    await site.start()
    try:
        yield
    finally:
        await site.stop()
        if slot.model is not None:
            await slot.model.engine.stop(settings.grace_period)
        await runner.cleanup()


async def serve(
    load: Callable[[], Awaitable[ServedModel]],
    settings: Settings,
    listener: socket.socket,
    announce: Callable[[str], None],
) -> None:
    """Load the model and serve until SIGTERM or SIGINT; a second SIGINT does not wait.

    `announce` gets the line that says the server is ready. Raises what `load` raises.
    """
    slot = ModelSlot()
    stop = _stop_event()
    async with listening(slot, settings, listener):
        loading = asyncio.ensure_future(load())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                return
            slot.fill(loading.result())
            name = loading.result().name
            announce(f"serving {name} on {base_url(listener)} (Ctrl-C stops)")
            await stopping
        finally:
            for task in (loading, stopping):
                task.cancel()
            await asyncio.gather(loading, stopping, return_exceptions=True)


def _stop_event() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; the next SIGINT interrupts as usual."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        event.set()
        loop.remove_signal_handler(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return event
