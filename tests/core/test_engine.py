from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from aotlm.engine.engine import Engine, RequestFailure, StepResult
from aotlm.engine.protocol import EngineLimits
from aotlm.errors import (
    ContextLengthError,
    EngineOverloaded,
    EngineStopped,
    GenerationFailed,
    RequestError,
)
from aotlm.request import FinishReason, GenerationConfig, Request, TokenOutput
from tests.core.numpy_runner import VOCAB, NumpyRunner, greedy_continuation, next_logits

GREEDY = GenerationConfig(temperature=0.0, max_tokens=6)


def request(
    name: str, prompt: Sequence[int] = (1, 2, 3), config: GenerationConfig = GREEDY
) -> Request:
    return Request(name, tuple(prompt), config)


def run(engine: Engine, *requests: Request) -> dict[str, list[StepResult]]:
    """Everything each request was given until all have ended."""
    given: dict[str, list[StepResult]] = {}
    for entry in requests:
        output = engine.add(entry)
        given[entry.request_id] = [] if output is None else [output]
    while engine.has_work:
        for result in engine.step():
            given[result.request_id].append(result)
    engine.check_integrity()
    return given


def tokens(results: list[StepResult]) -> list[int]:
    return [
        token for result in results if isinstance(result, TokenOutput) for token in result.token_ids
    ]


def last(results: list[StepResult]) -> TokenOutput:
    assert isinstance(results[-1], TokenOutput)
    return results[-1]


class TestTokens:
    @pytest.mark.parametrize("length", [1, 3, 16, 17, 40])
    def test_greedy_tokens_equal_the_model_run_by_hand(self, length: int) -> None:
        prompt = [i % VOCAB for i in range(length)]
        given = run(Engine(NumpyRunner()), request("a", prompt))["a"]
        assert tokens(given) == greedy_continuation(prompt, 6)
        assert last(given).finish_reason is FinishReason.LENGTH
        assert (last(given).prompt_tokens, last(given).completion_tokens) == (length, 6)

    def test_one_output_per_token_as_it_comes(self) -> None:
        given = run(Engine(NumpyRunner()), request("a"))["a"]
        counts = [result.completion_tokens for result in given if isinstance(result, TokenOutput)]
        assert counts == [1, 2, 3, 4, 5, 6]

    def test_a_stop_token_is_counted_and_not_shown(self) -> None:
        expected = greedy_continuation([1, 2, 3], 6)
        config = replace(GREEDY, stop_token_ids=frozenset({expected[3]}), logprobs=1)
        given = run(Engine(NumpyRunner()), request("a", config=config))["a"]
        assert tokens(given) == expected[:3]
        assert last(given).finish_reason is FinishReason.STOP
        assert last(given).completion_tokens == 4
        assert last(given).logprobs == ()

    def test_min_tokens_keeps_a_stop_token_away(self) -> None:
        first = greedy_continuation([1, 2, 3], 1)[0]
        config = replace(GREEDY, stop_token_ids=frozenset({first}), min_tokens=2)
        given = run(Engine(NumpyRunner()), request("a", config=config))["a"]
        assert last(given).completion_tokens >= 3
        assert first not in tokens(given)[:2]

    def test_the_context_window_ends_an_answer_without_limit(self) -> None:
        config = replace(GREEDY, max_tokens=None)
        given = run(Engine(NumpyRunner()), request("a", [5] * 60, config))["a"]
        assert last(given).completion_tokens == 4
        assert last(given).finish_reason is FinishReason.LENGTH

    def test_no_tokens_asked_for_gives_none_and_runs_nothing(self) -> None:
        runner = NumpyRunner()
        given = run(Engine(runner), request("a", config=replace(GREEDY, max_tokens=0)))["a"]
        assert given == [TokenOutput("a", (), 3, 0, finish_reason=FinishReason.LENGTH)]
        assert runner.calls == []

    def test_logprobs_come_with_each_token(self) -> None:
        config = replace(GREEDY, logprobs=2)
        given = run(Engine(NumpyRunner()), request("a", config=config))["a"]
        entries = [e for r in given if isinstance(r, TokenOutput) for e in r.logprobs]
        assert [entry.token_id for entry in entries] == tokens(given)
        raw = next_logits([1, 2, 3]).astype(np.float64)
        assert entries[0].logprob == pytest.approx(raw.max() - np.log(np.exp(raw).sum()), abs=1e-5)


