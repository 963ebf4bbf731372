"""How far logits lie from reference logits, in the terms that matter for text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Divergence:
    """`kl`: mean Kullback-Leibler divergence from the reference, nats a token; `agreement`: share
    of tokens with the same most likely successor; `perplexity` over the text itself."""

    kl: float
    agreement: float
    perplexity: float
    reference_perplexity: float


def compare(logits: Floats, reference: Floats, tokens: Sequence[int]) -> Divergence:
    """Logits float32 [n, vocab] of each token of a text; row i is about tokens[i + 1]."""
    assert logits.shape == reference.shape
    assert len(tokens) == len(logits)
    p, q = log_softmax(reference), log_softmax(logits)
    following = np.array(tokens[1:])
    rows = np.arange(len(following))
    return Divergence(
        kl=float((np.exp(p) * (p - q)).sum(axis=-1).mean()),
        agreement=float((p.argmax(axis=-1) == q.argmax(axis=-1)).mean()),
        perplexity=float(np.exp(-q[rows, following].mean())),
        reference_perplexity=float(np.exp(-p[rows, following].mean())),
    )


def log_softmax(logits: Floats) -> Doubles:
    """float64, over the last axis."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide
