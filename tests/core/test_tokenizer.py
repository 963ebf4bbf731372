"""Ids must be those of Hugging Face's `tokenizers`, whatever the text."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from aotlm.errors import ArtifactCorrupt, ArtifactNotFound
from aotlm.text.tokenizer import Tokenizer
from tests.core.tokenizer_files import (
    added_token,
    byte_level,
    smollm2_json,
    tokenizer_json,
    trained,
)

STYLES = ("smollm2", "llama3", "qwen2", "gpt2")

CORPUS = (
    "",
    "Hello world",
    "  leading, trailing  ",
    "def f(x):\n\treturn x ** 2  # square\n\n\n    \n",
    "for (int i = 0; i < 10; ++i) { a[i] += 0x1F; }\r\n\r\n",
    "1234567890 12 3.14159 1,000,000 v2.0.1  42",
    "   1  22   333    4444 \t5\n6",
    "½ ² ٣ Ⅷ 一二三 ①②③",
    "It's don't WE'LL I'd they've 'tis 'S 'ſ ’s",
    "中文字符混合 English 和 日本語のテキスト、한국어",
    "Ünïcödé naïve café e\u0301 Å \ufb01",
    "😀👨‍👩‍👧‍👦🏳️‍🌈 🇫🇷 👍🏽\ufe0f",
    "\u00a0\u2003\u3000\u200b\ufeff\u2028\u0085",
    " \n \n\n  \r\n\t\t x",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<|im_start|<|im_start|>|>  <|im_end|><|im_end|>",
    "<|begin|>a<|end|> <tool_call>s <tool_call> <tool_calls>",
    "\ufffd \ufffd\ufffd",
    "\x00\x01\x7f control \x1b[0m",
    "مرحبا بالعالم שלום עולם สวัสดี नमस्ते",
    "𝔘𝔫𝔦 𐍈 𠜎 \U0001f9ff",
    "a" * 300 + " " * 300 + "!" * 300 + "\n" * 300,
    "https://example.org/a?b=c&d=%20#e ~/x/y.z C:\\dir\\f.txt",
)


@cache
def json_of(style: str) -> bytes:
    if style == "smollm2":
        return smollm2_json()
    if style == "gpt2":
        data = trained("qwen2")
        data = data | {"pre_tokenizer": byte_level(use_regex=True), "normalizer": None}
        return json.dumps(data).encode()
    return json.dumps(trained(style)).encode()


@cache
def ours(style: str) -> Tokenizer:
    return Tokenizer(json_of(style))


@cache
def reference(style: str, allow_special: bool = True) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer.from_str(json_of(style).decode())
    library.encode_special_tokens = not allow_special
    return library


def expected(style: str, text: str, allow_special: bool) -> list[int]:
    return list(reference(style, allow_special).encode(text, add_special_tokens=False).ids)


def fast(tokenizer: Tokenizer) -> bool:
    tokenizer.prepare()
    return tokenizer._fast is not None


@pytest.mark.parametrize("style", STYLES)
def test_known_families_go_to_tiktoken(style: str) -> None:
    assert fast(ours(style))


@pytest.mark.parametrize("allow_special", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_corpus_has_the_ids_of_tokenizers(style: str, allow_special: bool) -> None:
    for text in (*CORPUS, " ".join(CORPUS)):
        assert ours(style).encode(text, allow_special) == expected(style, text, allow_special), text


# Characters where word, number and space rules meet, and pieces of the special tokens.
_NASTY = st.sampled_from(
    [
        *" \n\t\r'sStTdDlLmMrReEvV0129.,<>|_-#aéſ½Ⅷ中😀\u00a0\u3000\u200d\u0301\x00\x0b\U000e0041",
        *("<|im_end|>", "<|im_start|>", "<|end|>", "<tool_call>", "'ll", "  ", "\n\n", "\r\n"),
    ]
)


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(
        st.lists(_NASTY, max_size=30).map("".join),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    ),
    allow_special=st.booleans(),
)
def test_any_text_has_the_ids_of_tokenizers(style: str, text: str, allow_special: bool) -> None:
    assert ours(style).encode(text, allow_special) == expected(style, text, allow_special)


@pytest.mark.parametrize("style", ["smollm2", "qwen2"])
def test_every_assigned_character_has_the_ids_of_tokenizers(style: str) -> None:
    # Beside a letter, a digit and a blank: where its class decides how the text is cut.
    for start in range(0, sys.maxunicode, 4096):
        chars = [
            char
            for char in map(chr, range(start, start + 4096))
            if unicodedata.category(char) not in ("Cs", "Cn", "Co")
        ]
        text = "".join(f"a{char}1 {char}" for char in chars)
        assert ours(style).encode(text, False) == expected(style, text, False)


def test_special_tokens_in_user_text_stay_text() -> None:
    tokenizer = ours("smollm2")
    end = tokenizer.token_to_id("<|im_end|>")
    assert end == 2
    assert tokenizer.encode("<|im_end|>", allow_special=True) == [end]
    ids = tokenizer.encode("<|im_end|>", allow_special=False)
    assert end not in ids
    assert tokenizer.decode(ids) == "<|im_end|>"


def test_decoding_gives_the_text_back() -> None:
    for style in STYLES:
        for text in CORPUS:
            if style == "qwen2" and not unicodedata.is_normalized("NFC", text):
                continue
            if style == "smollm2" and "\x00" in text:
                continue  # this vocabulary lacks a few bytes
            assert ours(style).decode(ours(style).encode(text, False)) == text


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49_151), max_size=40))
def test_any_ids_decode_as_in_tokenizers(ids: list[int]) -> None:
    assert ours("smollm2").decode(ids) == reference("smollm2").decode(ids, skip_special_tokens=True)


def test_tokens_and_their_bytes() -> None:
    tokenizer = ours("smollm2")
    assert tokenizer.vocab_size == 49_152
    assert tokenizer.token_bytes(19_556) == b"Hello"
    assert tokenizer.token_bytes(2) == b""  # special
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(19_556)
    assert tokenizer.token_bytes(49_152) == tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_to_id("no such token") is None
    qwen = ours("qwen2")
    call = qwen.token_to_id("<tool_call>")
    assert call is not None
    assert qwen.token_bytes(call) == b"<tool_call>"
    assert not qwen.is_special(call)


def test_lone_surrogates_are_read_as_replacement_characters() -> None:
    assert ours("smollm2").encode("a\ud83db", False) == ours("smollm2").encode("a\ufffdb", False)
    assert ours("smollm2").encode("\ud83d\ude00", False) == ours("smollm2").encode("😀", False)


@pytest.mark.parametrize("style", STYLES)
def test_long_runs_of_blanks_have_the_ids_of_tokenizers(style: str) -> None:
    for char in (" ", "\n", "\t \n"):
        text = "x" + (char * 49_999)[:49_999] + "y"
        fast_path = ours(style)._fast
        assert fast_path is None or fast_path.accepts(text)
        assert ours(style).encode(text, False) == expected(style, text, False)


def test_a_million_blanks_do_not_end_the_process() -> None:
    for char in (" ", "\n", " \n"):  # tiktoken alone would panic
        text = "x" + char * (1_000_000 // len(char)) + "y"
        assert ours("llama3").decode(ours("llama3").encode(text, False)) == text


@pytest.mark.parametrize("char", ["a", "^", "中", "1"])
def test_a_very_long_word_is_encoded_in_time(char: str) -> None:
    text = char * 200_000
    assert ours("smollm2").encode(text, False) == expected("smollm2", text, False)


LIBRARY_ONLY: dict[str, dict[str, Any]] = {
    "an added token that swallows blanks": {
        "added_tokens": [added_token(4_000, "<|x|>", rstrip=True)]
    },
    "an unknown split": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": r"\s+"},
            "behavior": "Isolated",
            "invert": False,
        }
    },
    "a prefix space": {"pre_tokenizer": byte_level(use_regex=True) | {"add_prefix_space": True}},
    "lower case": {"normalizer": {"type": "Lowercase"}},
}


@pytest.mark.parametrize("kind", LIBRARY_ONLY)
def test_what_tiktoken_cannot_do_goes_to_tokenizers(kind: str) -> None:
    text = json.dumps(trained("qwen2") | LIBRARY_ONLY[kind])
    tokenizer = Tokenizer(text.encode())
    library = tokenizers.Tokenizer.from_str(text)
    assert not fast(tokenizer)
    for sample in (*CORPUS, "a <|x|>   b"):
        assert tokenizer.encode(sample, True) == library.encode(sample).ids


def test_a_sentencepiece_vocabulary() -> None:
    vocab = [("<unk>", 0.0), ("<s>", 0.0), ("\u2581Hi", -1.0), ("!", -2.0), ("\u2581", -3.0)]
    vocab += [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    data = {
        "version": "1.0",
        "added_tokens": [added_token(1, "<s>")],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": vocab},
    }
    tokenizer = Tokenizer(json.dumps(data).encode())
    ids = tokenizer.encode("<s> Hi!é", allow_special=True)
    assert ids == [1, 2, 3, 5 + 0xC3, 5 + 0xA9]
    assert tokenizer.decode(ids) == " Hi!é"
    # The vocabulary holds "<s>" as a piece like any other.
    ids = tokenizer.encode("Hi<s>!", allow_special=False)
    assert 1 not in ids
    assert tokenizer.decode(ids) == "Hi<s>!"


def test_padding_and_truncation_of_the_file_are_not_ours() -> None:
    settings_ = {
        "truncation": {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "normalizer": {"type": "Lowercase"},
    }
    tokenizer = Tokenizer(json.dumps(trained("qwen2") | settings_).encode())
    assert len(tokenizer.encode("one two three four", False)) > 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a readable tokenizer.json"),
        (b"\xff\xfe", "not a readable tokenizer.json"),
        (b"[]", "not a readable tokenizer.json"),
        (b"{}", "'model'"),
        (b'{"model": {"type": "BPE", "vocab": {"a": "1"}, "merges": []}}', "whole number"),
        (b'{"model": {"vocab": {}}, "added_tokens": [{"id": 1}]}', "'content'"),
        (b'{"model": {"vocab": {}}, "added_tokens": [{"id": -1, "content": ""}]}', "lacks an id"),
    ],
)
def test_a_file_that_is_no_tokenizer(text: bytes, said: str) -> None:
    with pytest.raises(ArtifactCorrupt, match=r"^tokenizer\.json ") as caught:
        Tokenizer(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_malformed_merges_are_told_when_the_encoder_is_made() -> None:
    data = tokenizer_json({"a": 0}, [["a", "b"]])
    tokenizer = Tokenizer(json.dumps(data).encode(), "here/tokenizer.json")
    with pytest.raises(ArtifactCorrupt, match=r"here/tokenizer\.json is not usable"):
        tokenizer.encode("a", False)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFound, match="there is no tokenizer at"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")
    with pytest.raises(ArtifactCorrupt, match="cannot be read"):
        Tokenizer.from_file(tmp_path)


def test_loading_imports_only_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(smollm2_json())
    program = (
        "import sys\n"
        "from aotlm.text.tokenizer import Tokenizer\n"
        f"tokenizer = Tokenizer.from_file({str(path)!r})\n"
        "assert not {'tiktoken', 'tokenizers', 'jinja2', 'numpy'} & set(sys.modules)\n"
        "assert tokenizer.encode('Hello 😀 12', False)\n"
        "assert not {'tokenizers', 'jinja2'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
