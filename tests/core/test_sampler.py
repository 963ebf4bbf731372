from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aotlm import native
from aotlm.request import GenerationConfig
from aotlm.runtime.sampler import SampledToken, Sampler, SamplingState
from tests.core import sampler_reference as reference

GREEDY = GenerationConfig(temperature=0.0)


def random_logits(seed: int, vocab: int, spread: float = 3.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, spread, vocab).astype(np.float32)


def sample(
    logits: NDArray[np.float32],
    config: GenerationConfig,
    *,
    seed: int = 0,
    prompt: tuple[int, ...] = (0,),
    completion: tuple[int, ...] = (),
) -> SampledToken:
    state = SamplingState(config, seed, array("i", prompt + completion), len(prompt))
    return Sampler(1).sample(logits.reshape(1, -1), [state])[0]


def draw_many(logits: NDArray[np.float32], config: GenerationConfig, n: int) -> NDArray[np.int64]:
    """How often each token came in n draws with seeds 0 to n - 1: int64 [vocab]."""
    sampler = Sampler(64)
    batch = np.ascontiguousarray(np.broadcast_to(logits, (64, len(logits))))
    counts = np.zeros(len(logits), np.int64)
    for start in range(0, n, 64):
        states = [
            SamplingState(config, seed, array("i", [0]), 1) for seed in range(start, start + 64)
        ]
        for token in sampler.sample(batch, states):
            counts[token.token_id] += 1
    return counts


