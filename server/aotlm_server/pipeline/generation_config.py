"""Step 4: what the request, the operator and the checkpoint say about sampling, merged.

Precedence: request, then server flags, then the checkpoint's generation defaults, then
temperature 1 and top_p 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from aotlm.errors import RequestError
from aotlm.request import GenerationConfig
from aotlm_server.protocol.chat import ChatRequest
from aotlm_server.served_model import ServedModel
from aotlm_server.settings import Settings

_SEED_RANGE = 2**63
_TOKEN_ID = re.compile(r"[0-9]{1,9}")


def generation_configs(
    request: ChatRequest, model: ServedModel, settings: Settings
) -> list[GenerationConfig]:
    """One config a choice; they differ in the seed alone. Raises RequestError."""
    base = request.seed
    seeds = [None if base is None else (base + i) % _SEED_RANGE for i in range(request.n or 1)]
    return [_config(request, model, settings, seed) for seed in seeds]


def stop_strings(request: ChatRequest, model: ServedModel) -> tuple[str, ...]:
    """The request's stop strings, however they were written, and the template's own."""
    asked = (request.stop,) if isinstance(request.stop, str) else request.stop or ()
    return (*asked, *model.conversation.stop_strings)


def _config(
    request: ChatRequest, model: ServedModel, settings: Settings, seed: int | None
) -> GenerationConfig:
    defaults = model.generation_defaults
    vocab_size = model.tokenizer.vocab_size
    top_k = _first(request.top_k, settings.default_top_k, defaults.get("top_k"), 0)
    return GenerationConfig(
        max_tokens=request.max_completion_tokens or request.max_tokens or settings.max_tokens,
        min_tokens=request.min_tokens or 0,
        temperature=_first(
            request.temperature, settings.default_temperature, defaults.get("temperature"), 1.0
        ),
        top_p=_first(request.top_p, settings.default_top_p, defaults.get("top_p"), 1.0),
        top_k=max(int(top_k), 0),
        min_p=request.min_p or 0.0,
        repetition_penalty=_first(
            request.repetition_penalty, defaults.get("repetition_penalty"), 1.0
        ),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_logit_bias(request.logit_bias or {}, vocab_size),
        seed=seed,
        stop_token_ids=_stop_token_ids(request, model),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def _first(*values: float | None) -> float:
    """The first value that somebody chose."""
    return next(value for value in values if value is not None)


def _logit_bias(bias: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    for key in bias:
        if not _TOKEN_ID.fullmatch(key) or int(key) >= vocab_size:
            message = f"logit_bias: {key[:40]!r} is no token id; they go from 0 to {vocab_size - 1}"
            raise RequestError(message, param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def _stop_token_ids(request: ChatRequest, model: ServedModel) -> frozenset[int]:
    own = frozenset(request.stop_token_ids or ())
    if own and max(own) >= model.tokenizer.vocab_size:
        message = f"stop_token_ids: {max(own)} is no token id of this model"
        raise RequestError(message, param="stop_token_ids")
    return own if request.ignore_eos else own | model.end_token_ids
