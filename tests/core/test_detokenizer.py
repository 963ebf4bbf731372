"""Joined pieces must equal decoding everything at once, and never hold half a character."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aotlm.text.detokenizer import Detokenizer


class Pieces:
    """A tokenizer whose token i is the i-th piece of bytes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def pushes(pieces: list[bytes], sizes: list[int] | None = None) -> list[str]:
    """What each push gives, `finish` last; `sizes` tokens at a time."""
    detokenizer = Detokenizer(Pieces(pieces))
    texts = []
    start = 0
    for size in sizes or [1] * len(pieces):
        texts.append(detokenizer.push(range(start, min(start + size, len(pieces)))))
        start += size
    texts.append(detokenizer.push(range(min(start, len(pieces)), len(pieces))))
    return [*texts, detokenizer.finish()]


_BYTES = st.one_of(
    st.binary(max_size=4),
    st.text(max_size=3).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from([b"\xf0\x9f", b"\x98\x80", b"\xe4", b"\xb8\xad", b"\xef\xbf\xbd", b"\xff"]),
)


@given(pieces=st.lists(_BYTES, max_size=20), sizes=st.lists(st.integers(0, 5), max_size=10))
def test_any_cut_gives_the_whole_text(pieces: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert "".join(pushes(pieces, sizes)) == whole
    assert "".join(pushes(pieces)) == whole


@given(text=st.text(max_size=20), cuts=st.lists(st.integers(0, 80), max_size=10))
def test_valid_text_is_only_given_in_whole_characters(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    seen = b""
    given_out = ""
    for piece, out in zip(pieces, pushes(pieces), strict=False):
        seen += piece
        given_out += out
        assert data.startswith(given_out.encode())
        assert len(seen) - len(given_out.encode()) < 4  # nothing is held that could be given


def test_characters_over_several_tokens() -> None:
    smile = "😀".encode()
    assert pushes([smile[:1], smile[1:3], smile[3:] + b"!"]) == ["", "", "😀!", "", ""]


def test_a_genuine_replacement_character_passes_at_once() -> None:
    assert pushes(["\ufffd".encode(), b"x"]) == ["\ufffd", "x", "", ""]
    assert pushes([b"\xef", b"\xbf", b"\xbd"]) == ["", "", "\ufffd", "", ""]


def test_bytes_left_at_the_end_come_out_once() -> None:
    detokenizer = Detokenizer(Pieces([b"a", b"\xf0\x9f\x98"]))
    assert detokenizer.push([0, 1]) == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_broken_bytes_become_replacement_characters_in_place() -> None:
    assert pushes([b"a\xff", b"b\xf0\x9f", b"c"]) == ["a\ufffd", "b", "\ufffdc", "", ""]


def test_special_tokens_have_no_text() -> None:
    assert pushes([b"a", b"", b"b"]) == ["a", "", "b", "", ""]


def test_time_is_linear_in_the_text() -> None:
    pieces = Pieces([b"word ", "é".encode()[:1], "é".encode()[1:]])
    detokenizer = Detokenizer(pieces)
    started = time.perf_counter()
    for _ in range(100_000):
        detokenizer.push([0, 1, 2])
    assert time.perf_counter() - started < 5  # quadratic would take minutes
