from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from aotlm.errors import CheckpointError
from aotlm_compile.checkpoint.gguf import GgufCheckpoint
from aotlm_compile.checkpoint.gguf_blocks import TYPES
from aotlm_compile.checkpoint.gguf_container import GgufFile
from tests.compile.gguf_samples import finish, write_llama


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_llama(path, "Q4_1")
    return path


def test_metadata_and_tensors_equal_those_of_the_gguf_package(sample: Path) -> None:
    ours, theirs = GgufFile(sample), gguf.GGUFReader(sample)
    expected = {key: field.contents() for key, field in theirs.fields.items()}
    for key, value in ours.metadata.items():
        found = value.tolist() if isinstance(value, np.ndarray) else value
        assert found == expected[key], key
    assert len(ours.metadata) == len([key for key in expected if not key.startswith("GGUF.")])
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(tensor.shape.tolist())[::-1]
        assert info.type.name == tensor.tensor_type.name
        assert info.offset == tensor.data_offset
        assert ours.bytes_of(info).tobytes() == tensor.data.tobytes()


def test_every_metadata_type_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "types.gguf", "llama")
    values = {
        "uint8": 200,
        "int8": -100,
        "uint16": 60000,
        "int16": -30000,
        "uint32": 2**32 - 1,
        "int32": -(2**31),
        "uint64": 2**64 - 1,
        "int64": -(2**63),
        "float32": 0.5,
        "float64": 1e300,
        "bool": True,
        "string": "naïve 語 🙂",
    }
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    writer.add_array("test.words", ["", "a", "ü"])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.truths", [True, False])
    finish(writer)
    metadata = GgufFile(tmp_path / "types.gguf").metadata
    for kind, value in values.items():
        assert metadata[f"test.{kind}"] == value
        assert type(metadata[f"test.{kind}"]) is type(value)
    assert metadata["test.words"] == ["", "a", "ü"]
    numbers, truths = metadata["test.numbers"], metadata["test.truths"]
    assert isinstance(numbers, np.ndarray)
    assert isinstance(truths, np.ndarray)
    assert numbers.tolist() == [1, -2, 3]
    assert truths.tolist() == [1, 0]


def test_block_sizes_equal_those_of_the_gguf_package() -> None:
    for number, (values, nbytes) in gguf.constants.GGML_QUANT_SIZES.items():
        # Q8_1 is never in files; the package still has the size of an older layout of it.
        if number.name != "Q8_1":
            ours = TYPES[int(number)]
            assert (ours.name, ours.values, ours.nbytes) == (number.name, values, nbytes)


def _header(
    tensors: int = 0, keys: int = 0, body: bytes = b"", version: int = 3, magic: bytes = b"GGUF"
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys) + body


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _string(name) + dims + struct.pack("<IQ", kind, offset)


