"""Any merge table: either tiktoken gives the same ids as `tokenizers`, or it is not used."""

from __future__ import annotations

import json
import random

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from aotlm.text.bpe_table import exact_ranks, merge_alone
from aotlm.text.byte_alphabet import BYTE_ALPHABET, spelled_bytes
from aotlm.text.tokenizer import Tokenizer
from tests.core.tokenizer_files import smollm2_json, tokenizer_json

BYTES = {char: byte for byte, char in enumerate(BYTE_ALPHABET)}


@st.composite
def merge_tables(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Small tables over three letters; sometimes shuffled, so that parts come after wholes."""
    tokens = ["a", "b", "c"]
    pairs: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 14))):
        pair = (draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens)))
        if pair in pairs or len("".join(pair)) > 12:
            continue
        pairs.append(pair)
        if "".join(pair) not in tokens:
            tokens.append("".join(pair))
    if draw(st.integers(0, 3)) == 0:
        pairs = draw(st.permutations(pairs))
    vocab = dict(BYTES)
    for token in draw(st.permutations(tokens[3:])):
        vocab[token] = len(vocab)
    return vocab, pairs


@settings(max_examples=400, deadline=None)
@given(
    table=merge_tables(),
    ignore_merges=st.booleans(),
    texts=st.lists(st.text("abc", min_size=1, max_size=24), min_size=1, max_size=8),
)
def test_any_table_gives_the_ids_of_tokenizers(
    table: tuple[dict[str, int], list[tuple[str, str]]], ignore_merges: bool, texts: list[str]
) -> None:
    data = json.dumps(tokenizer_json(*table, ignore_merges=ignore_merges))
    ours = Tokenizer(data.encode())
    library = tokenizers.Tokenizer.from_str(data)
    for text in (*texts, *table[0]):
        assert ours.encode(text, True) == library.encode(text).ids


def ranks(pairs: list[tuple[str, str]], ignore_merges: bool = False) -> dict[str, int] | None:
    vocab = dict(BYTES)
    for pair in pairs:
        vocab.setdefault("".join(pair), len(vocab))
    by_id = exact_ranks(vocab, pairs, ignore_merges=ignore_merges)
    if by_id is None:
        return None
    return {token: by_id[index] for token, index in vocab.items() if by_id[index] >= 0}


def test_a_plain_table_keeps_its_order() -> None:
    assert ranks([("a", "b"), ("ab", "c"), ("abc", "abc")]) == {"ab": 0, "abc": 1, "abcabc": 2}


def test_a_token_that_is_never_made_is_left_out() -> None:
    # "bc" is merged first, so "abc" never comes of "ab" + "c".
    assert ranks([("b", "c"), ("a", "b"), ("ab", "c")]) == {"bc": 0, "ab": 1}


def test_a_token_that_only_whole_pieces_find_needs_three_parts() -> None:
    pairs = [("b", "c"), ("a", "b"), ("ab", "c")]
    # tiktoken would merge "a" + "bc", which the table does not.
    assert ranks(pairs, ignore_merges=True) is None
    # "a" + "cb" + "c" are three parts when nothing more can be done: no merge by accident.
    pairs = [("c", "b"), ("b", "c"), ("a", "c"), ("ac", "bc")]
    assert ranks(pairs, ignore_merges=True) == {"cb": 0, "bc": 1, "ac": 2, "acbc": 4}


def test_the_second_way_to_a_token_does_not_count() -> None:
    assert ranks([("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]) == {
        "ab": 0,
        "bc": 1,
        "abc": 2,
    }


def test_twins_are_merged_from_the_left() -> None:
    assert ranks([("a", "a"), ("aa", "a")]) == {"aa": 0, "aaa": 1}
    assert ranks([("a", "a"), ("a", "aa")]) == {"aa": 0}


def test_a_table_with_unknown_tokens_has_no_ranks() -> None:
    assert exact_ranks({"a": 0}, [("a", "b")], ignore_merges=False) is None
    assert exact_ranks({}, [], ignore_merges=False) == [-1]


def test_two_tokens_with_one_id_are_left_to_tokenizers() -> None:
    vocab = BYTES | {"ab": 256, "bc": 256}
    data = json.dumps(tokenizer_json(vocab, [["a", "b"], ["b", "c"]]))
    ours = Tokenizer(data.encode())
    library = tokenizers.Tokenizer.from_str(data)
    for text in ("ab", "bc", "abc"):
        assert ours.encode(text, True) == library.encode(text).ids


def test_reachable_tokens_of_a_real_vocabulary() -> None:
    model = json.loads(smollm2_json())["model"]
    vocab, pairs = model["vocab"], [merge.split(" ") for merge in model["merges"]]
    by_id = exact_ranks(vocab, pairs, ignore_merges=False)
    assert by_id is not None
    order = {tuple(pair): rank for rank, pair in enumerate(pairs)}
    for token in random.Random(0).sample(sorted(vocab), 500):
        made = len(merge_alone(token, order)) == 1
        assert made == (by_id[vocab[token]] >= 0 or len(token) == 1), token


def test_the_byte_alphabet_is_the_one_of_tokenizers() -> None:
    assert set(BYTE_ALPHABET) == set(pre_tokenizers.ByteLevel.alphabet())
    text = "".join(map(chr, range(1, 0x800)))
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert b"".join(spelled_bytes([piece for piece, _ in pieces]) or []) == text.encode()


def test_what_spells_no_bytes() -> None:
    assert spelled_bytes(["ab", "", "Ġc"]) == [b"ab", b"", b" c"]
    for char in (" ", "\n", "\x7f", "\xa0", "\xad", "\u0144", "中", "😀"):
        assert spelled_bytes(["a", char]) is None
