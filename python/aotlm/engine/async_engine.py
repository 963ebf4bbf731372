"""The engine on its own thread, with asynchronous iterators in front of it.

    event loop                                   thread "aotlm-engine"
    generate -> Stream, command `add`  ------->  inbox -> Engine.add
    abort / iterator left, `abort`     ------->  inbox -> Engine.abort
    Stream.push                        <-------  one call_soon_threadsafe per Engine.step

The thread is the only one that touches the model: TVM's thread pool belongs to the thread
that calls it. Streams live on the event loop only, so neither side needs a lock but the inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aotlm.engine.engine import Engine, RequestFailure
from aotlm.engine.protocol import EngineLimits, EngineStats, EngineStatus
from aotlm.engine.stream import Stream
from aotlm.errors import AotlmError, EngineError, EngineOverloaded, EngineStopped, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from aotlm.config import EngineConfig
    from aotlm.engine.engine import StepResult
    from aotlm.request import Request, TokenOutput

THREAD_NAME = "aotlm-engine"
_JOIN_S = 30.0  # longest a single step is waited for when stopping

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Add:
    stream: Stream


@dataclass(frozen=True, slots=True)
class _Abort:
    stream: Stream


class _Inbox:
    """Commands to the engine thread, in order."""

    def __init__(self) -> None:
        self._commands: deque[_Add | _Abort] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, command: _Add | _Abort) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, *, wait: bool) -> list[_Add | _Abort] | None:
        """All commands so far, after waiting for one if asked to; None when closed."""
        with self._changed:
            while wait and not self._commands and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            commands = list(self._commands)
            self._commands.clear()
            return commands


class AsyncEngine:
    """Satisfies `EngineProtocol`; serves the event loop on which `start` was awaited."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        """`load` makes the engine; it is called on the engine thread."""
        self._load = load
        self._inbox = _Inbox()
        self._status = EngineStatus.LOADING
        self._stats = EngineStats()
        self._streams: dict[str, Stream] = {}
        self._engine: Engine | None = None
        self._reason = "the engine is not started"
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()  # the thread has left its loop
        self._quiet = asyncio.Event()  # no stream is open

    @classmethod
    def from_config(cls, config: EngineConfig) -> Self:
        """An engine for a compiled artifact; nothing is loaded before `start`."""

        def load() -> Engine:
            from aotlm.engine.loading import load_engine  # heavy: only when needed

            return load_engine(config)

        return cls(load)

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def limits(self) -> EngineLimits:
        """Limits of the loaded model. Raises EngineStopped before `start` has returned."""
        return self._ready_engine().limits

    def stats(self) -> EngineStats:
        return self._stats

    async def start(self) -> None:
        """Load the model on a new thread. Raises ArtifactError or EngineError."""
        if self._thread is not None:
            raise EngineError("the engine was started already")
        self._loop = asyncio.get_running_loop()
        self._loaded = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()
        await self._loaded

    async def generate(self, request: Request) -> AsyncGenerator[TokenOutput, None]:
        """See `EngineProtocol.generate`."""
        stream = self._open(request)
        try:
            while True:
                output = await stream.next()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._close(stream)

    def abort(self, request_id: str) -> None:
        """End a request at the next step; unknown ids are ignored."""
        stream = self._streams.get(request_id)
        if stream is not None and not stream.ended:
            self._inbox.put(_Abort(stream))

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, give running ones `grace_s` seconds, then end them.

        Those still running then get EngineStopped. May be called in any state, also twice.
        """
        if self._status is EngineStatus.READY:
            self._status = EngineStatus.DRAINING
            self._reason = "the engine is shutting down: no new requests are taken"
            if self._streams:
                self._quiet.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._quiet.wait(), grace_s)
        self._end_streams("the engine was stopped before the answer was complete")
        self._inbox.close()
        if self._thread is not None:
            try:
                await asyncio.wait_for(self._ended.wait(), _JOIN_S)
                self._thread.join()
            except TimeoutError:
                _log.error("the engine thread did not end within %.0f s", _JOIN_S)
        if self._status is not EngineStatus.FAILED:
            self._reason = "the engine is stopped"
        self._status = EngineStatus.STOPPED
        self._engine = None

    # --- on the event loop ---

    def _ready_engine(self) -> Engine:
        if self._engine is None:
            raise EngineStopped(self._reason)
        return self._engine

    def _open(self, request: Request) -> Stream:
        engine = self._ready_engine()
        if self._status is not EngineStatus.READY:
            raise EngineStopped(self._reason)
        engine.validate(request)
        if request.request_id in self._streams:
            raise RequestError(f"a request with the id {request.request_id!r} is under way")
        if len(self._streams) >= engine.capacity:
            raise EngineOverloaded(
                f"{len(self._streams)} requests are under way, no more are queued: try again later"
            )
        stream = Stream(request)
        self._streams[request.request_id] = stream
        self._inbox.put(_Add(stream))
        return stream

    def _close(self, stream: Stream) -> None:
        if self._streams.get(stream.request.request_id) is stream:
            del self._streams[stream.request.request_id]
        if not stream.ended:
            self._inbox.put(_Abort(stream))
        if not self._streams:
            self._quiet.set()

    def _deliver(
        self, results: list[tuple[Stream, StepResult | AotlmError]], stats: EngineStats
    ) -> None:
        self._stats = stats
        for stream, result in results:
            if isinstance(result, AotlmError):
                stream.fail(result)
            elif isinstance(result, RequestFailure):
                stream.fail(result.error)
            elif not stream.ended:
                stream.push(result)

    def _end_streams(self, reason: str) -> None:
        for stream in self._streams.values():
            if not stream.ended:
                self._inbox.put(_Abort(stream))
                stream.fail(EngineStopped(reason))

    def _on_loaded(self, engine: Engine) -> None:
        self._engine = engine
        if self._status is EngineStatus.LOADING:
            self._status = EngineStatus.READY
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)

    def _on_end(self, error: BaseException | None) -> None:
        """The thread has ended; `error` is None when it was asked to."""
        if error is not None:
            self._status = EngineStatus.FAILED
            self._reason = f"the engine failed: {error}"
            self._end_streams(self._reason)
            if self._loaded is not None and not self._loaded.done():
                known = isinstance(error, AotlmError)
                self._loaded.set_exception(error if known else EngineError(self._reason))
        elif self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(EngineStopped("the engine was stopped while it loaded"))
        self._ended.set()

    # --- on the engine thread ---

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            worker = _Worker(self._load(), self._inbox, self._post)
            self._post(self._on_loaded, worker.engine)
            worker.run(self._deliver)
        except BaseException as caught:
            error = caught
            if not isinstance(caught, AotlmError):
                _log.exception("the engine thread failed")
        self._post(self._on_end, error)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens
            self._loop.call_soon_threadsafe(function, *arguments)


