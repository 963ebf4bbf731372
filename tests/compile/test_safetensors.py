from __future__ import annotations

import json
import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tokenizers import Tokenizer

from aotlm.errors import CheckpointError
from aotlm_compile.checkpoint.open import open_checkpoint
from aotlm_compile.checkpoint.safetensors import SafetensorsCheckpoint
from aotlm_compile.checkpoint.safetensors_file import SafetensorsFile
from tests.compile.gguf_samples import write_llama
from tests.tiny_model import CHAT_TEMPLATE, CONFIG, random_weights, write_safetensors
from tests.tiny_model import write_tiny_model as write

INDEX = "model.safetensors.index.json"


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    content.update(changes)
    file.write_text(json.dumps({key: v for key, v in content.items() if v is not None}))


def shard(folder: Path) -> dict[str, str]:
    """Split the folder's one file in two; returns the index's weight_map."""
    weights = random_weights(CONFIG, 0)
    names = list(weights)
    places = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(folder / file, {name: weights[name] for name in part})
        places.update(dict.fromkeys(part, file))
    (folder / "model.safetensors").unlink()
    edit(folder / INDEX, metadata={}, weight_map=places)
    return places


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16)],
)
def test_values_and_types(dtype: str, expected: Any, tmp_path: Path) -> None:
    checkpoint = SafetensorsCheckpoint(write(tmp_path / "tiny", dtype=dtype))
    weights = random_weights(CONFIG, 0)
    assert set(checkpoint.tensor_names()) == set(weights)
    for name, values in weights.items():
        found = checkpoint.load(name)
        assert found.values.dtype == expected
        np.testing.assert_array_equal(found.values, values.astype(expected))
        np.testing.assert_array_equal(found.float32(), values.astype(expected).astype("f4"))


def test_shards_hold_the_same_model(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    shard(folder)
    checkpoint = SafetensorsCheckpoint(folder)
    for name, values in random_weights(CONFIG, 0).items():
        np.testing.assert_array_equal(checkpoint.load(name).float32(), values)


def test_everything_around_the_weights(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    checkpoint = SafetensorsCheckpoint(folder)
    assert (checkpoint.kind, checkpoint.name) == ("safetensors", "tiny")
    assert dict(checkpoint.config) == CONFIG
    assert checkpoint.tokens() == (1, (2, 0), False)
    assert checkpoint.chat_template() == CHAT_TEMPLATE
    assert checkpoint.generation_defaults() == {"temperature": 0.7, "top_p": 0.9}
    tokenizer = Tokenizer.from_str(json.dumps(checkpoint.tokenizer_json()))
    assert tokenizer.encode("<|im_start|>the").ids[0] == 1


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    first = SafetensorsCheckpoint(write(tmp_path / "a")).fingerprint
    assert SafetensorsCheckpoint(write(tmp_path / "b")).fingerprint == first
    assert SafetensorsCheckpoint(write(tmp_path / "c", seed=1)).fingerprint != first
    edit(tmp_path / "b" / "generation_config.json", temperature=0.1)
    assert SafetensorsCheckpoint(tmp_path / "b").fingerprint != first


def test_template_file_wins_and_named_templates_are_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    edit(folder / "tokenizer_config.json", chat_template=named)
    assert SafetensorsCheckpoint(folder).chat_template() == "D"
    (folder / "chat_template.jinja").write_text("J")
    assert SafetensorsCheckpoint(folder).chat_template() == "J"


def test_bos_is_added_where_the_tokenizer_adds_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    edit(folder / "tokenizer_config.json", add_bos_token=None)
    assert SafetensorsCheckpoint(folder).tokens()[2] is False
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {}}],
        "pair": [],
        "special_tokens": {"<|im_start|>": {"ids": [1]}},
    }
    sequence = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    for processor in (template, sequence):
        edit(folder / "tokenizer.json", post_processor=processor)
        assert SafetensorsCheckpoint(folder).tokens()[2] is True
    edit(folder / "tokenizer_config.json", add_bos_token=False)
    assert SafetensorsCheckpoint(folder).tokens()[2] is False


def test_shared_output_layer_is_found_without_the_flag(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    edit(folder / "config.json", tie_word_embeddings=None)
    assert SafetensorsCheckpoint(folder).config["tie_word_embeddings"] is True
    folder = write(tmp_path / "untied", config={"tie_word_embeddings": False})
    assert SafetensorsCheckpoint(folder).config["tie_word_embeddings"] is False


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    weights = random_weights(CONFIG, 0)
    del weights["model.layers.1.mlp.up_proj.weight"]
    write_safetensors(folder / "model.safetensors", weights)
    checkpoint = SafetensorsCheckpoint(folder)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight.*tiny"):
        checkpoint.load("model.layers.1.mlp.up_proj.weight")


def test_shard_lacking_what_the_index_promises_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    places = shard(folder)
    file = places.pop("model.norm.weight")
    edit(folder / INDEX, weight_map={**places, "lm_head.weight": file})
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is missing from .*model-0000"):
        SafetensorsCheckpoint(folder)
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=r"model-0000.*No such file"):
        SafetensorsCheckpoint(folder)


