"""What the engine is asked and what it answers: plain data, token ids only.

Text, templates and stop strings live in `aotlm.text`; HTTP in `aotlm_server`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # an end token of the model or a stop token of the request
    LENGTH = "length"  # max_tokens or the context window was reached
    ABORT = "abort"  # the caller gave up


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How the next token is chosen and when to end.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 switch those filters off.
    `max_tokens` None means: what is left of the context window.
    `logprobs` None means off; k means the chosen token's logprob and the k most likely ones.
    `stop_token_ids` holds the model's end tokens and those of the request;
    `ignore_eos` empties the model's part before the engine sees it.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. `prompt_ids` are the token ids of the whole prompt."""

    request_id: str
    prompt_ids: tuple[int, ...]
    config: GenerationConfig = GenerationConfig()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one position, before temperature and filters."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most likely first


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What one engine step gave one request.

    `token_ids` may be empty in the last output. An end token that stopped the sequence is
    counted in `completion_tokens` but is not among `token_ids`: it has no text.
    """

    request_id: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token id when asked for
