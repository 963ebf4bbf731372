"""Refuses requests the engine could not answer as asked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aotlm.errors import ContextLengthError, RequestError

if TYPE_CHECKING:
    from aotlm.engine.protocol import EngineLimits
    from aotlm.request import GenerationConfig, Request

_INT32_MAX = 2**31 - 1


def validate_request(
    request: Request, limits: EngineLimits, *, vocab_size: int, cache_tokens: int
) -> None:
    """Raises RequestError, or ContextLengthError when the prompt is too long."""
    prompt = request.prompt_ids
    if not prompt:
        raise RequestError("the prompt is empty: give at least one token", "prompt")
    if len(prompt) >= limits.context_window:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens and the context window holds "
            f"{limits.context_window}, the answer included: shorten the prompt",
            "prompt",
        )
    if len(prompt) > cache_tokens:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens and the KV cache holds {cache_tokens}: "
            "shorten the prompt or give the cache more memory",
            "prompt",
        )
    if not 0 <= min(prompt) <= max(prompt) < vocab_size:
        raise RequestError(f"prompt token ids must be in [0, {vocab_size})", "prompt")
    _validate_config(request.config, vocab_size)


def _validate_config(config: GenerationConfig, vocab_size: int) -> None:
    _check("max_tokens", config.max_tokens or 0, 0, math.inf)
    _check("min_tokens", config.min_tokens, 0, math.inf)
    _check("temperature", config.temperature, 0.0, 1e6)
    _check("top_k", config.top_k, 0, _INT32_MAX)
    _check("min_p", config.min_p, 0.0, 1.0)
    _check("presence_penalty", config.presence_penalty, -1e6, 1e6)
    _check("frequency_penalty", config.frequency_penalty, -1e6, 1e6)
    _check("logprobs", config.logprobs or 0, 0, vocab_size)
    if not 0.0 < config.top_p <= 1.0:
        raise RequestError(f"top_p must be above 0 and at most 1, not {config.top_p}", "top_p")
    if not 0.0 < config.repetition_penalty <= 1e6:
        raise RequestError(
            f"repetition_penalty must be above 0, not {config.repetition_penalty}",
            "repetition_penalty",
        )
    for token_id, bias in config.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"logit_bias names token {token_id}, the vocabulary is [0, {vocab_size})",
                "logit_bias",
            )
        if not bias <= 1e6:
            raise RequestError(f"logit_bias of token {token_id} must be a number", "logit_bias")


def _check(name: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:  # also catches NaN
        limit = f"at least {lowest}" if highest == math.inf else f"in [{lowest}, {highest}]"
        raise RequestError(f"{name} must be {limit}, not {value}", name)