class _Worker:
    """The loop of the engine thread."""

    def __init__(self, engine: Engine, inbox: _Inbox, post: Callable[..., None]) -> None:
        self.engine = engine
        self._inbox = inbox
        self._post = post
        self._owners: dict[str, Stream] = {}  # whose request the engine holds under an id

    def run(self, deliver: Callable[..., None]) -> None:
        """Work until the inbox is closed. Raises EngineStopped when the device is lost."""
        engine = self.engine
        while True:
            commands = self._inbox.take(wait=not engine.has_work)
            if commands is None:
                return
            results: list[tuple[Stream, StepResult | AotlmError]] = []
            for command in commands:
                results.extend(self._obey(command))
            if engine.has_work:
                results.extend(self._step())
            self._post(deliver, results, engine.stats())

    def _obey(self, command: _Add | _Abort) -> list[tuple[Stream, StepResult | AotlmError]]:
        stream = command.stream
        request_id = stream.request.request_id
        if isinstance(command, _Abort):
            if self._owners.get(request_id) is not stream:
                return []  # it has ended meanwhile
            output = self.engine.abort(request_id)
            del self._owners[request_id]
        else:
            try:
                output = self.engine.add(stream.request)
            except AotlmError as error:
                return [(stream, error)]
            if output is None:
                self._owners[request_id] = stream
        return [] if output is None else [(stream, output)]

    def _step(self) -> list[tuple[Stream, StepResult | AotlmError]]:
        """One step; an error that no request can be blamed for ends them all, not the loop."""
        results: list[StepResult] = []
        try:
            results = self.engine.step()
            if not self.engine.has_work:
                self.engine.check_integrity()
        except EngineStopped:
            raise
        except Exception as error:
            _log.exception("an engine step failed; every request is ended")
            results = [*results, *self.engine.reset(f"the engine began anew after {error!r}")]
        return [(self._owner(result), result) for result in results]

    def _owner(self, result: StepResult) -> Stream:
        if isinstance(result, RequestFailure) or result.finish_reason is not None:
            return self._owners.pop(result.request_id)
        return self._owners[result.request_id]
