"""The engine: `step()` is schedule, forward, sample, update. One thread, no asyncio.

Knows token ids, not text. A request that fails is ended alone; only a lost device, which a
probe confirms, stops the engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aotlm.engine.batch import Chunk, StepPlan
from aotlm.engine.protocol import EngineLimits, EngineStats
from aotlm.engine.scheduler import Scheduler
from aotlm.engine.sequence import Sequence
from aotlm.engine.validation import validate_request
from aotlm.errors import EngineOverloaded, EngineStopped, GenerationFailed, RequestError
from aotlm.request import FinishReason, Request, TokenOutput
from aotlm.runtime.sampler import SampledToken, Sampler, SamplingState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aotlm.engine.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request that ended with an error instead of a finish reason."""

    request_id: str
    error: GenerationFailed


StepResult = TokenOutput | RequestFailure


class Engine:
    """Continuous batching over one model. Every method is called on one thread,
    save `validate` and `limits`, which read what never changes."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        queue_limit: int = 256,
        busy_prefill_tokens: int = 256,
        seed: int | None = None,
    ) -> None:
        """Raises EngineError when the native library is missing."""
        self._runner = runner
        self.limits: EngineLimits = runner.limits
        self.vocab_size = runner.vocab_size
        self.capacity = self.limits.max_batch_size + queue_limit  # open requests
        self._scheduler = Scheduler(
            runner.pages,
            max_batch_size=self.limits.max_batch_size,
            prefill_chunk=self.limits.prefill_chunk,
            busy_prefill_tokens=busy_prefill_tokens,
        )
        self._sampler = Sampler(self.limits.max_batch_size)
        self._seeds = random.Random(seed)
        self._open: dict[str, tuple[Sequence, SamplingState]] = {}
        self._results: list[StepResult] = []  # of the step under way
        self._next_seq_id = 0
        self._steps = 0
        self._requests = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a request is under way."""
        return bool(self._open)

    @property
    def has_room(self) -> bool:
        """Whether `add` would take one more request."""
        return len(self._open) < self.capacity

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            steps=self._steps,
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
        )

    def validate(self, request: Request) -> None:
        """Raises RequestError or ContextLengthError when it could not be answered as asked."""
        pages = self._runner.pages
        validate_request(
            request,
            self.limits,
            vocab_size=self.vocab_size,
            cache_tokens=pages.num_pages * pages.page_size,
        )

    def add(self, request: Request) -> TokenOutput | None:
        """Queue a request; one that asks for no token is answered at once.

        Raises RequestError, ContextLengthError or EngineOverloaded.
        """
        self.validate(request)
        if request.request_id in self._open:
            raise RequestError(f"a request with the id {request.request_id!r} is under way")
        if not self.has_room:
            raise EngineOverloaded(f"{len(self._open)} requests are under way: try again later")
        self._requests += 1
        config = request.config
        sequence = Sequence(request)
        if config.max_tokens == 0:
            return _output(sequence, (), FinishReason.LENGTH)
        seed = self._seeds.getrandbits(64) if config.seed is None else config.seed
        sampling = SamplingState(config, seed, sequence.tokens, sequence.prompt_tokens)
        self._open[request.request_id] = (sequence, sampling)
        self._scheduler.add(sequence)
        return None

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request and return its last output; None when the id is unknown."""
        if request_id not in self._open:
            return None
        sequence, _ = self._open[request_id]
        self._end(sequence)
        return _output(sequence, (), FinishReason.ABORT)

    def step(self) -> list[StepResult]:
        """Run one step and return what it gave, at most one result per request and phase.

        Raises EngineStopped when the device is lost; the engine is of no use afterwards.
        """
        plan = self._scheduler.schedule()
        self._enter_and_leave(plan)
        if plan.decodes:
            self._forward(plan.decodes, decode=True)
        if plan.prefills:
            self._forward(plan.prefills, decode=False)
        self._steps += 1
        results, self._results = self._results, []
        return results

    def reset(self, reason: str) -> list[StepResult]:
        """End every request with GenerationFailed and begin anew with an empty cache.

        For errors that cannot be laid on one request. Raises EngineStopped when the model
        does not answer afterwards.
        """
        failures: list[StepResult] = [
            RequestFailure(request_id, GenerationFailed(reason)) for request_id in self._open
        ]
        self._open.clear()
        self._scheduler.clear()
        try:
            self._runner.clear()
        except Exception as error:
            raise EngineStopped(f"the device does not answer: {_summary(error)}") from error
        self._probe()
        results, self._results = [*self._results, *failures], []
        return results

    def check_integrity(self) -> None:
        """Raises AssertionError when requests, queues, pages and cache disagree."""
        self._scheduler.check_integrity()
        self._runner.check_integrity()
        queued = len(self._scheduler.running) + len(self._scheduler.waiting)
        assert queued == len(self._open), f"{queued} sequences for {len(self._open)} requests"

    def _enter_and_leave(self, plan: StepPlan) -> None:
        for sequence in plan.preempted:
            self._leave_cache(sequence)
        for sequence in plan.exhausted:
            self._close(sequence)
            self._results.append(_output(sequence, (), FinishReason.LENGTH))
        for sequence in plan.admitted:
            self._runner.add(self._next_seq_id)
            sequence.seq_id = self._next_seq_id
            self._next_seq_id += 1

    def _forward(self, chunks: list[Chunk], *, decode: bool) -> None:
        try:
            logits = self._decode(chunks) if decode else self._prefill(chunks)
        except EngineStopped:
            raise
        except Exception as error:
            self._isolate(chunks, decode, error)
            return
        ready = [chunk.sequence for chunk in chunks if chunk.completes]
        for chunk in chunks:
            chunk.sequence.num_cached += chunk.length
            if chunk.sequence.num_cached == chunk.sequence.prompt_tokens:
                self._prompt_tokens += chunk.sequence.prompt_tokens
        if ready:
            self._sample(ready, logits)

    def _isolate(self, chunks: list[Chunk], decode: bool, error: Exception) -> None:
        """A batch failed: run its sequences one by one and end those that fail alone."""
        if len(chunks) > 1:
            for chunk in chunks:
                self._forward([chunk], decode=decode)
            return
        self._fail(chunks[0].sequence, f"the model failed: {_summary(error)}")
        self._probe()

    def _probe(self) -> None:
        """Raises EngineStopped when the model does not even answer one token."""
        runner = self._runner
        if runner.pages.free == 0:
            return  # whoever holds the pages finds out
        seq_id = self._next_seq_id
        self._next_seq_id += 1
        zero = np.zeros(1, np.int32)
        try:
            runner.add(seq_id)
            runner.prefill([seq_id], [1], zero, zero)
            runner.decode([seq_id], zero)
            runner.remove(seq_id)
            runner.check_integrity()
        except Exception as error:
            raise EngineStopped(f"the device does not answer: {_summary(error)}") from error

    def _decode(self, chunks: list[Chunk]) -> NDArray[np.float32]:
        token_ids = np.fromiter(
            (chunk.sequence.tokens[-1] for chunk in chunks), np.int32, len(chunks)
        )
        return self._runner.decode([chunk.sequence.seq_id for chunk in chunks], token_ids)

    def _prefill(self, chunks: list[Chunk]) -> NDArray[np.float32]:
        lengths = [chunk.length for chunk in chunks]
        token_ids = np.empty(sum(lengths), np.int32)
        ends = np.cumsum(lengths)
        for chunk, end in zip(chunks, ends.tolist(), strict=True):
            begin = chunk.sequence.num_cached
            token_ids[end - chunk.length : end] = chunk.sequence.tokens[
                begin : begin + chunk.length
            ]
        wanted = [chunk.completes for chunk in chunks]
        # The library wants one position at least; that of an unfinished chunk is not used.
        positions = (ends[wanted] if any(wanted) else ends[-1:]) - 1
        seq_ids = [chunk.sequence.seq_id for chunk in chunks]
        return self._runner.prefill(seq_ids, lengths, token_ids, positions.astype(np.int32))

    def _sample(self, sequences: list[Sequence], logits: NDArray[np.float32]) -> None:
        states = [self._open[sequence.request.request_id][1] for sequence in sequences]
        for sequence, sampled in zip(sequences, self._choose(logits, states), strict=True):
            if sampled.error is not None:
                self._fail(sequence, sampled.error)
            else:
                self._update(sequence, sampled)

    def _choose(
        self, logits: NDArray[np.float32], states: list[SamplingState]
    ) -> list[SampledToken]:
        try:
            return self._sampler.sample(logits, states)
        except Exception as error:
            if len(states) == 1:
                return [SampledToken(-1, error=f"sampling failed: {_summary(error)}")]
            rows = [logits[index : index + 1] for index in range(len(states))]
            return [self._choose(row, [state])[0] for row, state in zip(rows, states, strict=True)]

    def _update(self, sequence: Sequence, sampled: SampledToken) -> None:
        config = sequence.request.config
        sequence.tokens.append(sampled.token_id)
        self._completion_tokens += 1
        if sampled.token_id in config.stop_token_ids:
            self._finish(sequence, FinishReason.STOP)
            return
        limit = self.limits.context_window - sequence.prompt_tokens
        if config.max_tokens is not None:
            limit = min(limit, config.max_tokens)
        if sequence.completion_tokens >= limit:
            self._finish(sequence, FinishReason.LENGTH, sampled)
        else:
            self._results.append(_output(sequence, (sampled,), None))

    def _finish(self, sequence: Sequence, reason: FinishReason, *sampled: SampledToken) -> None:
        self._end(sequence)
        self._results.append(_output(sequence, sampled, reason))

    def _fail(self, sequence: Sequence, message: str) -> None:
        self._end(sequence)
        request_id = sequence.request.request_id
        self._results.append(RequestFailure(request_id, GenerationFailed(message)))

    def _end(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self._close(sequence)

    def _close(self, sequence: Sequence) -> None:
        del self._open[sequence.request.request_id]
        self._leave_cache(sequence)

    def _leave_cache(self, sequence: Sequence) -> None:
        if sequence.seq_id >= 0:
            self._runner.remove(sequence.seq_id)
        sequence.leave_cache()


def _output(
    sequence: Sequence, sampled: tuple[SampledToken, ...], reason: FinishReason | None
) -> TokenOutput:
    return TokenOutput(
        request_id=sequence.request.request_id,
        token_ids=tuple(token.token_id for token in sampled),
        prompt_tokens=sequence.prompt_tokens,
        completion_tokens=sequence.completion_tokens,
        finish_reason=reason,
        logprobs=tuple(token.logprobs for token in sampled if token.logprobs is not None),
    )


def _summary(error: BaseException) -> str:
    """The last line of an error: TVM puts a stack trace before it."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