class TestBatches:
    def test_a_seeded_request_is_the_same_alone_and_among_others(self) -> None:
        config = GenerationConfig(seed=11, max_tokens=20, top_p=0.9, frequency_penalty=0.2)
        alone = run(Engine(NumpyRunner()), request("a", config=config))["a"]
        others = [
            request(f"o{i}", [i] * (i + 1), replace(config, seed=i, temperature=2.0))
            for i in range(15)
        ]
        limits = EngineLimits(64, 16, 16)
        amid = run(
            Engine(NumpyRunner(limits=limits, num_pages=500)), *others, request("a", config=config)
        )
        assert tokens(amid["a"]) == tokens(alone)

    def test_decodes_go_together(self) -> None:
        runner = NumpyRunner()
        run(Engine(runner), *[request(name) for name in "abcd"])
        assert runner.calls == [("prefill", 12)] + [("decode", 4)] * 5

    def test_decodes_go_on_while_a_long_prompt_is_read(self) -> None:
        runner = NumpyRunner()
        engine = Engine(runner, busy_prefill_tokens=4)
        engine.add(request("a", config=replace(GREEDY, max_tokens=30)))
        engine.step()
        engine.add(request("long", [7] * 40))
        kinds = []
        for _ in range(10):
            before = len(runner.calls)
            engine.step()
            kinds.append(runner.calls[before:])
        assert kinds == [[("decode", 1), ("prefill", 4)]] * 10

    def test_running_out_of_pages_changes_no_answer(self) -> None:
        runner = NumpyRunner(num_pages=9, page_size=4)
        prompts = {name: [i + 1] * 6 for i, name in enumerate("abc")}
        config = replace(GREEDY, max_tokens=12)
        given = run(Engine(runner), *[request(n, p, config) for n, p in prompts.items()])
        for name, prompt in prompts.items():
            assert tokens(given[name]) == greedy_continuation(prompt, 12)
        assert sum(kind == "prefill" for kind, _ in runner.calls) > 1  # somebody was recomputed

    def test_a_cache_smaller_than_the_answer_ends_it_with_length(self) -> None:
        runner = NumpyRunner(num_pages=3, page_size=4)
        config = replace(GREEDY, max_tokens=30)
        given = run(Engine(runner), request("a", [1] * 5, config), request("b", [2] * 5, config))
        for results in given.values():
            assert last(results).finish_reason is FinishReason.LENGTH
            assert last(results).completion_tokens == 12 - 5 + 1
        assert runner.pages.free == 3

    def test_requests_without_a_seed_differ_and_the_base_seed_repeats_them(self) -> None:
        config = GenerationConfig(max_tokens=10, temperature=3.0)

        def answers(base: int) -> list[list[int]]:
            given = run(
                Engine(NumpyRunner(), seed=base),
                request("a", config=config),
                request("b", config=config),
            )
            return [tokens(given[name]) for name in "ab"]

        assert answers(1) == answers(1)
        assert answers(1) != answers(2)
        assert answers(1)[0] != answers(1)[1]


class TestAbort:
    def test_frees_everything_at_once(self) -> None:
        runner = NumpyRunner()
        engine = Engine(runner)
        engine.add(request("a"))
        engine.step()
        output = engine.abort("a")
        assert output is not None
        assert output.finish_reason is FinishReason.ABORT
        assert output.completion_tokens == 1
        assert runner.pages.free == 64
        assert not engine.has_work
        engine.check_integrity()

    def test_works_on_what_waits(self) -> None:
        engine = Engine(NumpyRunner())
        engine.add(request("a"))
        assert engine.abort("a") is not None
        assert engine.step() == []

    def test_ignores_unknown_ids(self) -> None:
        assert Engine(NumpyRunner()).abort("nobody") is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "param"),
        [
            ({"temperature": -0.1}, "temperature"),
            ({"temperature": float("nan")}, "temperature"),
            ({"top_p": 0.0}, "top_p"),
            ({"top_p": 1.1}, "top_p"),
            ({"top_k": -1}, "top_k"),
            ({"min_p": 1.5}, "min_p"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"min_tokens": -1}, "min_tokens"),
            ({"repetition_penalty": 0.0}, "repetition_penalty"),
            ({"presence_penalty": float("inf")}, "presence_penalty"),
            ({"frequency_penalty": float("nan")}, "frequency_penalty"),
            ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
            ({"logit_bias": {1: float("nan")}}, "logit_bias"),
            ({"logprobs": VOCAB + 1}, "logprobs"),
        ],
    )
    def test_impossible_settings_name_the_field(
        self, change: dict[str, object], param: str
    ) -> None:
        config = replace(GREEDY, **change)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=param) as caught:
            Engine(NumpyRunner()).add(request("a", config=config))
        assert caught.value.param == param

    def test_a_prompt_of_the_context_window_gives_both_counts(self) -> None:
        with pytest.raises(ContextLengthError, match=r"64 tokens .* holds 64"):
            Engine(NumpyRunner()).add(request("a", [1] * 64))

    def test_a_prompt_larger_than_the_cache_gives_both_counts(self) -> None:
        with pytest.raises(ContextLengthError, match=r"13 tokens .* holds 12"):
            Engine(NumpyRunner(num_pages=3)).add(request("a", [1] * 13))

    @pytest.mark.parametrize("prompt", [[], [-1], [VOCAB]])
    def test_impossible_prompts(self, prompt: list[int]) -> None:
        with pytest.raises(RequestError):
            Engine(NumpyRunner()).add(request("a", prompt))

    def test_an_id_under_way_is_taken(self) -> None:
        engine = Engine(NumpyRunner())
        engine.add(request("a"))
        with pytest.raises(RequestError, match="'a' is under way"):
            engine.add(request("a"))

    def test_the_queue_has_a_limit(self) -> None:
        engine = Engine(NumpyRunner(), queue_limit=2)
        for index in range(4 + 2):
            engine.add(request(str(index)))
        with pytest.raises(EngineOverloaded):
            engine.add(request("one more"))


