"""Chooses the next tokens of a batch from its logits, in native code.

Knows token ids and numbers only: nothing of sequences, pages or stop conditions. Rows do not
influence each other, and the random number of a row is a function of (seed, position): one
seed gives one answer whatever shares the batch.
"""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aotlm import native
from aotlm.request import GenerationConfig, TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

_ROW_BYTES = ctypes.sizeof(native.SampleRow)
_STATUS_MESSAGES = {
    native.STATUS_NOT_FINITE: "the model's logits are not finite",
    native.STATUS_NO_TOKEN: "logit_bias forbids every token",
    native.STATUS_NO_MEMORY: "out of memory while sampling",
}


class SamplingState:
    """What the sampler must know of one sequence, kept between steps.

    `tokens` is the sequence's own array (int32, prompt then completion) and is read in place:
    the state sees what is appended to it.
    """

    __slots__ = ("_bias", "_forbidding_bias", "_keep", "prompt_tokens", "row", "tokens")

    def __init__(
        self,
        config: GenerationConfig,
        seed: int,
        tokens: array[int],
        prompt_tokens: int,
    ) -> None:
        self.tokens = tokens
        self.prompt_tokens = prompt_tokens
        self.row = native.SampleRow(
            seed=seed & (2**64 - 1),
            num_prompt_tokens=prompt_tokens,
            top_k=config.top_k,
            num_logprobs=-1 if config.logprobs is None else config.logprobs,
            temperature=config.temperature,
            top_p=config.top_p,
            min_p=config.min_p,
            repetition_penalty=config.repetition_penalty,
            presence_penalty=config.presence_penalty,
            frequency_penalty=config.frequency_penalty,
        )
        self._bias = _bias_arrays(config.logit_bias, ())
        # Until min_tokens are out the tokens that would stop the sequence are forbidden.
        self._forbidding_bias = (
            _bias_arrays(config.logit_bias, config.stop_token_ids) if config.min_tokens else None
        )
        self._keep = config.min_tokens

    def fill(self, row: native.SampleRow) -> None:
        """Write the row for the next token into `row`."""
        position = len(self.tokens) - self.prompt_tokens
        ids, values = self._bias
        if self._forbidding_bias is not None and position < self._keep:
            ids, values = self._forbidding_bias
        source = self.row
        source.position = position
        # buffer_info and not an exported buffer: an exported one would forbid append.
        source.tokens, source.num_tokens = self.tokens.buffer_info()
        source.bias_ids = ids.ctypes.data if len(ids) else None
        source.bias_values = values.ctypes.data if len(ids) else None
        source.num_bias = len(ids)
        ctypes.memmove(ctypes.byref(row), ctypes.byref(source), _ROW_BYTES)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The outcome for one row: a token, or why there is none.

    `token_id` is -1 when `error` is set. `logprobs` is set when the config asked for it.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class Sampler:
    """Samples batches of up to `max_batch_size` rows; buffers are kept between calls."""

    def __init__(self, max_batch_size: int) -> None:
        """Raises EngineError when the native library is missing or of another version."""
        self._library = native.library()
        self._rows = (native.SampleRow * max_batch_size)()
        self._results = (native.SampleResult * max_batch_size)()

    def sample(
        self, logits: NDArray[np.float32], states: Sequence[SamplingState]
    ) -> list[SampledToken]:
        """Choose one token per row.

        `logits`: float32 [batch, vocab], C-contiguous, not modified; `states`: one per row.
        """
        batch, vocab = logits.shape
        assert batch == len(states) <= len(self._rows)
        assert logits.dtype == np.float32
        assert logits.flags.c_contiguous
        most = 0
        for index, state in enumerate(states):
            state.fill(self._rows[index])
            most = max(most, int(state.row.num_logprobs))
        most = min(most, vocab)
        top_ids = np.empty((batch, most), np.int32)
        top_logprobs = np.empty((batch, most), np.float32)
        self._library.aotlm_sample(
            logits.ctypes.data,
            batch,
            vocab,
            self._rows,
            self._results,
            top_ids.ctypes.data if most else None,
            top_logprobs.ctypes.data if most else None,
            most,
        )
        return [
            self._outcome(index, min(int(state.row.num_logprobs), vocab), top_ids, top_logprobs)
            for index, state in enumerate(states)
        ]

    def _outcome(
        self,
        index: int,
        num_logprobs: int,
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float32],
    ) -> SampledToken:
        result = self._results[index]
        if result.status != native.STATUS_OK:
            return SampledToken(-1, error=_STATUS_MESSAGES[result.status])
        if num_logprobs < 0:
            return SampledToken(result.token)
        top = tuple(
            zip(
                top_ids[index, :num_logprobs].tolist(),
                top_logprobs[index, :num_logprobs].tolist(),
                strict=True,
            )
        )
        return SampledToken(result.token, TokenLogprobs(result.token, result.logprob, top))


def _bias_arrays(
    bias: Mapping[int, float], forbidden: Iterable[int]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    merged = dict(bias) | dict.fromkeys(forbidden, -np.inf)
    ids = np.fromiter(merged.keys(), np.int32, len(merged))
    values = np.fromiter(merged.values(), np.float32, len(merged))
    return ids, values
