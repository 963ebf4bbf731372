"""tokenizer.json files for the tests, made without any of our own readers."""

from __future__ import annotations

import json
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from tests.conftest import smollm2_gguf

# The patterns as Llama 3 and Qwen 2 publish them.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace("{1,3}", "")


def byte_level(use_regex: bool) -> dict[str, Any]:
    """A ByteLevel step of a tokenizer.json."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def added_token(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    """An entry of `added_tokens`, special unless the flags say otherwise."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    } | flags


def tokenizer_json(
    vocab: dict[str, int],
    merges: list[Any],
    *,
    pre_tokenizer: dict[str, Any] | None = None,
    added: list[dict[str, Any]] | None = None,
    ignore_merges: bool = False,
    normalizer: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A byte-level BPE tokenizer.json."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added or [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer or byte_level(use_regex=True),
        "post_processor": None,
        "decoder": byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }


@cache
def _smollm2_metadata() -> dict[str, Any]:
    return dict(gguf.GGUFReader(smollm2_gguf()).fields)


def smollm2_chat_template() -> str:
    """SmolLM2's chat template, from its GGUF file."""
    template: str = _smollm2_metadata()["tokenizer.chat_template"].contents()
    return template


@cache
def smollm2_json() -> bytes:
    """SmolLM2's tokenizer.json, from the metadata of its GGUF file."""
    fields = _smollm2_metadata()
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    steps = [{"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)]
    data = tokenizer_json(
        {token: token_id for token_id, token in enumerate(tokens)},
        fields["tokenizer.ggml.merges"].contents(),
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
        added=[
            added_token(token_id, tokens[token_id])
            for token_id, kind in enumerate(types)
            if kind == gguf.TokenType.CONTROL
        ],
    )
    return json.dumps(data, ensure_ascii=False).encode()


@cache
def trained(kind: str) -> dict[str, Any]:
    """A tokenizer with 3,000 tokens trained on Python source, in the style of a model family.

    "llama3": all pairs that make a token are merges, whole words skip the merges, as in the
    conversion of a tiktoken vocabulary to Hugging Face's format. "qwen2": as trained, NFC.
    """
    split = LLAMA3_SPLIT if kind == "llama3" else QWEN2_SPLIT
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library = Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse.py", "html/entities.py", "encodings/cp1251.py", "this.py", "decimal.py")
    trainer = trainers.BpeTrainer(
        vocab_size=3_000,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train([str(library / name) for name in names], trainer)
    data: dict[str, Any] = json.loads(tokenizer.to_str())
    vocab: dict[str, int] = data["model"]["vocab"]
    merges = data["model"]["merges"]
    if kind == "llama3":
        by_id = sorted(vocab, key=vocab.__getitem__)
        merges = [
            (token[:cut], token[cut:])
            for token in by_id
            for cut in sorted(range(1, len(token)), key=lambda cut: vocab.get(token[:cut], 0))
            if token[:cut] in vocab and token[cut:] in vocab
        ]
    return tokenizer_json(
        vocab,
        merges,
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": split},
                    "behavior": "Isolated",
                    "invert": False,
                },
                byte_level(use_regex=False),
            ],
        },
        added=[
            added_token(len(vocab), "<|begin|>"),
            added_token(len(vocab) + 1, "<|end|>"),
            added_token(len(vocab) + 2, "<tool_call>", special=False),
            added_token(len(vocab) + 3, "<tool_call>s", special=False),
        ],
        ignore_merges=kind == "llama3",
        normalizer={"type": "NFC"} if kind == "qwen2" else None,
    )
