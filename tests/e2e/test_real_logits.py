"""The real model's logits against the NumPy Llama with the same dequantized weights.

Activations are rounded to 8 bits, so single logits differ; what counts is the distribution over
the next token, on text nobody trained the model on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from aotlm.text.tokenizer import Tokenizer
from aotlm_compile.checkpoint.open import open_checkpoint
from aotlm_compile.cli import main as compile_command
from aotlm_compile.targets import parse_target
from tests.compile.kernel_runner import TARGETS
from tests.conftest import smollm2_gguf
from tests.e2e.divergence import Divergence, compare
from tests.e2e.model_driver import ModelDriver
from tests.reference_llama import ReferenceLlama

Floats = npt.NDArray[np.float32]

TEXT = """\
The ferry left the harbour a little after six, when the fog still lay on the water and the gulls
had not yet found the fishing boats. Marta stood at the rail with a cup of coffee that had gone
cold. She had crossed this strait perhaps two hundred times, first as a child on her father's
knee, later as a student with a bag of books, and now as the engineer who was to say whether the
old bridge on the island could be saved.

Nobody on the island wanted a new bridge. The old one had been built by their grandfathers, stone
by stone, in the three summers after the great flood, and every family could point to the arch in
which one of their own had set a keystone. But the winters had grown wetter. Water seeped into the
joints, froze, and pushed the blocks apart by a hair's breadth each year; in the last inspection
she had been able to slide a coin into a gap that had been closed when she was at school.

There are two ways to repair such a structure. The first is to inject a mortar of lime and fine
sand under low pressure, which fills the voids and stays soft enough to move with the stone. The
second is to drill through the arches and tie them together with steel rods. The second method is
faster and costs less, and it is almost always a mistake, because steel expands when it rusts and
because it makes rigid what was meant to bend. Marta had explained this to the council twice. The
mayor had listened politely, nodded, and asked how much the rods would cost.

When the engines slowed she went down to the car deck. The island rose out of the fog as it always
did, first the lighthouse, then the church, and at last the long grey line of the bridge itself.
"""
OTHER = "Meanwhile, in a laboratory on the other side of the world, a chemist named Ravi poured"
OTHER_LEVELS = [t.name for t in TARGETS if t.level != parse_target("cpu").level]
PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, there was a little girl who",
)


@pytest.fixture(scope="module")
def tokenizer(smollm2_artifact: Path) -> Tokenizer:
    return Tokenizer.from_file(smollm2_artifact / "tokenizer.json")


@pytest.fixture(scope="module")
def text(tokenizer: Tokenizer) -> list[int]:
    tokens = tokenizer.encode(TEXT, allow_special=False)
    assert 300 < len(tokens) < 450
    return tokens


@pytest.fixture(scope="module")
def other(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(OTHER, allow_special=False)


@pytest.fixture(scope="module")
def reference() -> Callable[[tuple[int, ...]], Floats]:
    """Logits of a text, each text computed once: about 7 ms a token."""
    llama = ReferenceLlama.from_checkpoint(open_checkpoint(smollm2_gguf()))
    return cache(llama.logits)


@pytest.fixture(scope="module")
def shared(smollm2_artifact: Path) -> ModelDriver:
    return ModelDriver(smollm2_artifact, cache_tokens=4096)


@pytest.fixture
def driver(shared: ModelDriver) -> ModelDriver:
    """With sequence 0, empty."""
    shared.cache.clear()
    shared.cache.add(0)
    return shared


def assert_good(divergence: Divergence) -> None:
    assert divergence.kl < 0.002
    assert divergence.agreement > 0.95
    assert abs(divergence.perplexity / divergence.reference_perplexity - 1) < 0.005


Reference = Callable[[tuple[int, ...]], Floats]


def test_prefill_in_one_go(driver: ModelDriver, reference: Reference, text: list[int]) -> None:
    divergence = compare(driver.prefill({0: text})[0], reference(tuple(text)), text)
    assert_good(divergence)
    assert 10 < divergence.reference_perplexity < 40  # the text was understood at all


def test_chunked_prefill(driver: ModelDriver, reference: Reference, text: list[int]) -> None:
    assert_good(compare(driver.append(0, text, chunk=100), reference(tuple(text)), text))


def test_decode(driver: ModelDriver, reference: Reference, text: list[int]) -> None:
    start = 120
    first = driver.append(0, text[:start])
    logits = np.concatenate([first, driver.decode_all(0, text[start:])])
    whole = reference(tuple(text))
    assert_good(compare(logits, whole, text))
    assert_good(compare(logits[start:], whole[start:], text[start:]))


def test_fork_and_popn(
    driver: ModelDriver, reference: Reference, text: list[int], other: list[int]
) -> None:
    """One branch from within a page, one from a page's edge, and the trunk cut and regrown."""
    driver.append(0, text[:200])
    positions = {1: 137, 2: 160}
    for seq_id, position in positions.items():
        driver.cache.fork(0, seq_id, position)
    driver.cache.popn(0, 57)
    ends: dict[int, list[int]] = {1: other, 2: other[::-1], 0: text[143:180]}
    logits = driver.prefill({seq_id: tokens[:-4] for seq_id, tokens in ends.items()})
    for at in range(-4, 0):
        step = driver.decode({seq_id: tokens[at] for seq_id, tokens in ends.items()})
        for seq_id, row in step.items():
            logits[seq_id] = np.concatenate([logits[seq_id], row[None]])
    starts = {**positions, 0: 143}
    parts = []
    for seq_id, tokens in ends.items():
        whole = reference((*text[: starts[seq_id]], *tokens))
        parts.append((logits[seq_id], whole[-len(tokens) :], tokens))
    for actual, expected, tokens in parts:
        assert compare(actual, expected, tokens).kl < 0.01
    joined = [np.concatenate([part[i] for part in parts]) for i in (0, 1)]
    divergence = compare(joined[0], joined[1], [t for part in parts for t in part[2]])
    assert divergence.kl < 0.002
    assert divergence.agreement > 0.95


def greedy(driver: ModelDriver, tokenizer: Tokenizer, count: int) -> list[str]:
    """The texts that follow the prompts, all decoded together."""
    last = {}
    for seq_id, prompt in enumerate(PROMPTS):
        driver.cache.add(seq_id)
        tokens = tokenizer.encode(prompt, allow_special=False)
        last[seq_id] = driver.append(seq_id, tokens)[-1]
    answers: dict[int, list[int]] = {seq_id: [] for seq_id in last}
    for _ in range(count):
        chosen = {seq_id: int(logits.argmax()) for seq_id, logits in last.items()}
        for seq_id, token in chosen.items():
            answers[seq_id].append(token)
        last = driver.decode(chosen)
    return [tokenizer.decode(answer) for answer in answers.values()]


@pytest.mark.timeout(300)  # compiles the whole model
@pytest.mark.parametrize("target", OTHER_LEVELS)
def test_every_level_says_the_same(
    shared: ModelDriver, tokenizer: Tokenizer, tmp_path: Path, target: str
) -> None:
    shared.cache.clear()
    expected = greedy(shared, tokenizer, 24)
    assert "Paris" in expected[0]
    folder = tmp_path / "model"
    try:
        assert compile_command(["smollm2-135m", "--target", target, "-o", str(folder)]) == 0
        assert greedy(ModelDriver(folder, cache_tokens=1024), tokenizer, 24) == expected
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # pytest would keep 100 MB of it
