"""Random requests, aborts and cache sizes against the model run by hand."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from aotlm.engine.engine import Engine
from aotlm.engine.protocol import EngineLimits
from aotlm.request import FinishReason, GenerationConfig, Request, TokenOutput
from tests.core.numpy_runner import VOCAB, NumpyRunner, greedy_continuation


@dataclass(frozen=True)
class Arrival:
    at: int  # step
    prompt: tuple[int, ...]
    max_tokens: int
    abort_after: int | None  # steps after the arrival


@dataclass(frozen=True)
class Set:
    num_pages: int
    page_size: int
    batch: int
    chunk: int
    busy: int


arrivals = st.lists(
    st.builds(
        Arrival,
        at=st.integers(0, 15),
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24).map(tuple),
        max_tokens=st.integers(0, 20),
        abort_after=st.none() | st.integers(0, 10),
    ),
    min_size=1,
    max_size=8,
)
sets = st.builds(
    Set,
    num_pages=st.integers(6, 24),
    page_size=st.integers(2, 5),
    batch=st.integers(1, 5),
    chunk=st.integers(1, 12),
    busy=st.integers(1, 12),
)


def play(trace: list[Arrival], setting: Set) -> tuple[dict[str, list[TokenOutput]], NumpyRunner]:
    limits = EngineLimits(
        context_window=40, prefill_chunk=setting.chunk, max_batch_size=setting.batch
    )
    runner = NumpyRunner(num_pages=setting.num_pages, page_size=setting.page_size, limits=limits)
    engine = Engine(runner, busy_prefill_tokens=setting.busy)
    outputs: dict[str, list[TokenOutput]] = {}
    step = 0
    while engine.has_work or step <= 15 + 10:
        for index, arrival in enumerate(trace):
            name = str(index)
            if (
                arrival.at == step
                and len(arrival.prompt) <= runner.pages.num_pages * setting.page_size
            ):
                config = GenerationConfig(temperature=0.0, max_tokens=arrival.max_tokens)
                output = engine.add(Request(name, arrival.prompt, config))
                outputs[name] = [] if output is None else [output]
            if arrival.abort_after is not None and arrival.at + arrival.abort_after == step:
                output = engine.abort(name)
                if output is not None:
                    outputs[name].append(output)
        for result in engine.step():
            assert isinstance(result, TokenOutput)
            outputs[result.request_id].append(result)
        engine.check_integrity()
        step += 1
        assert step < 3000, "no end: the scheduler goes in circles"
    return outputs, runner


@given(arrivals, sets)
def test_all_end_with_the_right_tokens_and_no_page_is_left(
    trace: list[Arrival], setting: Set
) -> None:
    outputs, runner = play(trace, setting)
    assert runner.pages.free == runner.pages.num_pages
    assert runner.cached == {}
    capacity = runner.pages.num_pages * setting.page_size
    for name, given_outputs in outputs.items():
        arrival = trace[int(name)]
        reasons = [output.finish_reason for output in given_outputs]
        assert reasons[-1] is not None
        assert not any(reasons[:-1])
        tokens = [token for output in given_outputs for token in output.token_ids]
        assert tokens == greedy_continuation(arrival.prompt, len(tokens))
        assert given_outputs[-1].completion_tokens == len(tokens)
        if reasons[-1] is FinishReason.LENGTH:
            room = min(40, capacity + 1) - len(arrival.prompt)
            assert len(tokens) == min(arrival.max_tokens, room)
        else:
            assert reasons[-1] is FinishReason.ABORT
            assert arrival.abort_after is not None
