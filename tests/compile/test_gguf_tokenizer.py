from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from aotlm.errors import CheckpointError
from aotlm_compile.checkpoint.gguf import GgufCheckpoint
from aotlm_compile.checkpoint.gguf_tokenizer import PRE_TOKENIZERS, end_token_ids, tokenizer_json
from tests.compile.gguf_samples import write_llama
from tests.conftest import smollm2_gguf
from tests.tiny_model import tiny_tokenizer

TEXTS = [
    "",
    " ",
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces\n\n\tand\r\nlines   ",
    "I'll say it's 12345 and 3.14159, don't you'd?",
    "def f(x):\n    return x ** 2  # squared\n",
    "naïve café — “quotes” … ½",
    "日本語のテキスト、中文，한국어",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u212b",
    "a\u0000b\ufffd",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "HELLO'S WE'RE 1000000 __init__ <<<>>>",
]


def test_ids_of_the_real_vocabulary_equal_a_tokenizer_built_by_hand() -> None:
    """Built from the same file with the gguf package and the tokenizers library."""
    path = smollm2_gguf()
    fields = gguf.GGUFReader(path).fields
    texts = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(line.split(" ")) for line in fields["tokenizer.ggml.merges"].contents()]
    types = fields["tokenizer.ggml.token_type"].contents()
    expected = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(texts)}, merges=merges))
    expected.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    expected.decoder = decoders.ByteLevel()
    expected.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, kind in zip(texts, types, strict=True)
            if kind == 3
        ]
    )
    ours = Tokenizer.from_str(json.dumps(GgufCheckpoint(path).tokenizer_json()))
    assert ours.get_vocab_size() == expected.get_vocab_size() == 49152
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == expected.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_tiny_vocabulary_survives_the_way_through_gguf(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_llama(path)
    ours = Tokenizer.from_str(json.dumps(GgufCheckpoint(path).tokenizer_json()))
    original = tiny_tokenizer()
    for text in TEXTS:
        assert ours.encode(text).ids == original.encode(text).ids, text


def _metadata(**changes: Any) -> dict[str, Any]:
    tiny = json.loads(tiny_tokenizer().to_str())["model"]
    texts = sorted(tiny["vocab"], key=tiny["vocab"].__getitem__)
    result = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array([3] * 3 + [1] * (len(texts) - 3), dtype=np.int32),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tiny["merges"]],
        "tokenizer.ggml.eos_token_id": 2,
    }
    result.update({f"tokenizer.ggml.{name}": value for name, value in changes.items()})
    return {key: value for key, value in result.items() if value is not None}


# How each kind cuts text before merging: what the models' own tokenizer.json files give.
CUTS = {
    "gpt-2": ["I", "'ll", "Ġpay", "Ġ1234567", "Ġ$", "ĊĊ", "Ġok"],
    "smollm": ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4", "5", "6", "7", "Ġ$", "ĊĊ", "Ġok"],
    "llama-bpe": ["I", "'ll", "Ġpay", "Ġ", "123", "456", "7", "Ġ$ĊĊ", "Ġok"],
    "qwen2": ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4", "5", "6", "7", "Ġ$ĊĊ", "Ġok"],
}


@pytest.mark.parametrize("pre", CUTS)
def test_pre_tokenizer_cuts(pre: str) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(_metadata(pre=pre), "x.gguf")))
    cuts = tokenizer.pre_tokenizer.pre_tokenize_str("I'll pay 1234567 $\n\n ok")
    assert [text for text, _ in cuts] == CUTS[pre]
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        wanted = normalizers.NFC().normalize_str(text) if pre == "qwen2" else text
        assert tokenizer.decode(ids, skip_special_tokens=False) == wanted


def test_missing_pre_tokenizer_means_default() -> None:
    found = tokenizer_json(_metadata(pre=None), "x.gguf")["pre_tokenizer"]
    assert found == PRE_TOKENIZERS["gpt-2"]


def test_whole_words_first_only_for_llama3() -> None:
    for pre, expected in (("llama-bpe", True), ("gpt-2", False), ("qwen2", False)):
        model = tokenizer_json(_metadata(pre=pre), "x.gguf")["model"]
        assert model["ignore_merges"] is expected


def test_token_types_become_added_tokens() -> None:
    types = np.ones(320, dtype=np.int32)
    types[[0, 5]] = 3, 4
    added = tokenizer_json(_metadata(token_type=types), "x.gguf")["added_tokens"]
    assert [(token["id"], token["special"]) for token in added] == [(0, True), (5, False)]


def test_end_tokens_are_the_named_ones_and_well_known_control_tokens() -> None:
    assert end_token_ids(_metadata(), "x.gguf") == (2, 0)
    assert end_token_ids(_metadata(eot_token_id=9), "x.gguf") == (2, 9, 0)
    assert end_token_ids(_metadata(eos_token_id=99999), "x.gguf") == (0, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "holds no tokenizer"),
        ({"model": "llama"}, "tokenizer model 'llama' is not supported.*tokenizer.json"),
        ({"pre": "klingon"}, "pre-tokenizer 'klingon' is not supported; supported: default"),
        ({"tokens": None}, "tokens' is missing"),
        ({"tokens": ["a", "a"]}, "same token twice"),
        ({"merges": ["zz qq"]}, "merge 'zz qq' does not join tokens"),
        ({"token_type": np.ones(3, dtype=np.int32)}, "does not fit the 320 tokens"),
    ],
)
def test_unusable_vocabulary_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        tokenizer_json(_metadata(**changes), "x.gguf")
