"""A GGUF file as a `Checkpoint`: metadata and tensor names translated to Hugging Face's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aotlm.errors import CheckpointError

from .base import TokenIds, Weight, positive
from .gguf_blocks import GROUPED_BITS, check_supported, decode
from .gguf_container import GgufFile, TensorInfo, Value
from .gguf_rope import rope_scaling_from_factors, rope_scaling_from_metadata
from .gguf_tokenizer import end_token_ids, tokenizer_json

ARCHITECTURES = {"llama": "LlamaForCausalLM"}

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"  # not a weight: says how Llama 3.x scales its frequencies
_IGNORED = re.compile(r"blk\.\d+\.attn_rot_embd")  # old files carry tables nobody reads
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


class GgufCheckpoint:
    """A model in one GGUF file. Raises CheckpointError when it cannot be one."""

    kind: Literal["gguf"] = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self._file = GgufFile(path)
        self._metadata: Mapping[str, Value] = self._file.metadata
        self._architecture = self._find_architecture()
        self._tensors = self._translate_names()
        self.config = self._translate_config()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def bits(self, name: str) -> Literal[4, 8] | None:
        """How many bits the groups of a weight have, None for a dense one."""
        return GROUPED_BITS.get(self._tensor(name).type.name)

    def load(self, name: str) -> Weight:
        """One weight under its Hugging Face name, q and k in Hugging Face's row order."""
        tensor = self._tensor(name)
        where = f"{self.path.name}: tensor {tensor.name!r}"
        weight = decode(self._file.bytes_of(tensor), tensor.type, tensor.shape, where)
        for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if f".self_attn.{part}." in name:
                return weight.take_rows(_half_rotation_rows(tensor, self.config[key], where))
        return weight

    def tokenizer_json(self) -> dict[str, Any]:
        result = tokenizer_json(self._metadata, self.path.name)
        tokens, rows = len(result["model"]["vocab"]), self.config["vocab_size"]
        if tokens > rows:
            raise CheckpointError(
                f"{self.path.name}: {tokens} tokens, but tensor 'token_embd.weight' has {rows} rows"
            )
        return result

    def chat_template(self) -> str | None:
        value = self._metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) and value.strip() else None

    def tokens(self) -> TokenIds:
        bos = self._token_id("tokenizer.ggml.bos_token_id")
        add_bos = self._metadata.get("tokenizer.ggml.add_bos_token", False) is True
        ends = end_token_ids(self._metadata, self.path.name)
        known = tuple(token for token in ends if token < self.config["vocab_size"])
        return bos, known, add_bos and bos is not None

    def generation_defaults(self) -> dict[str, float | int]:
        found = {name: self._metadata.get(key) for key, name in _SAMPLING.items()}
        return {
            name: _shortest(value) if isinstance(value, float) else value
            for name, value in found.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }

    def _tensor(self, name: str) -> TensorInfo:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"tensor {name!r} is missing from {self.path}")
        return tensor

    def _find_architecture(self) -> str:
        where = self.path.name
        parts = self._metadata.get("split.count", 0)
        if isinstance(parts, int) and parts > 1:
            raise CheckpointError(
                f"{where} is one of {parts} split files; join them first with "
                "`llama-gguf-split --merge`"
            )
        found = self._metadata.get("general.architecture")
        if not isinstance(found, str):
            raise CheckpointError(f"{where}: metadata key 'general.architecture' is missing")
        if found not in ARCHITECTURES:
            raise CheckpointError(
                f"{where}: architecture {found!r:.60} is not supported; "
                f"supported: {', '.join(sorted(ARCHITECTURES))}"
            )
        if self._metadata.get(f"{found}.expert_count", 0):
            raise CheckpointError(f"{where}: mixture-of-experts models are not supported")
        return found

    def _translate_names(self) -> dict[str, TensorInfo]:
        result: dict[str, TensorInfo] = {}
        for name, tensor in self._file.tensors.items():
            if name == _ROPE_FACTORS or _IGNORED.match(name):
                continue
            check_supported(tensor.type, f"{self.path.name}: tensor {name!r}")
            result[self._hugging_face_name(name)] = tensor
        if "model.embed_tokens.weight" not in result:
            raise CheckpointError(f"tensor 'token_embd.weight' is missing from {self.path}")
        return result

    def _hugging_face_name(self, name: str) -> str:
        if name in _TOP:
            return _TOP[name]
        match = _LAYER_NAME.fullmatch(name)
        if match is None or match[2] not in _LAYER:
            raise CheckpointError(
                f"{self.path.name}: tensor {name!r} has no place in "
                f"architecture {self._architecture!r}"
            )
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"

    def _translate_config(self) -> dict[str, Any]:
        where = self.path.name

        def integer(key: str) -> int:
            return positive(self._metadata, f"{self._architecture}.{key}", where)

        embedding = self._tensors["model.embed_tokens.weight"]
        heads = integer("attention.head_count")
        hidden = integer("embedding_length")
        layers = integer("block_count")
        if layers > len(self._tensors):
            raise CheckpointError(
                f"{where}: block_count is {layers}, but the file holds "
                f"{len(self._tensors)} tensors: layers are missing"
            )
        if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
            raise CheckpointError(
                f"{where}: tensor 'token_embd.weight' is {list(embedding.shape)}; "
                f"embedding_length says [vocab, {hidden}]"
            )
        config: dict[str, Any] = {
            "model_type": self._architecture,
            "architectures": [ARCHITECTURES[self._architecture]],
            "hidden_size": hidden,
            "intermediate_size": integer("feed_forward_length"),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self._integer_or("attention.head_count_kv", heads),
            "head_dim": self._integer_or("attention.key_length", max(hidden // heads, 1)),
            "vocab_size": embedding.shape[0],
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon", None),
            "rope_theta": self._number("rope.freq_base", 10000.0),
            "max_position_embeddings": integer("context_length"),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "hidden_act": "silu",
        }
        scaling = self._rope_scaling(config)
        if scaling is not None:
            config["rope_scaling"] = scaling
        return config

    def _rope_scaling(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        factors = self._file.tensors.get(_ROPE_FACTORS)
        if factors is None:
            return rope_scaling_from_metadata(self._metadata, self._architecture, self.path.name)
        where = f"{self.path.name}: tensor {_ROPE_FACTORS!r}"
        weight = decode(self._file.bytes_of(factors), factors.type, factors.shape, where)
        return rope_scaling_from_factors(
            weight.float32().ravel(), config["rope_theta"], config["head_dim"], where
        )

    def _integer_or(self, key: str, default: int) -> int:
        full = f"{self._architecture}.{key}"
        if full not in self._metadata:
            return default
        return positive(self._metadata, full, self.path.name)

    def _number(self, key: str, default: float | None) -> float:
        full = f"{self._architecture}.{key}"
        value = self._metadata.get(full, default)
        if value is None:
            raise CheckpointError(f"{self.path.name}: metadata key {full!r} is missing")
        if isinstance(value, (float, int)) and not isinstance(value, bool) and value > 0:
            return _shortest(float(value))
        raise CheckpointError(f"{self.path.name}: metadata key {full!r} is not a positive number")

    def _token_id(self, key: str) -> int | None:
        value = self._metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if 0 <= value < self.config["vocab_size"] else None


def _shortest(value: float) -> float:
    """The shortest decimal of a float32, so that 9.99999974e-06 reads 1e-05 again."""
    return float(str(np.float32(value)))


def _half_rotation_rows(tensor: TensorInfo, heads: int, where: str) -> npt.NDArray[np.intp]:
    """Where each row of Hugging Face's order lies in the file.

    GGUF files of this architecture keep the two values that rotary embedding turns together
    in neighbouring rows (0, 1), (2, 3); Hugging Face keeps them half a head apart.
    """
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise CheckpointError(f"{where} has {rows} rows, which {heads} heads cannot share")
    order = np.arange(rows, dtype=np.intp).reshape(heads, rows // heads // 2, 2)
    return order.swapaxes(1, 2).ravel()
