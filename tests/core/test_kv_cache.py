"""The wrapper over TVM's cache: our counts equal TVM's after anything, and errors are ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotlm.cache.kv_cache import KVCache
from aotlm.config import EngineConfig
from aotlm.errors import EngineError
from aotlm.runtime.model_runner import open_runner


@pytest.fixture(scope="module")
def shared(compile_tiny: Callable[..., Path]) -> KVCache:
    """16 pages and the one TVM adds; 4 sequences and 32 tokens in a batch."""
    config = EngineConfig(artifact=compile_tiny("q0f32"), cache_tokens=256, max_batch_size=4)
    return open_runner(config)._cache


@pytest.fixture
def cache(shared: KVCache) -> KVCache:
    shared.clear()
    shared.check_integrity()
    assert shared.pages.free == shared.pages.num_pages == 17
    return shared


def grow(cache: KVCache, seq_id: int, tokens: int) -> None:
    """Append tokens without running the model: only the counts matter here."""
    while tokens > 0:
        with cache.forward([seq_id], [min(tokens, 32)]):
            pass
        tokens -= 32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.add(1), "there is a sequence 1 already"),
        (lambda c: c.remove(7), "there is no sequence 7"),
        (lambda c: c.fork(1, 2, 41), "cannot fork sequence 1 at 41"),
        (lambda c: c.popn(1, 41), "cannot drop 41 tokens"),
        (lambda c: grow(c, 7, 1), "there is no sequence 7"),
        (lambda c: c.forward([1], [33]).__enter__(), "a batch of 33 tokens, at most 32 fit"),
        (lambda c: c.forward([1], [0]).__enter__(), "must bring a token"),
        (lambda c: c.forward([1, 1], [1, 1]).__enter__(), "occurs twice"),
        (lambda c: c.forward([], []).__enter__(), "a batch of 0 sequences, 1 to 4 fit"),
        (lambda c: c.forward([1] * 5, [1] * 5).__enter__(), "a batch of 5 sequences"),
    ],
)
def test_mistakes_are_named_before_tvm_sees_them(
    cache: KVCache, call: Callable[[KVCache], None], message: str
) -> None:
    cache.add(1)
    grow(cache, 1, 40)
    with pytest.raises(EngineError, match=message):
        call(cache)
    cache.check_integrity()
    grow(cache, 1, 5)
    assert cache.pages.length(1) == 45


def test_a_full_cache_is_named_and_goes_on(cache: KVCache) -> None:
    cache.add(1)
    grow(cache, 1, 17 * 16)
    cache.add(2)
    with pytest.raises(EngineError, match="1 pages needed for this batch, 0 are free"):
        grow(cache, 2, 1)
    cache.check_integrity()
    cache.popn(1, 16)
    grow(cache, 2, 16)
    cache.check_integrity()


def test_a_body_that_raises_leaves_the_cache_as_it_was(cache: KVCache) -> None:
    cache.add(1)
    cache.add(2)
    grow(cache, 1, 20)
    with pytest.raises(ZeroDivisionError), cache.forward([1, 2], [15, 3]):
        raise ZeroDivisionError
    assert (cache.pages.length(1), cache.pages.length(2), cache.pages.free) == (20, 0, 15)
    cache.check_integrity()


operations = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 100)), max_size=40
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=operations)
def test_counts_equal_tvms_after_any_trace(
    cache: KVCache, trace: list[tuple[int, int, int]]
) -> None:
    cache.clear()
    for kind, seq_id, number in trace:
        before = (cache.pages.free, cache.pages.sequences)
        try:
            if kind == 0:
                cache.add(seq_id)
            elif kind in (1, 2):
                with cache.forward([seq_id], [number % 32 + 1]):
                    pass
            elif kind == 3:
                cache.fork(number % 5, seq_id, number // 2)
            elif kind == 4:
                cache.popn(seq_id, number // 3)
            else:
                cache.remove(seq_id)
        except EngineError:
            assert before == (cache.pages.free, cache.pages.sequences)
        cache.check_integrity()
    for seq_id in cache.pages.sequences:
        cache.remove(seq_id)
    cache.check_integrity()
    assert cache.pages.free == 17