def chi_square_per_degree(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Near 1 for a right distribution; cells expected under 5 times are put together."""
    big = expected >= 5
    cells = [((counts[big] - expected[big]) ** 2 / expected[big]).sum()]
    degrees = int(big.sum()) - 1
    rest = expected[~big].sum()
    if rest >= 5:
        cells.append((counts[~big].sum() - rest) ** 2 / rest)
        degrees += 1
    return float(sum(cells)) / degrees


class TestRandomNumbers:
    def test_the_reference_generator_gives_the_published_vectors(self) -> None:
        zero = reference.philox((0, 0), (0, 0, 0, 0))
        ones = reference.philox((2**32 - 1,) * 2, (2**32 - 1,) * 4)
        assert zero == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
        assert ones == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)

    @given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
    def test_native_numbers_equal_the_reference(self, seed: int, position: int) -> None:
        assert native.uniform(seed, position) == reference.uniform(seed, position)


class TestGreedy:
    @pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 1000, 49152])
    def test_takes_the_largest_logit(self, vocab: int) -> None:
        logits = random_logits(vocab, vocab)
        assert sample(logits, GREEDY).token_id == int(logits.argmax())

    @pytest.mark.parametrize("ties", [(3, 70), (64, 128), (0, 199)])
    def test_a_tie_goes_to_the_lowest_id(self, ties: tuple[int, int]) -> None:
        logits = np.zeros(200, np.float32)
        logits[list(ties)] = 5.0
        assert sample(logits, GREEDY).token_id == ties[0]

    def test_top_k_of_one_is_greedy_at_any_temperature(self) -> None:
        logits = random_logits(1, 500)
        hot = GenerationConfig(temperature=50.0, top_k=1)
        assert {sample(logits, hot, seed=seed).token_id for seed in range(50)} == {
            int(logits.argmax())
        }


class TestPenaltiesAndBias:
    @given(
        st.integers(0, 1000),
        st.lists(st.integers(0, 39), max_size=8),
        st.lists(st.integers(0, 39), max_size=8),
        st.floats(0.5, 2.0),
        st.floats(-2.0, 2.0),
        st.floats(-2.0, 2.0),
        st.dictionaries(st.integers(0, 39), st.floats(-5, 5), max_size=4),
    )
    def test_greedy_choice_equals_the_reference(
        self,
        seed: int,
        prompt: list[int],
        completion: list[int],
        repetition: float,
        presence: float,
        frequency: float,
        bias: dict[int, float],
    ) -> None:
        logits = random_logits(seed, 40)
        config = GenerationConfig(
            temperature=0.0,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            logit_bias=bias,
        )
        token = sample(logits, config, prompt=tuple(prompt), completion=tuple(completion)).token_id
        expected = reference.processed(logits, config, prompt, completion)
        assert expected[token] == pytest.approx(expected.max(), abs=1e-5)

    def test_counts_do_not_leak_into_the_next_row(self) -> None:
        logits = np.array([1.0, 0.9, 0.0], np.float32)
        config = GenerationConfig(temperature=0.0, frequency_penalty=0.3)
        assert sample(logits, config, completion=(0,)).token_id == 1
        assert sample(logits, config, prompt=(2,), completion=(2,)).token_id == 0

    def test_infinite_bias_forbids_a_token(self) -> None:
        logits = np.array([9.0, 1.0], np.float32)
        config = GenerationConfig(temperature=0.0, logit_bias={0: -np.inf})
        assert sample(logits, config).token_id == 1

    def test_stop_tokens_are_forbidden_until_min_tokens_are_out(self) -> None:
        logits = np.array([9.0, 1.0], np.float32)
        config = GenerationConfig(temperature=0.0, min_tokens=2, stop_token_ids=frozenset({0}))
        tokens = array("i", [1])
        state = SamplingState(config, 0, tokens, 1)
        chosen = []
        for _ in range(4):
            chosen.append(Sampler(1).sample(logits.reshape(1, -1), [state])[0].token_id)
            tokens.append(chosen[-1])
        assert chosen == [1, 1, 0, 0]


FILTERS = [
    GenerationConfig(),
    GenerationConfig(temperature=0.5),
    GenerationConfig(top_k=7),
    GenerationConfig(top_p=0.8),
    GenerationConfig(min_p=0.05),
    GenerationConfig(temperature=2.0, top_p=0.9),
    GenerationConfig(top_k=20, top_p=0.7),
    GenerationConfig(top_k=50, top_p=0.95, min_p=0.02, temperature=1.5),
    GenerationConfig(top_p=0.999, min_p=0.3),
]


class TestDistribution:
    @pytest.mark.parametrize("config", FILTERS)
    def test_draws_follow_the_reference(self, config: GenerationConfig) -> None:
        logits = random_logits(7, 150, spread=1.5)
        expected = reference.distribution(logits.astype(np.float64), config)
        counts = draw_many(logits, config, 12_800)
        assert counts[~expected.kept].sum() == 0
        assert chi_square_per_degree(counts, expected.probabilities * 12_800) < 2.0

    @given(
        st.integers(0, 10_000),
        st.sampled_from([1, 5, 64, 100, 1000]),
        st.floats(0.3, 3.0),
        st.integers(0, 40),
        st.floats(0.05, 1.0),
        st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    )
    def test_every_draw_is_among_those_the_reference_keeps(
        self, seed: int, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float
    ) -> None:
        logits = random_logits(seed, vocab)
        config = GenerationConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        kept = reference.distribution(logits.astype(np.float64), config).kept
        # A whisker wider: at the edge of the nucleus float32 sums may round the other way.
        wider = replace(config, top_p=min(1.0, top_p * (1 + 1e-5)), min_p=min_p * (1 - 1e-5))
        kept |= reference.distribution(logits.astype(np.float64), wider).kept
        for draw in range(8):
            assert kept[sample(logits, config, seed=draw).token_id]

    @pytest.mark.parametrize("config", FILTERS[2:])
    def test_every_kept_token_can_be_drawn(self, config: GenerationConfig) -> None:
        logits = random_logits(3, 80, spread=1.0)
        expected = reference.distribution(logits.astype(np.float64), config)
        likely = expected.probabilities > 0.005
        assert (draw_many(logits, config, 6400)[likely] > 0).all()

    def test_ties_at_the_edge_of_top_k_keep_the_lowest_ids(self) -> None:
        counts = draw_many(np.zeros(300, np.float32), GenerationConfig(top_k=5), 640)
        assert (counts > 0).tolist() == [True] * 5 + [False] * 295

    def test_tiny_top_p_leaves_the_best_token(self) -> None:
        logits = random_logits(5, 1000)
        tokens = {
            sample(logits, GenerationConfig(top_p=1e-9), seed=seed).token_id for seed in range(20)
        }
        assert tokens == {int(logits.argmax())}

    def test_forbidden_tokens_never_come(self) -> None:
        logits = np.full(200, -np.inf, np.float32)
        logits[[13, 170]] = 0.0
        counts = draw_many(logits, GenerationConfig(), 640)
        assert sorted(np.flatnonzero(counts)) == [13, 170]

    @pytest.mark.parametrize("temperature", [1e-4, 1e-3, 1e5])
    def test_extreme_temperatures_stay_finite(self, temperature: float) -> None:
        logits = random_logits(2, 300)
        token = sample(logits, GenerationConfig(temperature=temperature, top_p=0.9))
        assert token.error is None
        if temperature < 1:
            assert token.token_id == int(logits.argmax())


class TestLogprobs:
    @pytest.mark.parametrize("vocab", [3, 64, 100, 5000])
    @pytest.mark.parametrize("k", [0, 1, 5, 20])
    def test_equal_the_log_softmax_of_the_raw_logits(self, vocab: int, k: int) -> None:
        logits = random_logits(vocab + k, vocab)
        config = GenerationConfig(temperature=0.7, top_p=0.9, logprobs=k, logit_bias={1: 4.0})
        entry = sample(logits, config).logprobs
        expected = reference.log_softmax(logits)
        assert entry is not None
        assert entry.logprob == pytest.approx(expected[entry.token_id], abs=2e-5)
        order = np.lexsort((np.arange(vocab), -logits))[:k]
        assert [token for token, _ in entry.top] == order.tolist()
        assert [value for _, value in entry.top] == pytest.approx(expected[order], abs=2e-5)

    def test_rows_may_ask_for_different_numbers(self) -> None:
        logits = np.stack([random_logits(seed, 100) for seed in range(3)])
        configs = [replace(GREEDY, logprobs=k) for k in (None, 4, 0)]
        states = [SamplingState(config, 0, array("i", [0]), 1) for config in configs]
        plain, four, chosen_only = Sampler(3).sample(logits, states)
        assert plain.logprobs is None
        assert four.logprobs is not None
        assert len(four.logprobs.top) == 4
        assert four.logprobs.top[0][0] == four.token_id
        assert chosen_only.logprobs is not None
        assert chosen_only.logprobs.top == ()


class TestRowsAreIndependent:
    def test_a_row_alone_and_in_a_batch_gives_the_same(self) -> None:
        logits = np.stack([random_logits(seed, 777) for seed in range(16)])
        states = [
            SamplingState(
                replace(FILTERS[index % len(FILTERS)], repetition_penalty=1.1 + index / 10),
                seed=index,
                tokens=array("i", range(index + 1)),
                prompt_tokens=1,
            )
            for index in range(16)
        ]
        together = Sampler(16).sample(logits, states)
        alone = [Sampler(1).sample(logits[i : i + 1], [states[i]])[0] for i in range(16)]
        assert together == alone

    def test_a_seed_repeats_and_positions_differ(self) -> None:
        logits = np.zeros(10_000, np.float32)
        first = [sample(logits, GenerationConfig(), seed=s).token_id for s in range(30)]
        again = [sample(logits, GenerationConfig(), seed=s).token_id for s in range(30)]
        later = [
            sample(logits, GenerationConfig(), seed=s, completion=(1,)).token_id for s in range(30)
        ]
        assert first == again
        assert first != later

    def test_logits_are_not_modified(self) -> None:
        logits = random_logits(0, 100)
        before = logits.copy()
        sample(logits, GenerationConfig(repetition_penalty=2.0, logit_bias={3: 5.0}, top_k=3))
        assert (logits == before).all()


class TestBadLogits:
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    @pytest.mark.parametrize("place", [0, 63, 64, 199])
    def test_a_row_that_is_not_finite_fails_alone(self, bad: float, place: int) -> None:
        logits = np.stack([random_logits(seed, 200) for seed in range(3)])
        logits[1, place] = bad
        states = [SamplingState(GREEDY, 0, array("i", [0]), 1) for _ in range(3)]
        first, second, third = Sampler(3).sample(logits, states)
        assert second == SampledToken(-1, error="the model's logits are not finite")
        assert first.token_id == int(logits[0].argmax())
        assert third.token_id == int(logits[2].argmax())

    def test_forbidding_everything_is_an_error(self) -> None:
        bias = dict.fromkeys(range(50), -np.inf)
        token = sample(random_logits(0, 50), GenerationConfig(logit_bias=bias))
        assert token.error == "logit_bias forbids every token"