@pytest.mark.parametrize(
    "path", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\\b", 7]
)
def test_index_cannot_lead_out_of_the_folder(path: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    shutil.copy(folder / "model.safetensors", tmp_path / "outside.safetensors")
    edit(folder / INDEX, weight_map={"model.norm.weight": path})
    with pytest.raises(CheckpointError, match=r"is not a file name of this folder|cannot read"):
        SafetensorsCheckpoint(folder)


def _file(header: Any, data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _entry(
    shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32"
) -> dict[str, dict[str, Any]]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BAD = {
    "empty": (b"", "truncated"),
    "header cut": (_file(_entry(), b"", length=500), "truncated"),
    "huge header": (_file(_entry(), length=2**63), "truncated"),
    "not JSON": (_file(b"\xff\xfe{}"), "not JSON"),
    "deeply nested": (_file(b"[" * 100_000), "not JSON"),
    "a list": (_file([]), "not a JSON object"),
    "row is a list": (_file({"t": []}), "something else than an object"),
    "no type": (_file(_entry(dtype=None)), "no type"),
    "negative size": (_file(_entry(shape=[-1, -2])), "impossible shape"),
    "huge size": (_file(_entry(shape=[2**60])), "impossible shape"),
    "fraction": (_file(_entry(shape=[1.5])), "impossible shape"),
    "nine dimensions": (_file(_entry(shape=[1] * 9)), "impossible shape"),
    "huge shape": (_file(_entry(shape=[2**40, 2**40])), "does not fit"),
    "offsets reversed": (_file(_entry(offsets=[8, 0])), "impossible offsets"),
    "negative offset": (_file(_entry(offsets=[-8, 0])), "impossible offsets"),
    "three offsets": (_file(_entry(offsets=[0, 4, 8])), "impossible offsets"),
    "past the end": (_file(_entry(shape=[32], offsets=[0, 128])), "truncated"),
    "wrong size": (_file(_entry(offsets=[0, 12])), "does not fit"),
    "overlap": (
        _file({**_entry(), "u": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}),
        "'t' and 'u' overlap",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file_is_one_clear_line(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(path)
    assert "\n" not in str(caught.value)
    assert "bad.safetensors" in str(caught.value)


def test_unsupported_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(_file(_entry(dtype="F8_E4M3", shape=[8])))
    with pytest.raises(CheckpointError, match=r"'t' has type F8_E4M3.*supported: F32, F16, BF16"):
        SafetensorsFile(path).load("t")


def test_mutated_files_end_quickly_and_allocate_little(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(3)
    messages: list[str] = []
    tracemalloc.start()
    for round_number in range(200):
        content = bytearray(whole)
        if round_number % 4 == 0:
            content = content[: int(rng.integers(len(whole)))]
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(min(header_end, len(content) - 1)))
            content[at] = int(rng.choice(np.frombuffer(b'0123456789{}[]",:-e\xff', np.uint8)))
        path.write_bytes(content)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        started = time.perf_counter()
        try:
            checkpoint = SafetensorsCheckpoint(folder)
            for name in checkpoint.tensor_names():
                checkpoint.load(name).float32()
        except CheckpointError as error:
            messages.append(str(error))
        assert time.perf_counter() - started < 1
        assert tracemalloc.get_traced_memory()[1] - before < 16 << 20
    tracemalloc.stop()
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json is missing from"),
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", "[]", "config.json is not a JSON object"),
        ("config.json", "{}", "num_hidden_layers is missing"),
        ("config.json", '{"num_hidden_layers": 1e3}', "num_hidden_layers is not an integer"),
        ("config.json", '{"num_hidden_layers": 4000000000}', "must lie in 1"),
        ("generation_config.json", "?", "generation_config.json is not JSON"),
        (INDEX, "{}", "has no weight_map"),
        ("model.safetensors", None, r"holds no \*\.safetensors file$"),
    ],
)
def test_bad_folder_is_one_clear_line(
    name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "tiny")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsCheckpoint(folder)


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing from .*tiny$"):
        SafetensorsCheckpoint(folder).tokenizer_json()
    (folder / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(CheckpointError, match="a SentencePiece file, is not read"):
        SafetensorsCheckpoint(folder).tokenizer_json()


def test_open_finds_the_reader(tmp_path: Path) -> None:
    assert open_checkpoint(write(tmp_path / "tiny")).kind == "safetensors"
    (tmp_path / "files").mkdir()
    write_llama(tmp_path / "files" / "a.gguf")
    assert open_checkpoint(tmp_path / "files" / "a.gguf").name == "a"
    assert open_checkpoint(tmp_path / "files").name == "a"


def test_open_names_what_it_cannot_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, message in (
        (tmp_path / "none", "does not exist"),
        (folder, "holds neither config.json nor a GGUF file"),
        (Path("/dev/null"), "neither a file nor a folder"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match="pickled weights are never read, convert"):
        open_checkpoint(folder)
    with pytest.raises(CheckpointError, match="holds pickled weights"):
        open_checkpoint(folder / "pytorch_model.bin")
    (folder / "x.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="name the folder"):
        open_checkpoint(folder / "x.safetensors")
    (tmp_path / "a.gguf").write_bytes(b"")
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match="holds 2 GGUF files"):
        open_checkpoint(tmp_path)
