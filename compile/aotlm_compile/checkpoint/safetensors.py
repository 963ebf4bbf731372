"""A Hugging Face folder with safetensors weights, as a `Checkpoint`. Pickle is never read."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from aotlm.errors import CheckpointError

from .base import DenseWeight, TokenIds, positive
from .safetensors_file import SafetensorsFile

MAX_JSON_BYTES = 64 << 20  # the largest tokenizer.json files have some 35 MB
_INDEX = "model.safetensors.index.json"
_SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_GENERATION = {"temperature": float, "top_p": float, "top_k": int, "repetition_penalty": float}


class SafetensorsCheckpoint:
    """A model in a folder. Raises CheckpointError when it cannot be one."""

    kind: Literal["safetensors"] = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self.config = self._json("config.json", required=True)
        self._files: dict[str, SafetensorsFile] = {}
        self._places = self._find_tensors()
        positive(self.config, "num_hidden_layers", "config.json", limit=len(self._places))
        self.config.setdefault("tie_word_embeddings", False)
        if "lm_head.weight" not in self._places:
            # Some folders leave the flag out although the output layer is shared.
            self.config["tie_word_embeddings"] = True
        self._generation = self._json("generation_config.json")
        self._tokenizer_config = self._json("tokenizer_config.json")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the names and contents of every file that compiling reads."""
        digest = hashlib.sha256()
        side = [name for name in _SIDE_FILES if (self.path / name).is_file()]
        for name in sorted(side + list(self._files)):
            with (self.path / name).open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{name}\n{content}\n".encode())
        return digest.hexdigest()

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._files[self._place(name)].entries[name].shape

    def bits(self, name: str) -> None:
        """None: every weight here is dense."""
        self._place(name)

    def load(self, name: str) -> DenseWeight:
        return self._files[self._place(name)].load(name)

    def _place(self, name: str) -> str:
        file = self._places.get(name)
        if file is None:
            raise CheckpointError(f"tensor {name!r} is missing from {self.path}")
        return file

    def tokenizer_json(self) -> dict[str, Any]:
        if not (self.path / "tokenizer.json").is_file():
            found = ""
            if (self.path / "tokenizer.model").is_file():
                found = " (tokenizer.model, a SentencePiece file, is not read)"
            raise CheckpointError(f"tokenizer.json is missing from {self.path}{found}")
        return self._json("tokenizer.json")

    def chat_template(self) -> str | None:
        file = self.path / "chat_template.jinja"
        if file.is_file():
            return self._read(file).decode(errors="replace")
        value = self._tokenizer_config.get("chat_template")
        if isinstance(value, list):  # several named templates
            named = {item.get("name"): item for item in value if isinstance(item, dict)}
            value = named.get("default", {}).get("template")
        return value if isinstance(value, str) and value.strip() else None

    def tokens(self) -> TokenIds:
        bos = self._first_id("bos")
        ends = [
            *_ids(self._generation.get("eos_token_id")),
            *_ids(self.config.get("eos_token_id")),
            *_ids(self._added_token_id("eos_token")),
        ]
        vocab = positive(self.config, "vocab_size", "config.json")
        for token in (*ends, bos or 0):
            if token >= vocab:
                raise CheckpointError(
                    f"{self.path}: token id {token} lies outside the vocabulary of {vocab}"
                )
        return bos, tuple(dict.fromkeys(ends)), bos is not None and self._adds(bos)

    def generation_defaults(self) -> dict[str, float | int]:
        result: dict[str, float | int] = {}
        for key, kind in _GENERATION.items():
            value = self._generation.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                result[key] = kind(value)
        if self._generation.get("do_sample") is False:
            result["temperature"] = 0.0
        return result

    def _find_tensors(self) -> dict[str, str]:
        """Which file holds each tensor; every file's own table is checked."""
        if (self.path / _INDEX).is_file():
            return self._find_shards()
        names = sorted(file.name for file in self.path.glob("*.safetensors"))
        if "model.safetensors" in names:
            names = ["model.safetensors"]
        if not names:
            pickled = any(self.path.glob("*.bin")) or any(self.path.glob("*.pt*"))
            hint = "; pickled weights are never read, convert them" if pickled else ""
            raise CheckpointError(f"{self.path} holds no *.safetensors file{hint}")
        if len(names) > 1:
            raise CheckpointError(f"{self.path} holds {len(names)} shards but no {_INDEX}")
        self._files[names[0]] = SafetensorsFile(self.path / names[0])
        return dict.fromkeys(self._files[names[0]].entries, names[0])

    def _find_shards(self) -> dict[str, str]:
        places = self._json(_INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise CheckpointError(f"{self.path / _INDEX} has no weight_map")
        for name, file in places.items():
            # A plain file name only: a path could lead out of the folder.
            if not isinstance(file, str) or Path(file).name != file or "\\" in file:
                raise CheckpointError(f"{_INDEX}: {file!r:.80} is not a file name of this folder")
            if file not in self._files:
                self._files[file] = SafetensorsFile(self.path / file)
            if name not in self._files[file].entries:
                raise CheckpointError(f"tensor {name!r} is missing from {self.path / file}")
        return dict(places)

    def _first_id(self, name: str) -> int | None:
        for source in (self._generation, self.config):
            for value in _ids(source.get(f"{name}_token_id")):
                return value
        return self._added_token_id(f"{name}_token")

    def _added_token_id(self, key: str) -> int | None:
        value = self._tokenizer_config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if not isinstance(value, str) or not (self.path / "tokenizer.json").is_file():
            return None
        added = self._tokenizer.get("added_tokens")
        for token in added if isinstance(added, list) else []:
            if isinstance(token, dict) and token.get("content") == value:
                return next(iter(_ids(token.get("id"))), None)
        return None

    def _adds(self, bos: int) -> bool:
        """Whether prompts start with the bos token: the flag, else what the tokenizer does."""
        flag = self._tokenizer_config.get("add_bos_token")
        if isinstance(flag, bool):
            return flag
        if not (self.path / "tokenizer.json").is_file():
            return False
        return _template_starts_with(bos, self._tokenizer.get("post_processor"))

    @cached_property
    def _tokenizer(self) -> dict[str, Any]:
        return self._json("tokenizer.json")

    def _json(self, name: str, required: bool = False) -> dict[str, Any]:
        file = self.path / name
        if not file.is_file():
            if required:
                raise CheckpointError(f"{name} is missing from {self.path}")
            return {}
        try:
            value = json.loads(self._read(file))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{file} is not JSON: truncated or damaged") from error
        if not isinstance(value, dict):
            raise CheckpointError(f"{file} is not a JSON object")
        return value

    def _read(self, file: Path) -> bytes:
        try:
            if file.stat().st_size > MAX_JSON_BYTES:
                raise CheckpointError(f"{file} is larger than {MAX_JSON_BYTES >> 20} MiB")
            return file.read_bytes()
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error


def _template_starts_with(token: int, processor: Any) -> bool:
    """Whether a tokenizer.json post-processor puts `token` before the text."""
    if not isinstance(processor, dict):
        return False
    steps = processor.get("processors")  # of a Sequence
    if isinstance(steps, list):
        return any(_template_starts_with(token, step) for step in steps)
    try:
        first = processor["single"][0]["SpecialToken"]["id"]
        return bool(processor["special_tokens"][first]["ids"] == [token])
    except (KeyError, IndexError, TypeError):
        return False


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if type(item) is int and item >= 0]
