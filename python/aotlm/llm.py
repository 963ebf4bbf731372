"""`LLM`: a compiled model for scripts, in this process and on this thread.

from aotlm.llm import LLM
llm = LLM("smollm2-135m-gguf-cpu")
print(llm.generate("The capital of France is", max_tokens=8)[0].text)
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aotlm.artifact import Artifact, find_model
from aotlm.config import EngineConfig
from aotlm.engine.engine import RequestFailure, StepResult
from aotlm.engine.loading import load_engine
from aotlm.errors import EngineError
from aotlm.model_text import load_text
from aotlm.request import FinishReason, GenerationConfig, Request, TokenLogprobs, TokenOutput
from aotlm.text.detokenizer import Detokenizer
from aotlm.text.stop_strings import StopStrings
from aotlm.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
Prompts = str | Sequence[str] | Messages


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer. `token_ids` end before the end token or inside a stop string."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[TokenLogprobs, ...] = ()


class LLM:
    """Runs prompts in one batch. Not thread-safe: use it on the thread that made it."""

    def __init__(self, artifact: str | Path, **settings: Any) -> None:
        """`artifact`: a folder, or the name of one under the build root.

        `settings`: fields of `EngineConfig` (max_batch_size, cache_tokens, threads, seed, ...).
        Raises ArtifactError, EngineError or RequestError.
        """
        path = find_model(artifact)
        self.artifact = Artifact.open(path)
        self.tokenizer, self.conversation = load_text(self.artifact)
        self._engine = load_engine(EngineConfig(artifact=path, **settings))
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompts,
        config: GenerationConfig | None = None,
        *,
        stop: Sequence[str] = (),
        **changes: Any,
    ) -> list[Completion]:
        """Answer one text, several texts, or one conversation (a list of messages).

        `config` and `changes` (its fields) say how; what neither says is the model's own
        default. `stop`: texts that end an answer and are not part of it.
        Raises RequestError, ContextLengthError, or GenerationFailed when one of them failed.
        """
        encoded = self._encode(prompts)
        settings = self._config(config, changes)
        answers = [_Answer(self.tokenizer, (*stop, *self._stop_strings(prompts))) for _ in encoded]
        requests = [Request(f"llm-{next(self._ids)}", ids, settings) for ids in encoded]
        for request in requests:
            self._engine.validate(request)
        by_id = dict(zip((request.request_id for request in requests), answers, strict=True))
        for request_id, output in self._run(requests):
            answer = by_id[request_id]
            answer.push(output)
            if answer.stopped:
                self._engine.abort(request_id)
        return [answer.completion() for answer in answers]

    def stream(
        self,
        prompt: str | Messages,
        config: GenerationConfig | None = None,
        *,
        stop: Sequence[str] = (),
        **changes: Any,
    ) -> Iterator[str]:
        """The text of one answer, piece by piece; joined it is what `generate` returns.

        Leaving the iterator ends the answer. Raises as `generate`.
        """
        (ids,) = self._encode([prompt] if isinstance(prompt, str) else prompt)
        answer = _Answer(self.tokenizer, (*stop, *self._stop_strings(prompt)))
        request = Request(f"llm-{next(self._ids)}", ids, self._config(config, changes))
        for _, output in self._run([request]):
            piece = answer.push(output)
            if piece:
                yield piece
            if answer.stopped:
                return

    def _run(self, requests: Sequence[Request]) -> Iterator[tuple[str, TokenOutput]]:
        """Outputs as they come. Whatever is left when the reader leaves is aborted."""
        engine = self._engine
        if engine.has_work:
            raise EngineError("an answer of this LLM is still being streamed: close it first")
        queue = deque(requests)
        try:
            while queue or engine.has_work:
                results: list[StepResult] = []
                while queue and engine.has_room:
                    output = engine.add(queue.popleft())
                    results.extend([] if output is None else [output])
                for result in (*results, *engine.step()):
                    if isinstance(result, RequestFailure):
                        raise result.error
                    yield result.request_id, result
        finally:
            for request in requests:
                engine.abort(request.request_id)

    def _encode(self, prompts: Prompts) -> list[tuple[int, ...]]:
        if isinstance(prompts, str):
            return [self._encode_text(prompts)]
        if not prompts:
            return []
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if texts and len(texts) == len(prompts):
            return [self._encode_text(text) for text in texts]
        messages = [prompt for prompt in prompts if not isinstance(prompt, str)]
        rendered = self.conversation.render(messages)
        return [tuple(self.tokenizer.encode(rendered, allow_special=True))]

    def _encode_text(self, text: str) -> tuple[int, ...]:
        tokens = self.artifact.manifest.tokens
        begin = [tokens.bos_id] if tokens.add_bos and tokens.bos_id is not None else []
        return (*begin, *self.tokenizer.encode(text, allow_special=False))

    def _stop_strings(self, prompts: Prompts) -> tuple[str, ...]:
        plain = isinstance(prompts, str) or all(isinstance(prompt, str) for prompt in prompts)
        return () if plain else self.conversation.stop_strings

    def _config(
        self, config: GenerationConfig | None, changes: Mapping[str, Any]
    ) -> GenerationConfig:
        """The caller's settings over the model's defaults, and the model's end tokens."""
        manifest = self.artifact.manifest
        base = config or GenerationConfig(**manifest.generation.given())  # type: ignore[arg-type]
        chosen = replace(base, **changes)
        ends = chosen.stop_token_ids | frozenset(manifest.tokens.eos_ids)
        return replace(chosen, stop_token_ids=ends)


class _Answer:
    """Gathers one answer; text is whole characters and never shows a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.stopped = False  # by a stop string: the engine does not know
        self._detokenizer = Detokenizer(tokenizer)
        self._stop_strings = StopStrings(stop)
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._last: TokenOutput | None = None

    def push(self, output: TokenOutput) -> str:
        """Returns the text it adds."""
        if self.stopped:
            return ""
        self._last = output
        self._token_ids.extend(output.token_ids)
        self._logprobs.extend(output.logprobs)
        text = self._detokenizer.push(output.token_ids)
        if output.finish_reason is not None:
            text += self._detokenizer.finish()
        piece, self.stopped = self._stop_strings.push(text)
        if output.finish_reason is not None and not self.stopped:
            piece += self._stop_strings.finish()
        self._pieces.append(piece)
        return piece

    def completion(self) -> Completion:
        last = self._last
        assert last is not None
        reason = FinishReason.STOP if self.stopped else last.finish_reason
        assert reason is not None
        return Completion(
            text="".join(self._pieces),
            token_ids=tuple(self._token_ids),
            finish_reason=reason,
            prompt_tokens=last.prompt_tokens,
            completion_tokens=last.completion_tokens,
            logprobs=tuple(self._logprobs),
        )
