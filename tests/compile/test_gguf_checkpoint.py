from __future__ import annotations

import hashlib
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from aotlm.errors import CheckpointError
from aotlm_compile.checkpoint.base import DenseWeight, GroupedWeight
from aotlm_compile.checkpoint.gguf import GgufCheckpoint
from aotlm_compile.checkpoint.gguf_rope import llama3_factors
from aotlm_compile.checkpoint.open import open_checkpoint
from tests.compile.gguf_samples import gguf_name, permute, write_llama
from tests.conftest import smollm2_gguf
from tests.reference_llama import ReferenceLlama
from tests.tiny_model import CHAT_TEMPLATE, CONFIG


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_values_equal_the_gguf_package_dequantizer(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_llama(path, kind)
    checkpoint = GgufCheckpoint(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(checkpoint.tensor_names()) == len(theirs)
    for name in checkpoint.tensor_names():
        tensor = theirs[gguf_name(name)]
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found = checkpoint.load(name)
        for part, heads in (("q_proj", 4), ("k_proj", 2)):
            if part in name:  # back to the file's order
                found = DenseWeight(permute(found.float32(), heads))
        np.testing.assert_array_equal(found.float32(), expected, err_msg=name)


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
def test_quantized_weights_stay_quantized(kind: str, bits: int, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    originals = write_llama(path, kind)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.bits("model.layers.1.self_attn.q_proj.weight") == bits
    assert checkpoint.bits("model.norm.weight") is None
    weight = checkpoint.load("model.layers.1.self_attn.q_proj.weight")
    assert isinstance(weight, GroupedWeight)
    assert weight.bits == bits
    assert weight.codes.dtype == np.uint8
    assert weight.codes.max() < 2**bits
    assert weight.scale.dtype == weight.minimum.dtype == np.float16
    assert weight.scale.shape == weight.minimum.shape == (64, 2)
    original = originals["model.layers.1.self_attn.q_proj.weight"]
    assert np.abs(weight.dequantize() - original).max() < (0.1 if bits == 4 else 0.01)


def test_unpermuted_model_computes_what_the_original_does(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    originals = write_llama(path, "F32")
    ours = ReferenceLlama.from_checkpoint(GgufCheckpoint(path))
    ids = [1, 70, 300, 9, 12]
    expected = ReferenceLlama(CONFIG, originals).logits(ids)
    np.testing.assert_allclose(ours.logits(ids), expected, rtol=0, atol=1e-6)


def test_config_has_hugging_face_keys(tmp_path: Path) -> None:
    path = tmp_path / "Tiny-F16.gguf"
    write_llama(path, "F16")
    checkpoint = GgufCheckpoint(path)
    skip = {"bos_token_id", "eos_token_id"}
    assert dict(checkpoint.config) == {k: v for k, v in CONFIG.items() if k not in skip}
    assert (checkpoint.kind, checkpoint.name) == ("gguf", "Tiny-F16")
    assert checkpoint.tokens() == (1, (2, 0), False)
    assert checkpoint.chat_template() == CHAT_TEMPLATE
    assert checkpoint.generation_defaults() == {}
    assert checkpoint.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()


def test_untied_output_layer_and_sampling_defaults(tmp_path: Path) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_int32("general.sampling.top_k", 20)

    path = tmp_path / "tiny.gguf"
    originals = write_llama(path, config={"tie_word_embeddings": False}, extra=extra)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.generation_defaults() == {"temperature": 0.6, "top_k": 20}
    head = checkpoint.load("lm_head.weight").float32()
    np.testing.assert_array_equal(head, originals["lm_head.weight"])


def test_llama3_frequency_factors_become_rope_scaling(tmp_path: Path) -> None:
    # What Hugging Face's formula gives for factor 32, checked through the reference model.
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = {**CONFIG, "rope_theta": 500000.0}
    plain = ReferenceLlama(config, {}).frequencies
    scaled = ReferenceLlama({**config, "rope_scaling": scaling}, {}).frequencies
    factors = (plain / scaled).astype(np.float32)
    np.testing.assert_allclose(llama3_factors(32.0, 500000.0, 16), factors, rtol=1e-6)

    path = tmp_path / "tiny.gguf"
    write_llama(
        path,
        config={"rope_theta": 500000.0},
        extra=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.config["rope_scaling"] == scaling
    assert not any("rope" in name for name in checkpoint.tensor_names())

    write_llama(
        path,
        config={"rope_theta": 500000.0},
        extra=lambda writer: writer.add_tensor("rope_freqs.weight", factors + factors[::-1]),
    )
    with pytest.raises(CheckpointError, match="not the frequency scaling of Llama 3"):
        GgufCheckpoint(path)


def test_linear_scaling_in_metadata(tmp_path: Path) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    path = tmp_path / "tiny.gguf"
    write_llama(path, extra=extra)
    assert GgufCheckpoint(path).config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_llama(path, "Q5_0")
    with pytest.raises(CheckpointError) as caught:
        GgufCheckpoint(path)
    message = str(caught.value)
    assert message.startswith("tiny.gguf: tensor 'token_embd.weight' has type Q5_0")
    assert "supported: F32, F16, BF16, Q4_0, Q4_1, Q8_0" in message


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "xyz.gguf", "xyz")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"architecture 'xyz' is not supported.*llama"):
        GgufCheckpoint(tmp_path / "xyz.gguf")


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_llama(path, skip=("model.layers.1.mlp.up_proj.weight",))
    with pytest.raises(CheckpointError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight'.*tiny"):
        GgufCheckpoint(path).load("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(CheckpointError, match=r"'nothing' is missing from .*tiny"):
        GgufCheckpoint(path).bits("nothing")
    write_llama(path, skip=("model.embed_tokens.weight",))
    with pytest.raises(CheckpointError, match=r"'token_embd\.weight' is missing"):
        GgufCheckpoint(path)


def test_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    extra = np.ones(4, dtype=np.float32)
    write_llama(path, extra=lambda writer: writer.add_tensor("blk.0.surprise.weight", extra))
    with pytest.raises(CheckpointError, match=r"'blk\.0\.surprise\.weight' has no place"):
        GgufCheckpoint(path)


def test_impossible_sizes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    for config, message in (
        ({"rms_norm_eps": 0.0}, "layer_norm_rms_epsilon' is not a positive"),
        ({"max_position_embeddings": 0}, "context_length is 0"),
    ):
        write_llama(path, config=config)
        with pytest.raises(CheckpointError, match=message):
            GgufCheckpoint(path)


def test_split_file_says_how_to_join(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_llama(path, extra=lambda writer: writer.add_uint16("split.count", 3))
    with pytest.raises(CheckpointError, match=r"one of 3 split files.*--merge"):
        GgufCheckpoint(path)


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_llama(path, "Q8_0")
    reader = gguf.GGUFReader(path)
    tensor = next(t for t in reader.tensors if t.name == "blk.0.ffn_up.weight")
    content = bytearray(path.read_bytes())
    content[tensor.data_offset : tensor.data_offset + 2] = b"\x00\x7e"  # NaN
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight' has scales that are not"):
        GgufCheckpoint(path).load("model.layers.0.mlp.up_proj.weight")


def test_real_model_opens_fast() -> None:
    path = smollm2_gguf()
    GgufCheckpoint(path)
    started = time.process_time()
    checkpoint = GgufCheckpoint(path)
    assert time.process_time() - started < 0.3
    assert checkpoint.config["vocab_size"] == 49152
    assert checkpoint.tokens() == (1, (2, 0), False)


def test_content_and_not_the_ending_makes_a_gguf_file(tmp_path: Path) -> None:
    write_llama(tmp_path / "model.bin", "Q4_1")
    checkpoint = open_checkpoint(tmp_path / "model.bin")
    assert (checkpoint.kind, checkpoint.name) == ("gguf", "model")
    (tmp_path / "model.bin").write_bytes(b"GGU")
    with pytest.raises(CheckpointError, match="holds pickled weights, which are never read"):
        open_checkpoint(tmp_path / "model.bin")