HUGE = 2**63
BAD = {
    "empty": (b"", "an empty file"),
    "other magic": (b"GGML" + bytes(40), "not a GGUF file"),
    "version 1": (_header(version=1), "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "no counts": (b"GGUF" + struct.pack("<I", 3), "truncated"),
    "huge tensor count": (_header(tensors=HUGE), "truncated"),
    "huge key count": (_header(keys=HUGE), "truncated"),
    "key longer than the file": (
        _header(keys=1, body=struct.pack("<Q", HUGE) + bytes(64)),
        "truncated",
    ),
    "unknown value type": (
        _header(keys=1, body=_string("k") + struct.pack("<I", 99) + bytes(8)),
        "unknown type number 99",
    ),
    "huge string array": (
        _header(keys=1, body=_string("k") + struct.pack("<IIQ", 9, 8, HUGE)),
        "truncated",
    ),
    "huge number array": (
        _header(keys=1, body=_string("k") + struct.pack("<IIQ", 9, 12, HUGE)),
        "truncated",
    ),
    "array of arrays": (
        _header(keys=1, body=_string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(16)),
        "arrays of arrays",
    ),
    "key twice": (
        _header(keys=2, body=(_string("k") + struct.pack("<IB", 0, 1)) * 2),
        "appears twice",
    ),
    "not UTF-8": (
        _header(keys=1, body=struct.pack("<Q", 1) + b"\xff" + bytes(16)),
        "not UTF-8",
    ),
    "no dimensions": (_header(tensors=1, body=_tensor("t", ()) + bytes(64)), "0 dimensions"),
    "huge dimension": (
        _header(tensors=1, body=_tensor("t", (2**63, 2**63)) + bytes(64)),
        "impossible shape",
    ),
    "dimension of size 0": (
        _header(tensors=1, body=_tensor("t", (0,)) + bytes(64)),
        "impossible shape",
    ),
    "data past the end": (
        _header(tensors=1, body=_tensor("t", (2**30, 2**30)) + bytes(64)),
        "truncated",
    ),
    "offset past the end": (
        _header(tensors=1, body=_tensor("t", (1,), offset=2**63) + bytes(64)),
        "truncated",
    ),
    "odd offset": (
        _header(tensors=1, body=_tensor("t", (1,), offset=3) + bytes(64)),
        "not a multiple of 32",
    ),
    "broken row": (
        _header(tensors=1, body=_tensor("t", (33,), kind=2) + bytes(64)),
        "not a multiple of 32",
    ),
    "unknown tensor type": (
        _header(tensors=1, body=_tensor("t", (32,), kind=77) + bytes(64)),
        "unknown type number 77",
    ),
    "tensor twice": (
        _header(tensors=2, body=_tensor("t", (1,)) + _tensor("t", (1,), offset=32) + bytes(99)),
        "appears twice",
    ),
    "overlap": (
        _header(tensors=2, body=_tensor("t", (16,)) + _tensor("u", (1,), offset=32) + bytes(199)),
        "'t' and 'u' overlap",
    ),
    "alignment 3": (
        _header(keys=1, body=_string("general.alignment") + struct.pack("<II", 4, 3)),
        "general.alignment 3",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file_is_one_clear_line(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        GgufFile(path)
    assert "\n" not in str(caught.value)
    assert "bad.gguf" in str(caught.value)


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf: No such file"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(CheckpointError, match="cannot read"):
        GgufFile(tmp_path)


def test_truncation_anywhere_is_an_error(sample: Path, tmp_path: Path) -> None:
    whole = sample.read_bytes()
    path = tmp_path / "cut.gguf"
    # Every 97 bytes of the header and table, then some of the tensor data.
    points = [*range(0, 12_000, 97), *range(12_000, len(whole), 9_001), len(whole) - 32]
    for point in points:
        path.write_bytes(whole[:point])
        with pytest.raises(CheckpointError):
            GgufFile(path)


def test_zeros_do_not_read_as_millions_of_empty_strings(tmp_path: Path) -> None:
    path = tmp_path / "zeros.gguf"
    body = _string("k") + struct.pack("<IIQ", 9, 8, 4_000_000)
    with path.open("wb") as file:
        file.write(_header(keys=1, body=body))
        file.truncate(40 << 20)
    with pytest.raises(CheckpointError, match="at most"):
        GgufFile(path)


def test_mutated_files_end_quickly_and_allocate_little(sample: Path, tmp_path: Path) -> None:
    whole = sample.read_bytes()
    rng = np.random.default_rng(7)
    path = tmp_path / "mutated.gguf"
    extremes = [0, 1, 0xFF, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1]
    messages: list[str] = []
    tracemalloc.start()
    for round_number in range(400):
        content = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(4, 12_000))
            if round_number % 2:
                content[at] = int(rng.integers(256))
            else:
                width = int(rng.choice([4, 8]))
                value = extremes[int(rng.integers(len(extremes)))] & (2 ** (8 * width) - 1)
                content[at : at + width] = value.to_bytes(width, "little")
        path.write_bytes(content)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        started = time.perf_counter()
        try:
            checkpoint = GgufCheckpoint(path)
            checkpoint.tokenizer_json()
            for name in checkpoint.tensor_names():
                checkpoint.load(name).float32()
        except CheckpointError as error:
            messages.append(str(error))
        assert time.perf_counter() - started < 1
        assert tracemalloc.get_traced_memory()[1] - before < 16 << 20
    tracemalloc.stop()
    assert 100 < len(messages) < 400
    assert not any("\n" in message for message in messages)
