"""From a table of BPE merges to the ranks tiktoken wants, without changing a single token.

The two disagree on what a merge is. A merge table joins the *pairs* it lists, by rank;
tiktoken joins any two neighbours whose joined bytes are a token, by the token's rank. So
"a" + "bc" may become "abc" in tiktoken though the table only lists "ab" + "c".

They agree when every token is *reachable*: its own bytes, encoded alone, end as that token.
Reason: while two neighbours l, r lie side by side in some text, no merge has crossed their
outer borders, so the merges inside have been those of encoding the bytes of l + r alone. That
run passes through one state of two tokens only, the last but one; hence (l, r) is the pair the
token is really made of, and it is in the table. `reachable_merges` finds this pair for every
token; tokens that are never made are left out of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from aotlm.text.byte_alphabet import BYTE_ALPHABET

Ids = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max  # rank of a token that no run of merges makes
_MAX_SLOW_CHECKS = 5_000  # a table with more unreachable tokens than this is not a normal one


def exact_ranks(
    vocab: Mapping[str, int],
    pairs: Sequence[Sequence[str]],
    *,
    ignore_merges: bool,
) -> list[int] | None:
    """Ranks by token id under which tiktoken gives the same tokens as the merge table.

    `ignore_merges` says whether a piece that is a token as a whole skips the merges, as it
    always does in tiktoken. Returns a rank for each id; -1 for tokens that tiktoken must
    not know, and for the 256 bytes, which the caller ranks below everything else. None when no
    ranks give the same tokens, or when that could not be shown.
    """
    count = len(pairs)
    joined = list(map("".join, pairs))
    try:
        parts = np.fromiter(map(vocab.__getitem__, chain.from_iterable(pairs)), np.int64, 2 * count)
        result = np.fromiter(map(vocab.__getitem__, joined), np.int64, count)
    except KeyError:
        return None
    left, right = parts[::2].copy(), parts[1::2].copy()
    lengths = np.fromiter(map(len, joined), np.int64, count)
    born = np.full(max(vocab.values(), default=0) + 1, _NEVER, dtype=np.int64)
    born[[vocab[char] for char in BYTE_ALPHABET if char in vocab]] = -1
    reachable_merges(left, right, result, lengths, born)
    unmade = set(np.flatnonzero(born == _NEVER).tolist())
    rest = [token for token, index in vocab.items() if index in unmade]
    if len(rest) > _MAX_SLOW_CHECKS:
        return None
    born[born == _NEVER] = -1
    inside = {token[i:j] for token in rest for j in range(len(token) + 1) for i in range(j)}
    order = {tuple(pairs[rank]): rank for rank, text in enumerate(joined) if text in inside}
    for extra, token in enumerate(rest):
        pieces = len(merge_alone(token, order))
        if pieces == 1 or (ignore_merges and pieces == 2):
            return None
        if ignore_merges:  # only ever found as a whole piece, so any free rank will do
            born[vocab[token]] = count + extra
    return born.tolist()


def merge_alone(token: str, order: Mapping[tuple[str, ...], int]) -> list[str]:
    """Apply the merges to one spelling, one at a time: slow, plain, and by definition right."""
    parts = list(token)
    while len(parts) > 1:
        candidates = [
            (order[pair], index) for index, pair in enumerate(pairwise(parts)) if pair in order
        ]
        if not candidates:
            break
        index = min(candidates)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return parts


def reachable_merges(left: Ids, right: Ids, result: Ids, lengths: Ids, born: Ids) -> None:
    """Find the rank of the merge that makes each token when its bytes are encoded alone.

    left, right, result, lengths: int64 [merges], in rank order (`lengths` of the results).
    born: int64 [vocab], -1 for the alphabet and `_NEVER` elsewhere; filled in place. Tokens
    left at `_NEVER` were not shown to be reachable (a few of them may be, through a pair that
    outranks its own parts).
    """
    pairs = _PairTable(left, right, len(born))
    parts = np.zeros((2, len(born)), dtype=np.int64)
    ranks = np.arange(len(result))
    born[result] = ranks
    once = bool((born[result] == ranks).all())
    born[result] = _NEVER
    if once:
        # One merge a token, so what a token is made of is known: check all of them at once.
        ranks = _well_founded(ranks, left, right, result, born)
        born[result[ranks]] = ranks
        parts[:, result[ranks]] = left[ranks], right[ranks]
        good = ranks[~_crossed(left[ranks], right[ranks], born, parts, pairs)]
        born[result] = _NEVER
        good = _well_founded(good, left, right, result, born)
        born[result[good]] = good
        return
    ranks = ranks[np.argsort(lengths, kind="stable")]
    borders = np.flatnonzero(np.diff(lengths[ranks])) + 1
    for group in np.split(ranks, borders):  # the parts of a token are shorter than it
        proper = group[(born[left[group]] < group) & (born[right[group]] < group)]
        good = proper[~_crossed(left[proper], right[proper], born, parts, pairs)]
        born[result[good]] = good
        parts[:, result[good]] = left[good], right[good]


def _well_founded(ranks: Ids, left: Ids, right: Ids, result: Ids, born: Ids) -> Ids:
    """Those merges whose parts are made by earlier ones of them, all the way down to `born`."""
    made = born.copy()
    while True:
        made[result[ranks]] = ranks
        good = (made[left[ranks]] < ranks) & (made[right[ranks]] < ranks)
        if good.all():
            return ranks
        made[result[ranks[~good]]] = _NEVER
        ranks = ranks[good]


class _PairTable:
    """Rank of a pair of ids, for whole arrays of pairs at once."""

    def __init__(self, left: Ids, right: Ids, vocab_size: int) -> None:
        self._stride = vocab_size
        keys = left * vocab_size + right
        self._ranks = np.argsort(keys, kind="stable")
        self._keys = keys[self._ranks]

    def rank(self, left: Ids, right: Ids) -> Ids:
        """int64 [n], [n] -> int64 [n]; `_NEVER` for pairs that are not in the table."""
        wanted = left * self._stride + right
        found = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.where(self._keys[found] == wanted, self._ranks[found], _NEVER)


def _crossed(left: Ids, right: Ids, born: Ids, parts: Ids, pairs: _PairTable) -> NDArray[np.bool_]:
    """Whether a merge across the border of left and right comes before both are whole.

    Walks back in time: the younger of the two tokens at the border is taken apart, and the
    pair then at the border must not outrank the merge that was undone.

        ... x1 x2 | y ...    with x = x1 x2 younger than y: undo x, look at the pair (x2, y)
    """
    crossed = np.zeros(len(left), dtype=np.bool_)
    where = np.arange(len(left))
    x, y = left, right
    while True:
        undone = np.maximum(born[x], born[y])
        alive = undone >= 0
        where, x, y, undone = where[alive], x[alive], y[alive], undone[alive]
        if not len(where):
            return crossed
        # Of twins the left one was made first, so the right one is undone first.
        undo_left = born[x] > born[y]
        x, y = np.where(undo_left, parts[1, x], x), np.where(undo_left, y, parts[0, y])
        rank = pairs.rank(x, y)
        # Equal ranks are one and the same pair twice: the left one is merged first.
        first = (rank < undone) | ((rank == undone) & ~undo_left)
        crossed[where[first]] = True
        where, x, y = where[~first], x[~first], y[~first]
