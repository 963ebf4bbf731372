from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from aotlm.engine.async_engine import THREAD_NAME, AsyncEngine
from aotlm.engine.engine import Engine
from aotlm.engine.protocol import EngineProtocol, EngineStatus
from aotlm.errors import (
    ArtifactNotFound,
    ContextLengthError,
    EngineError,
    EngineOverloaded,
    EngineStopped,
    GenerationFailed,
    RequestError,
)
from aotlm.request import FinishReason, GenerationConfig, Request, TokenOutput
from tests.core.numpy_runner import NumpyRunner, greedy_continuation

Hook = Callable[[Sequence[int]], None]


def request(name: str, *, max_tokens: int = 6, prompt: Sequence[int] = (1, 2, 3)) -> Request:
    return Request(name, tuple(prompt), GenerationConfig(temperature=0.0, max_tokens=max_tokens))


@asynccontextmanager
async def running(
    runner: NumpyRunner | None = None, *, queue_limit: int = 64
) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(lambda: Engine(runner or NumpyRunner(), queue_limit=queue_limit))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0.0)


async def collect(engine: AsyncEngine, entry: Request) -> tuple[list[int], FinishReason | None]:
    tokens: list[int] = []
    reason = None
    async for output in engine.generate(entry):
        tokens.extend(output.token_ids)
        reason = output.finish_reason
    return tokens, reason


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (what is waited for happens on a thread)
            await asyncio.sleep(0.002)


def status_of(engine: AsyncEngine) -> EngineStatus:
    """As a function, so that mypy does not take the status for constant."""
    return engine.status


class Gate:
    """Lets forward passes through while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = threading.Event()

    def __call__(self, seq_ids: Sequence[int]) -> None:
        self.waiting.set()
        assert self.open.wait(10)


async def test_it_satisfies_the_protocol() -> None:
    async with running() as engine:
        typed: EngineProtocol = engine
        assert typed.status is EngineStatus.READY
        assert typed.limits == NumpyRunner().limits


async def test_concurrent_requests_get_their_own_tokens() -> None:
    async with running() as engine:
        prompts = [[i, i + 1] for i in range(20)]
        answers = await asyncio.gather(
            *[collect(engine, request(str(i), prompt=p)) for i, p in enumerate(prompts)]
        )
        for prompt, (tokens, reason) in zip(prompts, answers, strict=True):
            assert tokens == greedy_continuation(prompt, 6)
            assert reason is FinishReason.LENGTH
        await until(lambda: engine.stats().running == 0)
        assert engine.stats().requests == 20
        assert engine.stats().completion_tokens == 120


async def test_the_model_is_touched_by_the_engine_thread_only() -> None:
    runner = NumpyRunner()
    names: set[str] = set()
    runner.hook = lambda seq_ids: names.add(threading.current_thread().name)
    async with running(runner) as engine:
        await collect(engine, request("a"))
        await collect(engine, request("b"))
    assert names == {THREAD_NAME}
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}


async def test_one_wake_up_of_the_event_loop_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        loop = asyncio.get_running_loop()
        original, calls = loop.call_soon_threadsafe, []

        def counted(*arguments: object) -> object:
            calls.append(arguments[0])
            return original(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        before = engine.stats().steps
        await asyncio.gather(*[collect(engine, request(str(i))) for i in range(4)])
        monkeypatch.undo()
        assert len(calls) <= engine.stats().steps - before + 4  # and one per late arrival


async def test_a_slow_reader_gets_what_gathered_as_one_output() -> None:
    runner = NumpyRunner()
    gate = Gate()
    runner.hook = lambda seq_ids: gate(seq_ids) if runner.calls else None
    async with running(runner) as engine:
        async with aclosing(engine.generate(request("a", max_tokens=30))) as outputs:
            first = await anext(outputs)
            gate.open.set()
            await until(lambda: engine.stats().completion_tokens == 30)
            rest = await anext(outputs)
        assert (len(first.token_ids), len(rest.token_ids)) == (1, 29)
        assert [*first.token_ids, *rest.token_ids] == greedy_continuation([1, 2, 3], 30)
        assert rest.finish_reason is FinishReason.LENGTH


class TestLeaving:
    async def test_closing_the_iterator_frees_its_pages(self) -> None:
        runner = NumpyRunner()
        async with running(runner) as engine:
            async with aclosing(engine.generate(request("a", max_tokens=60))) as outputs:
                await anext(outputs)
            await until(lambda: engine.stats().running == 0)
            assert runner.pages.free == 64

    async def test_cancelling_the_reader_frees_its_pages(self) -> None:
        runner = NumpyRunner()
        gate = runner.hook = Gate()
        async with running(runner) as engine:
            task = asyncio.create_task(collect(engine, request("a", max_tokens=60)))
            await until(gate.waiting.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open.set()
            await until(lambda: engine.stats().steps > 0 and engine.stats().running == 0)
            assert runner.pages.free == 64

    async def test_abort_ends_the_reader_within_a_step(self) -> None:
        runner = NumpyRunner()
        gate = runner.hook = Gate()
        async with running(runner) as engine:
            task = asyncio.create_task(collect(engine, request("a", max_tokens=60)))
            await until(gate.waiting.is_set)
            engine.abort("a")
            engine.abort("nobody")
            gate.open.set()
            tokens, reason = await task
            assert reason is FinishReason.ABORT
            assert len(tokens) <= 1

    async def test_an_id_may_be_used_again_at_once(self) -> None:
        runner = NumpyRunner()
        gate = runner.hook = Gate()
        async with running(runner) as engine:
            first = engine.generate(request("a", max_tokens=60))
            task = asyncio.ensure_future(anext(first))
            await until(gate.waiting.is_set)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            again = asyncio.create_task(collect(engine, request("a", prompt=[9])))
            await asyncio.sleep(0.01)
            gate.open.set()
            assert await again == (greedy_continuation([9], 6), FinishReason.LENGTH)


class TestRefusals:
    async def test_bad_requests_raise_before_the_first_output(self) -> None:
        async with running() as engine:
            with pytest.raises(ContextLengthError):
                await collect(engine, request("a", prompt=[1] * 64))
            with pytest.raises(RequestError):
                await collect(engine, request("a", prompt=[]))

    async def test_a_full_queue_is_told_at_once(self) -> None:
        runner = NumpyRunner()
        gate = runner.hook = Gate()
        async with running(runner, queue_limit=2) as engine:
            tasks = [asyncio.create_task(collect(engine, request(str(i)))) for i in range(6)]
            await until(gate.waiting.is_set)
            with pytest.raises(EngineOverloaded):
                await collect(engine, request("one more"))
            gate.open.set()
            assert len(await asyncio.gather(*tasks)) == 6
            assert len((await collect(engine, request("later")))[0]) == 6

    async def test_an_id_under_way_is_taken(self) -> None:
        async with (
            running() as engine,
            aclosing(engine.generate(request("a", max_tokens=60))) as outputs,
        ):
            await anext(outputs)
            with pytest.raises(RequestError, match="'a' is under way"):
                await collect(engine, request("a"))

    async def test_nothing_is_taken_before_start_and_after_stop(self) -> None:
        engine = AsyncEngine(lambda: Engine(NumpyRunner()))
        assert status_of(engine) is EngineStatus.LOADING
        with pytest.raises(EngineStopped, match="not started"):
            _ = engine.limits
        with pytest.raises(EngineStopped, match="not started"):
            await collect(engine, request("a"))
        await engine.start()
        with pytest.raises(EngineError, match="started already"):
            await engine.start()
        await engine.stop(1.0)
        await engine.stop(1.0)
        assert status_of(engine) is EngineStatus.STOPPED
        with pytest.raises(EngineStopped, match="is stopped"):
            await collect(engine, request("a"))


class TestStop:
    async def test_running_requests_may_finish(self) -> None:
        runner = NumpyRunner()
        gate = runner.hook = Gate()
        async with running(runner) as engine:
            task = asyncio.create_task(collect(engine, request("a")))
            await until(gate.waiting.is_set)
            stopping = asyncio.create_task(engine.stop(5.0))
            await until(lambda: engine.status is EngineStatus.DRAINING)
            with pytest.raises(EngineStopped, match="shutting down"):
                await collect(engine, request("late"))
            gate.open.set()
            assert (await task)[1] is FinishReason.LENGTH
            await stopping
            assert engine.status is EngineStatus.STOPPED

    async def test_they_are_cut_when_the_grace_period_ends(self) -> None:
        runner = NumpyRunner()
        gate = runner.hook = Gate()
        async with running(runner) as engine:
            task = asyncio.create_task(collect(engine, request("a", max_tokens=60)))
            await until(gate.waiting.is_set)
            stopping = asyncio.create_task(engine.stop(0.02))
            with pytest.raises(EngineStopped, match="before the answer was complete"):
                await task
            gate.open.set()
            await stopping
            assert engine.status is EngineStatus.STOPPED


class TestFaults:
    async def test_a_failed_request_ends_alone(self) -> None:
        runner = NumpyRunner()

        def poison(seq_ids: Sequence[int]) -> None:
            if any(runner.cached[seq_id][:1] == [13] for seq_id in seq_ids):
                raise ValueError("unlucky")

        runner.hook = poison
        async with running(runner) as engine:
            good = asyncio.create_task(collect(engine, request("good")))
            with pytest.raises(GenerationFailed, match="unlucky"):
                await collect(engine, request("bad", prompt=[13]))
            assert (await good)[0] == greedy_continuation([1, 2, 3], 6)
            assert engine.status is EngineStatus.READY

    async def test_a_lost_device_is_told_to_all(self) -> None:
        runner = NumpyRunner()
        gate = runner.hook = Gate()
        async with running(runner) as engine:
            tasks = [asyncio.create_task(collect(engine, request(str(i)))) for i in range(6)]
            await until(gate.waiting.is_set)

            def dead(seq_ids: Sequence[int]) -> None:
                raise OSError("device lost")

            runner.hook = dead
            gate.open.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, EngineStopped) for result in results)
            assert "device lost" in str(results[0])
            assert engine.status is EngineStatus.FAILED
            with pytest.raises(EngineStopped, match="device lost"):
                await collect(engine, request("late"))

    async def test_a_step_that_raises_ends_the_requests_but_not_the_loop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inner = Engine(NumpyRunner())
        engine = AsyncEngine(lambda: inner)
        await engine.start()

        def broken() -> None:
            raise KeyError("a mistake in the scheduler")

        monkeypatch.setattr(inner._scheduler, "schedule", broken)
        with pytest.raises(GenerationFailed, match="a mistake in the scheduler"):
            await collect(engine, request("a"))
        monkeypatch.undo()
        assert (await collect(engine, request("a")))[0] == greedy_continuation([1, 2, 3], 6)
        await engine.stop(0.0)

    async def test_a_load_that_fails_is_raised_by_start(self) -> None:
        def load() -> Engine:
            raise ArtifactNotFound("no such model")

        engine = AsyncEngine(load)
        with pytest.raises(ArtifactNotFound, match="no such model"):
            await engine.start()
        assert engine.status is EngineStatus.FAILED
        await engine.stop(0.0)

    async def test_an_unexpected_error_while_loading_becomes_ours(self) -> None:
        def load() -> Engine:
            raise ZeroDivisionError("one by zero")

        engine = AsyncEngine(load)
        with pytest.raises(EngineError, match="one by zero"):
            await engine.start()
        await engine.stop(0.0)

    async def test_a_thousand_requests_with_aborts_and_faults_all_end(self) -> None:
        runner = NumpyRunner()

        def poison(seq_ids: Sequence[int]) -> None:
            if any(runner.cached[seq_id][:1] == [13] for seq_id in seq_ids):
                raise ValueError("unlucky")

        runner.hook = poison

        async def one(engine: AsyncEngine, index: int) -> None:
            prompt = [13] if index % 7 == 0 else [1] * 70 if index % 11 == 0 else [index % 50]
            outputs = engine.generate(request(str(index), prompt=prompt, max_tokens=8))
            async with aclosing(outputs):
                seen: list[TokenOutput] = []
                async for output in outputs:
                    seen.append(output)
                    if index % 5 == 0 and len(seen) == index % 4:
                        return

        async with running(runner, queue_limit=1000) as engine:
            results = await asyncio.gather(
                *[one(engine, index) for index in range(1000)], return_exceptions=True
            )
            expected = (GenerationFailed, ContextLengthError)
            assert all(result is None or isinstance(result, expected) for result in results)
            await until(lambda: engine.stats().running + engine.stats().waiting == 0)
            assert runner.pages.free == 64
            assert engine.status is EngineStatus.READY
