"""The sampler again, in float64 NumPy and by sorting: what the native one is checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aotlm.request import GenerationConfig

_WORD = 0xFFFFFFFF


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Philox 4x32-10 in Python integers (Salmon et al. 2011)."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The first 64 bits of the block as a float64 in [0, 1)."""
    low, high, _, _ = philox(
        (seed & _WORD, seed >> 32 & _WORD), (position & _WORD, position >> 32 & _WORD, 0, 0)
    )
    return float((high << 32 | low) >> 11) / 2**53


@dataclass(frozen=True)
class Distribution:
    """`kept`: bool [vocab]; `probabilities`: float64 [vocab], 0 where not kept."""

    kept: NDArray[np.bool_]
    probabilities: NDArray[np.float64]


def processed(
    logits: NDArray[Any], config: GenerationConfig, prompt: list[int], completion: list[int]
) -> NDArray[np.float64]:
    """Logits after penalties and bias: float64 [vocab]."""
    x = logits.astype(np.float64).copy()
    for token in set(prompt) | set(completion):
        scale = config.repetition_penalty
        x[token] = x[token] / scale if x[token] > 0 else x[token] * scale
    for token in set(completion):
        x[token] -= config.presence_penalty + config.frequency_penalty * completion.count(token)
    for token, bias in config.logit_bias.items():
        x[token] += bias
    return x


def distribution(x: NDArray[np.float64], config: GenerationConfig) -> Distribution:
    """Temperature and filters on processed logits, by sorting the whole vocabulary."""
    scaled = (x - x.max()) / config.temperature
    weights = np.exp(scaled)
    order = np.lexsort((np.arange(len(x)), -x))  # logit descending, id ascending
    count = len(x)
    if 0 < config.top_k < count:
        count = config.top_k
    if config.top_p < 1.0:
        mass = np.cumsum(weights[order[:count]])
        count = int(np.searchsorted(mass, config.top_p * mass[-1])) + 1
    kept = np.zeros(len(x), np.bool_)
    kept[order[:count]] = True
    if config.min_p > 0.0:
        kept &= weights >= config.min_p * weights.max()
    weights = np.where(kept, weights, 0.0)
    return Distribution(kept, weights / weights.sum())


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x = x - x.max()
    return np.asarray(x - np.log(np.exp(x).sum()))
