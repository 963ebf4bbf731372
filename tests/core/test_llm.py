"""`LLM` on the tiny compiled model, its tokens checked against the NumPy Llama."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aotlm.config import EngineConfig
from aotlm.engine.async_engine import AsyncEngine
from aotlm.errors import ArtifactNotFound, ContextLengthError, EngineError, RequestError
from aotlm.llm import LLM
from aotlm.request import FinishReason, GenerationConfig, Request
from tests.reference_llama import ReferenceLlama
from tests.tiny_model import CHAT_TEMPLATE, CONFIG, random_weights


@pytest.fixture(scope="module")
def llm(compile_tiny: Callable[..., Path]) -> LLM:
    return LLM(compile_tiny("q0f32"), cache_tokens=2048, queue_limit=4)


@pytest.fixture(scope="module")
def reference() -> ReferenceLlama:
    return ReferenceLlama(CONFIG, random_weights(CONFIG, 0))


def greedy_without_ends(llm: LLM, max_tokens: int = 12) -> GenerationConfig:
    """End tokens forbidden: the random model would stop anywhere."""
    ends = dict.fromkeys(llm.artifact.manifest.tokens.eos_ids, -1e6)
    return GenerationConfig(temperature=0.0, max_tokens=max_tokens, logit_bias=ends)


def test_greedy_tokens_are_those_of_the_reference(llm: LLM, reference: ReferenceLlama) -> None:
    prompt = "the quick brown fox jumps over the lazy dog and then there was nothing"
    (answer,) = llm.generate(prompt, temperature=0.0, max_tokens=8)
    ids = llm.tokenizer.encode(prompt, allow_special=False)
    expected = reference.greedy(ids, 8)
    ends = llm.artifact.manifest.tokens.eos_ids
    shown = next((i for i, token in enumerate(expected) if token in ends), len(expected))
    assert list(answer.token_ids) == expected[:shown]
    assert answer.prompt_tokens == len(ids)


def test_more_prompts_than_may_wait_are_all_answered_in_order(llm: LLM) -> None:
    prompts = [f"number {index}" for index in range(30)]
    config = greedy_without_ends(llm, 5)
    together = llm.generate(prompts, config)
    assert len(together) == 30
    for index in (0, 13, 29):
        assert llm.generate(prompts[index], config)[0].token_ids == together[index].token_ids


def test_a_conversation_goes_through_the_models_template(llm: LLM) -> None:
    (answer,) = llm.generate([{"role": "user", "content": "hi"}], max_tokens=1)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert "im_start" in CHAT_TEMPLATE
    assert answer.prompt_tokens == len(llm.tokenizer.encode(text, allow_special=True))


def test_special_tokens_in_plain_text_stay_text(llm: LLM) -> None:
    (answer,) = llm.generate("<|im_end|>", max_tokens=1)
    assert answer.prompt_tokens > 1


def test_the_stream_joined_is_the_answer(llm: LLM) -> None:
    config = greedy_without_ends(llm, 30)
    pieces = list(llm.stream("the quick", config))
    assert "".join(pieces) == llm.generate("the quick", config)[0].text


def test_a_stop_string_ends_the_answer_and_never_shows(llm: LLM) -> None:
    config = GenerationConfig(
        temperature=0.0,
        max_tokens=20,
        logit_bias={llm.tokenizer.encode(letter, False)[0]: 1e4 for letter in "ab"},
        repetition_penalty=1.5,
        frequency_penalty=300.0,
    )
    (free,) = llm.generate("x", config)
    assert {"a", "b"} <= set(free.text)
    stop = free.text[3:5]
    (stopped,) = llm.generate("x", config, stop=[stop])
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.finish_reason is FinishReason.STOP
    assert "".join(llm.stream("x", config, stop=[stop])) == stopped.text


def test_an_end_token_stops(llm: LLM) -> None:
    end = llm.artifact.manifest.tokens.eos_ids[0]
    (answer,) = llm.generate("x", temperature=0.0, max_tokens=9, logit_bias={end: 1e4})
    assert answer.finish_reason is FinishReason.STOP
    assert (answer.text, answer.token_ids, answer.completion_tokens) == ("", (), 1)


def test_the_models_defaults_hold_unless_told_otherwise(llm: LLM) -> None:
    assert llm._config(None, {}).temperature == pytest.approx(0.7)
    assert llm._config(None, {"temperature": 0.1}).temperature == 0.1
    assert llm._config(GenerationConfig(), {}).temperature == 1.0


def test_a_seed_repeats_the_answer(llm: LLM) -> None:
    def answer(seed: int) -> tuple[int, ...]:
        return llm.generate("the", temperature=2.0, max_tokens=12, seed=seed)[0].token_ids

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_leaving_a_stream_frees_everything(llm: LLM) -> None:
    stream = llm.stream("the quick", greedy_without_ends(llm, 100))
    next(stream)
    with pytest.raises(EngineError, match="still being streamed"):
        llm.generate("x", max_tokens=1)
    stream.close()  # type: ignore[attr-defined]
    assert not llm._engine.has_work
    llm._engine.check_integrity()


def test_one_bad_prompt_refuses_all_before_any_runs(llm: LLM) -> None:
    steps = llm._engine.stats().steps
    with pytest.raises(ContextLengthError, match="512"):
        llm.generate(["fine", "x " * 600], max_tokens=4)
    with pytest.raises(RequestError, match="prompt is empty"):
        llm.generate(["fine", ""], max_tokens=4)
    assert llm._engine.stats().steps == steps


def test_no_prompts_give_no_answers(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ArtifactNotFound, match="no-such-model"):
        LLM("no-such-model")


async def test_the_asynchronous_engine_runs_the_same_model(
    compile_tiny: Callable[..., Path], llm: LLM
) -> None:
    path = compile_tiny("q0f32")
    engine = AsyncEngine.from_config(EngineConfig(artifact=path, cache_tokens=1024))
    await engine.start()
    config = greedy_without_ends(llm)
    prompt = tuple(llm.tokenizer.encode("the quick", allow_special=False))
    tokens = [
        token
        async for output in engine.generate(Request("a", prompt, config))
        for token in output.token_ids
    ]
    await engine.stop(1.0)
    assert tuple(tokens) == llm.generate("the quick", config)[0].token_ids


async def test_an_artifact_that_is_missing_fails_the_start(tmp_path: Path) -> None:
    engine = AsyncEngine.from_config(EngineConfig(artifact=tmp_path))
    with pytest.raises(ArtifactNotFound):
        await engine.start()
    await engine.stop(0.0)