class TestFaults:
    def test_a_request_that_breaks_the_forward_pass_ends_alone(self) -> None:
        runner = NumpyRunner()
        engine = Engine(runner)

        def poison(seq_ids: Sequence[int]) -> None:
            if any(runner.cached[seq_id][:1] == [13] for seq_id in seq_ids):
                raise RuntimeError("trace\nof many lines\nunlucky number")

        runner.hook = poison
        good = greedy_continuation([1, 2, 3], 6)
        given = run(engine, request("good"), request("bad", [13, 4]), request("good 2"))
        assert tokens(given["good"]) == tokens(given["good 2"]) == good
        failure = given["bad"][-1]
        assert isinstance(failure, RequestFailure)
        assert str(failure.error) == "the model failed: RuntimeError: unlucky number"
        assert runner.pages.free == 64

    def test_many_poisonous_requests_do_not_stop_the_engine(self) -> None:
        runner = NumpyRunner()
        engine = Engine(runner)

        def poison(seq_ids: Sequence[int]) -> None:
            if any(runner.cached[seq_id][:1] == [13] for seq_id in seq_ids):
                raise MemoryError

        runner.hook = poison
        given = run(engine, *[request(str(i), [13, i]) for i in range(20)], request("good"))
        assert tokens(given["good"]) == greedy_continuation([1, 2, 3], 6)

    def test_nan_logits_end_their_request_alone(self) -> None:
        class NanRunner(NumpyRunner):
            def decode(
                self, seq_ids: Sequence[int], token_ids: NDArray[np.int32]
            ) -> NDArray[np.float32]:
                logits = super().decode(seq_ids, token_ids)
                logits[[self.cached[seq_id][0] == 9 for seq_id in seq_ids]] = np.nan
                return logits

        given = run(Engine(NanRunner()), request("bad", [9]), request("good"))
        failure = given["bad"][-1]
        assert isinstance(failure, RequestFailure)
        assert isinstance(failure.error, GenerationFailed)
        assert "not finite" in str(failure.error)
        assert tokens(given["good"]) == greedy_continuation([1, 2, 3], 6)

    def test_a_sampler_that_raises_for_one_row_ends_that_row(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(NumpyRunner())
        original = engine._sampler.sample

        def picky(logits: NDArray[np.float32], states: Sequence[object]) -> object:
            if any(state.prompt_tokens == 2 for state in states):  # type: ignore[attr-defined]
                raise ValueError("no twos")
            return original(logits, states)  # type: ignore[arg-type]

        monkeypatch.setattr(engine._sampler, "sample", picky)
        given = run(engine, request("good"), request("bad", [1, 2]))
        assert isinstance(given["bad"][-1], RequestFailure)
        assert tokens(given["good"]) == greedy_continuation([1, 2, 3], 6)

    def test_a_lost_device_stops_the_engine(self) -> None:
        runner = NumpyRunner()
        engine = Engine(runner)
        engine.add(request("a"))
        engine.step()

        def dead(seq_ids: Sequence[int]) -> None:
            raise OSError("device lost")

        runner.hook = dead
        with pytest.raises(EngineStopped, match="the device does not answer: OSError: device lost"):
            engine.step()

    def test_reset_ends_all_and_begins_anew(self) -> None:
        runner = NumpyRunner()
        engine = Engine(runner)
        for name in "abcdef":
            engine.add(request(name))
        engine.step()
        failures = engine.reset("a test said so")
        assert sorted(failure.request_id for failure in failures) == list("abcdef")
        assert all(isinstance(failure, RequestFailure) for failure in failures)
        assert runner.pages.free == 64
        assert tokens(run(engine, request("a"))["a"]) == greedy_continuation([1, 2, 3], 6)


def test_stats_count_what_was_done() -> None:
    engine = Engine(NumpyRunner(), queue_limit=10)
    for name in "abcdef":
        engine.add(request(name))
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.requests) == (4, 2, 6)
    while engine.has_work:
        engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert (stats.prompt_tokens, stats.completion_tokens) == (18, 36)
    assert stats.steps > 6
