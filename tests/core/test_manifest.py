"""manifest.json is read strictly, and what is wrong with it is said by path."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotlm.errors import ArtifactCorrupt, ArtifactIncompatible
from aotlm.manifest import FileEntry, Manifest, WeightEntry, write_manifest
from tests.core.artifact_files import manifest

GOOD: dict[str, Any] = json.loads(manifest().to_json())


def changed(path: str, value: Any) -> str:
    """The good manifest with the value at a dotted path replaced; `...` removes it."""
    data = deepcopy(GOOD)
    place: Any = data
    *parents, last = path.split("/")
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(data)


def test_it_comes_back_as_it_was_written() -> None:
    made = manifest()
    assert Manifest.from_json(made.to_json()) == made
    assert Manifest.from_json(made.to_json().encode()) == made


def test_the_keys_are_those_of_the_format() -> None:
    assert GOOD["format_version"] == GOOD["abi_version"] == 1
    assert GOOD["target"].keys() == {"kind", "triple", "level", "features"}
    assert GOOD["weights"][1] == {
        "name": "b",
        "shape": [2, 12],
        "dtype": "float32",
        "offset": 64,
        "nbytes": 96,
    }
    assert GOOD["generation"] == {"temperature": 0.6, "top_k": 20}
    assert GOOD["files"]["model.so"] == {"sha256": "0" * 64, "size": 4}
    assert GOOD["tokens"] == {"bos_id": 1, "eos_ids": [2, 7], "add_bos": True}


def test_what_may_be_absent() -> None:
    data = deepcopy(GOOD)
    del data["generation"], data["build_key"], data["tokens"]["bos_id"]
    read = Manifest.from_json(json.dumps(data))
    assert read.generation.given() == {}
    assert read.build_key == ""
    assert read.tokens.bos_id is None


@pytest.mark.parametrize("key", ["format_version", "abi_version"])
def test_another_version_is_named(key: str) -> None:
    with pytest.raises(ArtifactIncompatible) as caught:
        Manifest.from_json(changed(key, 2), "x/manifest.json")
    assert str(caught.value) == (
        f"x/manifest.json has {key} 2, this aotlm reads 1; compile the model again"
    )


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format_version", "1", "format_version must be a whole number"),
        ("format_version", True, "format_version must be a whole number"),
        ("created", ..., "created is missing"),
        ("model", 3, "model must be an object, not 3"),
        ("model/num_layers", 2.0, "model.num_layers must be a whole number of at least 1, not 2.0"),
        ("model/num_layers", 0, "model.num_layers must be a whole number of at least 1, not 0"),
        ("model/head_dim", ..., "model.head_dim is missing"),
        ("limits/page_size", "16", "limits.page_size must be a whole number"),
        ("target/features", "avx2", "target.features must be a list"),
        ("target/features", ["avx2", 2], "target.features[1] must be a string, not 2"),
        ("surprise", 1, "surprise is an unknown key"),
        ("model/surprise", 1, "model.surprise is an unknown key"),
        ("weights/1/surprise", 1, "weights[1].surprise is an unknown key"),
        ("files/model.so/surprise", 1, "files.model.so.surprise is an unknown key"),
        ("generation/temperature", "hot", "generation.temperature must be a number, not 'hot'"),
        ("generation/temperature", True, "generation.temperature must be a number"),
        ("tokens/add_bos", 1, "tokens.add_bos must be true or false, not 1"),
        ("tokens/eos_ids", [-1], "tokens.eos_ids[0] must be a whole number"),
        ("tokens/eos_ids", [101], "tokens names the id 101 of a vocabulary of 101"),
        ("tokens/bos_id", 500, "tokens names the id 500"),
        ("weights/0/dtype", "float64", "weights[0] (a) has the unknown dtype 'float64'"),
        ("weights/0/shape", [4, 9], "weights[0] (a) of shape (4, 9) cannot be 32 bytes"),
        ("weights/1/offset", 32, "weights[1] (b) is not aligned to 64 bytes"),
        ("weights/1/offset", 128, "weights[1] (b) ends past the 160 bytes of weights.bin"),
        ("limits/context_window", 128, "model.context_window and limits.context_window differ"),
        ("files/model.so/sha256", "ABC", "files.model.so.sha256 is not 64 hexadecimal digits"),
        ("files/tokenizer.json", ..., "files lacks tokenizer.json"),
    ],
)
def test_a_wrong_value_is_named(path: str, value: Any, said: str) -> None:
    with pytest.raises(ArtifactCorrupt, match=re.escape(said)) as caught:
        Manifest.from_json(changed(path, value), "x/manifest.json")
    message = str(caught.value)
    assert message.startswith("x/manifest.json: ")
    assert message.endswith("compile the model again")
    assert "\n" not in message


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "C:x", "a\0b", "manifest.json"],
)
def test_file_names_stay_in_the_folder(name: str) -> None:
    data = deepcopy(GOOD)
    data["files"][name] = {"sha256": "0" * 64, "size": 1}
    with pytest.raises(ArtifactCorrupt, match="not a plain file name"):
        Manifest.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"', "[" * 100_000, b"\xff\xfe\x00"])
def test_text_that_is_no_object(text: str | bytes) -> None:
    with pytest.raises(ArtifactCorrupt, match="compile the model again"):
        Manifest.from_json(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(key=st.sampled_from(sorted(GOOD)), value=_JSON)
def test_nothing_but_artifact_errors_come_out(key: str, value: Any) -> None:
    try:
        Manifest.from_json(json.dumps(GOOD | {key: value}))
    except (ArtifactCorrupt, ArtifactIncompatible) as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_writing_leaves_one_file(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    assert Manifest.from_json((tmp_path / "manifest.json").read_bytes()) == manifest()


def test_a_bad_manifest_is_not_written(tmp_path: Path) -> None:
    bad = WeightEntry("a", (1,), "uint8", 1, 1)
    with pytest.raises(AssertionError, match="not aligned"):
        write_manifest(tmp_path, manifest(weights=(bad,)))
    with pytest.raises(AssertionError, match="not a plain file name"):
        write_manifest(tmp_path, manifest(files={"a/b": FileEntry("0" * 64, 1)}))
    assert list(tmp_path.iterdir()) == []
