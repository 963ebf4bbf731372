"""manifest.json of an artifact: what the compiler made, for which machine, and its checksums.

Reading is strict: a key that is missing, unknown or of another type is an error, so that the
engine never runs on half-understood weights. Other `format_version`s are refused by name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from aotlm.errors import ArtifactCorrupt, ArtifactIncompatible
from aotlm.json_fields import Fields, MalformedField

FORMAT_VERSION = 1
ABI_VERSION = 1
MANIFEST_FILE = "manifest.json"
LIBRARY_FILE = "model.so"
WEIGHTS_FILE = "weights.bin"
TOKENIZER_FILE = "tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
REQUIRED_FILES = (LIBRARY_FILE, WEIGHTS_FILE, TOKENIZER_FILE)

WEIGHT_ALIGNMENT = 64  # bytes
ITEM_BYTES: Mapping[str, int] = {"uint8": 1, "int8": 1, "float16": 2, "float32": 4}

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """The checkpoint: its kind ("gguf", "safetensors"), its name and what tells it from others."""

    kind: str
    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The shape of the model; `context_window` is this artifact's limit, in tokens."""

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_window: int
    trained_context: int


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What the library runs on; `features` are named as Linux's /proc/cpuinfo names them."""

    kind: str
    triple: str
    level: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Fixed when compiling; tokens, tokens, sequences, tokens."""

    context_window: int
    prefill_chunk: int
    max_batch_size: int
    page_size: int


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One tensor in weights.bin; `offset` (a multiple of 64) and `nbytes` in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """Tokens with a meaning to the engine; `add_bos` is for plain text, not for chats."""

    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The checkpoint's generation_config.json; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None

    def given(self) -> dict[str, float]:
        """Only what the checkpoint says."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the artifact; `size` in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole of manifest.json."""

    created: str  # ISO 8601
    made_by: Mapping[str, str]  # versions: aotlm, tvm, tvm_ffi
    source: SourceInfo
    model: ModelInfo
    quantization: str
    target: TargetInfo
    limits: Limits
    weights: tuple[WeightEntry, ...]  # in the order the library's functions take them
    tokens: TokenInfo
    files: Mapping[str, FileEntry]  # all but manifest.json itself
    generation: GenerationDefaults = GenerationDefaults()
    build_key: str = ""  # equal for two compiles that give the same artifact
    format_version: int = FORMAT_VERSION
    abi_version: int = ABI_VERSION

    def to_json(self) -> str:
        """The text of manifest.json; `from_json` gives the manifest back."""
        data = asdict(self)
        data["generation"] = self.generation.given()
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = MANIFEST_FILE) -> Manifest:
        """Read the text of a manifest.json; `where` is what errors call it.

        Raises ArtifactIncompatible for another version, ArtifactCorrupt for anything else.
        """
        try:
            top = Fields(json.loads(text), "")
            _check_version(top, "format_version", FORMAT_VERSION, where)
            _check_version(top, "abi_version", ABI_VERSION, where)
            manifest = _read(top)
            top.finish()
            _check(manifest)
        except MalformedField as error:
            raise ArtifactCorrupt(f"{where}: {error}; compile the model again") from error
        except (ValueError, RecursionError) as error:
            raise ArtifactCorrupt(f"{where} is not valid JSON; compile the model again") from error
        return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json so that it is there whole, and on the disk, or not at all.

    Call it last: an artifact without a manifest does not load.
    """
    _check_for_writing(manifest)
    temporary = folder / f".{MANIFEST_FILE}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST_FILE)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the name, too, is on the disk now
    finally:
        os.close(descriptor)


def _check_version(top: Fields, key: str, ours: int, where: str) -> None:
    theirs = top.integer(key)
    if theirs != ours:
        raise ArtifactIncompatible(
            f"{where} has {key} {theirs}, this aotlm reads {ours}; compile the model again"
        )


def _read(top: Fields) -> Manifest:
    source, model, target = top.object("source"), top.object("model"), top.object("target")
    limits, tokens = top.object("limits"), top.object("tokens")
    generation, made_by = top.object("generation", {}), top.object("made_by")
    files = top.object("files")
    manifest = Manifest(
        created=top.text("created"),
        made_by={key: made_by.text(key) for key in made_by},
        source=SourceInfo(source.text("kind"), source.text("name"), source.text("fingerprint")),
        model=ModelInfo(
            name=model.text("name"),
            family=model.text("family"),
            **{
                key: model.integer(key, minimum=1)
                for key in ModelInfo.__dataclass_fields__
                if key not in ("name", "family")
            },
        ),
        quantization=top.text("quantization"),
        target=TargetInfo(
            kind=target.text("kind"),
            triple=target.text("triple"),
            level=target.text("level"),
            features=target.texts("features"),
        ),
        limits=Limits(
            **{key: limits.integer(key, minimum=1) for key in Limits.__dataclass_fields__}
        ),
        weights=tuple(_weight(entry) for entry in top.objects("weights")),
        tokens=TokenInfo(
            bos_id=tokens.optional_integer("bos_id"),
            eos_ids=tokens.integers("eos_ids"),
            add_bos=tokens.boolean("add_bos"),
        ),
        files={name: _file(files.object(name)) for name in files},
        generation=GenerationDefaults(
            temperature=generation.optional_number("temperature"),
            top_p=generation.optional_number("top_p"),
            top_k=generation.optional_integer("top_k"),
            repetition_penalty=generation.optional_number("repetition_penalty"),
        ),
        build_key=top.text("build_key", ""),
    )
    for part in (source, model, target, limits, tokens, generation):
        part.finish()
    return manifest


def _weight(entry: Fields) -> WeightEntry:
    weight = WeightEntry(
        name=entry.text("name"),
        shape=entry.integers("shape"),
        dtype=entry.text("dtype"),
        offset=entry.integer("offset"),
        nbytes=entry.integer("nbytes"),
    )
    entry.finish()
    return weight


def _file(entry: Fields) -> FileEntry:
    file = FileEntry(sha256=entry.text("sha256"), size=entry.integer("size"))
    entry.finish()
    return file


def _check(manifest: Manifest) -> None:
    """What no single value can be wrong about. Raises MalformedField."""
    for name, file in manifest.files.items():
        _check_file_name(name)
        if not _SHA256.fullmatch(file.sha256):
            raise MalformedField(f"files.{name}.sha256 is not 64 hexadecimal digits")
    for name in REQUIRED_FILES:
        if name not in manifest.files:
            raise MalformedField(f"files lacks {name}")
    size = manifest.files[WEIGHTS_FILE].size
    for index, weight in enumerate(manifest.weights):
        where = f"weights[{index}] ({weight.name})"
        item = ITEM_BYTES.get(weight.dtype)
        if item is None:
            raise MalformedField(f"{where} has the unknown dtype {weight.dtype!r:.40}")
        count = 1
        for extent in weight.shape:
            count *= extent
        if count * item != weight.nbytes:
            raise MalformedField(f"{where} of shape {weight.shape} cannot be {weight.nbytes} bytes")
        if weight.offset % WEIGHT_ALIGNMENT:
            raise MalformedField(f"{where} is not aligned to {WEIGHT_ALIGNMENT} bytes")
        if weight.offset + weight.nbytes > size:
            raise MalformedField(f"{where} ends past the {size} bytes of {WEIGHTS_FILE}")
    if manifest.limits.context_window != manifest.model.context_window:
        raise MalformedField("model.context_window and limits.context_window differ")
    vocab = manifest.model.vocab_size
    for token_id in (*manifest.tokens.eos_ids, manifest.tokens.bos_id or 0):
        if token_id >= vocab:
            raise MalformedField(f"tokens names the id {token_id} of a vocabulary of {vocab}")


def _check_file_name(name: str) -> None:
    """A manifest may come from a stranger: it must not reach outside its own folder."""
    path = PurePosixPath(name)
    if name in ("", ".", "..", MANIFEST_FILE) or len(path.parts) != 1 or set(name) & set("/\\\0:"):
        raise MalformedField(f"files names {name!r:.60}, which is not a plain file name")


def _check_for_writing(manifest: Manifest) -> None:
    try:
        _check(manifest)
    except MalformedField as error:
        raise AssertionError(f"the compiler made a bad manifest: {error}") from error
