"""A compiled model's logits equal the NumPy Llama's, whatever its cache went through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from aotlm_compile.quantize import q4f32_1
from tests.e2e.divergence import compare
from tests.e2e.model_driver import ModelDriver
from tests.reference_llama import ReferenceLlama
from tests.tiny_model import CONFIG, random_weights

Floats = npt.NDArray[np.float32]

VOCAB: int = CONFIG["vocab_size"]
CHUNK = 32
TOLERANCE = 1e-3
TEXT: list[int] = np.random.default_rng(8).integers(3, VOCAB, 500).tolist()
OTHER: list[int] = np.random.default_rng(9).integers(3, VOCAB, 60).tolist()


@pytest.fixture(scope="module")
def shared(compile_tiny: Callable[..., Path]) -> ModelDriver:
    return ModelDriver(compile_tiny("q0f32"), cache_tokens=2048)


@pytest.fixture
def driver(shared: ModelDriver) -> ModelDriver:
    """With sequence 0, empty."""
    shared.cache.clear()
    shared.cache.add(0)
    return shared


@pytest.fixture(scope="module")
def reference() -> ReferenceLlama:
    return ReferenceLlama(CONFIG, random_weights(CONFIG, 0))


def check(actual: Floats, reference: ReferenceLlama, tokens: list[int]) -> None:
    """`actual`: logits of the last tokens, float32 [n, vocab] or [vocab]."""
    rows = actual.reshape(-1, VOCAB)
    expected = reference.logits(tokens)[-len(rows) :]
    assert np.abs(rows - expected).max() < TOLERANCE


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32])
def test_prefill(driver: ModelDriver, reference: ReferenceLlama, length: int) -> None:
    check(driver.append(0, TEXT[:length]), reference, TEXT[:length])


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 32])
def test_chunked_prefill(driver: ModelDriver, reference: ReferenceLlama, chunk: int) -> None:
    check(driver.append(0, TEXT[:150], chunk), reference, TEXT[:150])


def test_decode(driver: ModelDriver, reference: ReferenceLlama) -> None:
    driver.append(0, TEXT[:10])
    check(driver.decode_all(0, TEXT[10:60]), reference, TEXT[:60])


def test_up_to_the_context_window(driver: ModelDriver, reference: ReferenceLlama) -> None:
    text = [*TEXT, *OTHER[:12]]
    assert len(text) == 512
    check(driver.append(0, text[:-20]), reference, text[:-20])
    check(driver.decode_all(0, text[-20:]), reference, text)


@pytest.mark.parametrize("position", [1, 5, 15, 16, 17, 32, 47, 48, 49, 50])
def test_fork(driver: ModelDriver, reference: ReferenceLlama, position: int) -> None:
    """Within a page, at its edge, and at the end; both branches go on."""
    driver.append(0, TEXT[:50])
    driver.cache.fork(0, 1, position)
    branch = [*TEXT[:position], *OTHER[:20]]
    check(driver.append(1, OTHER[:3]), reference, branch[: position + 3])
    check(driver.decode_all(0, TEXT[50:53]), reference, TEXT[:53])
    check(driver.decode_all(1, OTHER[3:20]), reference, branch)
    check(driver.append(0, TEXT[53:70]), reference, TEXT[:70])
    driver.cache.check_integrity()


@pytest.mark.parametrize(("first", "second"), [(40, 20), (32, 16), (33, 40), (17, 17), (48, 55)])
def test_fork_of_a_fork(
    driver: ModelDriver, reference: ReferenceLlama, first: int, second: int
) -> None:
    driver.append(0, TEXT[:50])
    driver.cache.fork(0, 1, first)
    child = [*TEXT[:first], *OTHER[:25]]
    driver.append(1, OTHER[:25])
    driver.cache.fork(1, 2, second)
    grandchild = [*child[:second], *TEXT[100:118]]
    check(driver.append(2, TEXT[100:118]), reference, grandchild)
    # Then all three in one batch, and on after the middle one is gone.
    logits = driver.decode({2: 7, 0: 8, 1: 9})
    for seq_id, tokens in ((0, [*TEXT[:50], 8]), (1, [*child, 9]), (2, [*grandchild, 7])):
        check(logits[seq_id], reference, tokens)
    driver.cache.remove(1)
    logits = driver.decode({0: 10, 2: 11})
    check(logits[0], reference, [*TEXT[:50], 8, 10])
    check(logits[2], reference, [*grandchild, 7, 11])
    driver.cache.check_integrity()


@pytest.mark.parametrize("count", [1, 2, 16, 18, 34, 49, 50])
def test_popn(driver: ModelDriver, reference: ReferenceLlama, count: int) -> None:
    driver.append(0, TEXT[:50])
    driver.cache.popn(0, count)
    kept = TEXT[: 50 - count]
    check(driver.append(0, OTHER[:19]), reference, [*kept, *OTHER[:19]])
    check(driver.decode_all(0, OTHER[19:22]), reference, [*kept, *OTHER[:22]])
    driver.cache.check_integrity()


def test_popn_after_a_fork_leaves_the_parent(
    driver: ModelDriver, reference: ReferenceLlama
) -> None:
    driver.append(0, TEXT[:50])
    driver.cache.fork(0, 1, 40)
    driver.append(1, OTHER[:20])
    driver.cache.popn(1, 17)
    check(driver.append(1, TEXT[200:209]), reference, [*TEXT[:40], *OTHER[:3], *TEXT[200:209]])
    check(driver.decode_all(0, TEXT[50:52]), reference, TEXT[:52])


def test_ragged_batch_of_prompts_and_single_tokens(
    driver: ModelDriver, reference: ReferenceLlama
) -> None:
    for seq_id in (1, 2, 3, 4):
        driver.cache.add(seq_id)
    driver.append(1, TEXT[:33])
    driver.append(2, OTHER[:16])
    chunks = {3: TEXT[60:71], 1: TEXT[33:34], 0: OTHER[:1], 2: OTHER[16:18], 4: TEXT[80:97]}
    logits = driver.prefill(chunks)
    wholes = {**chunks, 1: TEXT[:34], 2: OTHER[:18]}
    for seq_id, tokens in wholes.items():
        check(logits[seq_id], reference, tokens)
    logits = driver.decode({seq_id: seq_id + 20 for seq_id in wholes})
    for seq_id, tokens in wholes.items():
        check(logits[seq_id], reference, [*tokens, seq_id + 20])


@pytest.mark.parametrize("seed", range(6))
def test_any_course_of_events(driver: ModelDriver, reference: ReferenceLlama, seed: int) -> None:
    """Up to 8 sequences, grown, forked, cut and removed by chance; every logit is checked."""
    rng = np.random.default_rng(seed)
    texts: dict[int, list[int]] = {0: []}
    for _ in range(40):
        event = rng.choice(["prefill", "decode", "fork", "pop", "remove", "add"])
        some = [s for s in texts if rng.random() < 0.5] or [next(iter(texts))]
        free = next((s for s in range(8) if s not in texts), None)
        if event == "prefill":
            lengths = rng.multinomial(CHUNK - len(some), [1 / len(some)] * len(some)) + 1
            chunks = {
                s: rng.integers(3, VOCAB, n).tolist() for s, n in zip(some, lengths, strict=True)
            }
            for s, logits in driver.prefill(chunks).items():
                texts[s] += chunks[s]
                check(logits, reference, texts[s])
        elif event == "decode":
            tokens = {s: int(rng.integers(3, VOCAB)) for s in some if texts[s]}
            for s, logits in driver.decode(tokens).items() if tokens else ():
                texts[s].append(tokens[s])
                check(logits, reference, texts[s])
        elif event == "fork" and free is not None and texts[some[0]]:
            position = int(rng.integers(1, len(texts[some[0]]) + 1))
            driver.cache.fork(some[0], free, position)
            texts[free] = texts[some[0]][:position]
        elif event == "pop" and texts[some[0]]:
            count = int(rng.integers(1, len(texts[some[0]]) + 1))
            driver.cache.popn(some[0], count)
            del texts[some[0]][-count:]
        elif event == "remove" and len(texts) > 1:
            driver.cache.remove(some[0])
            del texts[some[0]]
        elif event == "add" and free is not None:
            driver.cache.add(free)
            texts[free] = []
        driver.cache.check_integrity()


def test_four_bit_weights(compile_tiny: Callable[..., Path]) -> None:
    """Against the same groups in float32: what is left is the int8 activations."""
    weights = {
        name: values if values.ndim == 1 else q4f32_1.quantize(values).dequantize()
        for name, values in random_weights(CONFIG, 0).items()
    }
    driver = ModelDriver(compile_tiny("q4f32_1"), cache_tokens=512)
    driver.cache.add(0)
    logits = np.concatenate([driver.append(0, TEXT[:150]), driver.decode_all(0, TEXT[150:200])])
    divergence = compare(logits, ReferenceLlama(CONFIG, weights).logits(TEXT[:200]), TEXT[:200])
    assert divergence.kl < 0.005
    assert divergence.agreement > 0.95


@pytest.mark.parametrize("quantization", ["q0f32", "q4f32_1"])
def test_logits_do_not_depend_on_the_batch(
    compile_tiny: Callable[..., Path], quantization: str
) -> None:
    """Bit for bit: greedy answers stay the same whatever else is being served."""
    driver = ModelDriver(compile_tiny(quantization), cache_tokens=2048)
    lengths = {0: 7, 1: 1, 2: 16, 3: 5}

    def served(together: list[int]) -> dict[int, list[Floats]]:
        driver.cache.clear()
        for s in together:
            driver.cache.add(s)
        first = driver.prefill({s: TEXT[s * 40 : s * 40 + lengths[s]] for s in together})
        results = {s: list(first[s]) for s in together}
        for step in range(4):
            logits = driver.decode({s: OTHER[step + s] for s in together})
            for s in together:
                results[s].append(logits[s])
        return results

    among_others = served([3, 0, 2, 1])
    for s in (0, 2, 3):
        np.testing.assert_array_equal(served([s])[s], among_others[s])
