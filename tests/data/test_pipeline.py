import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taorl_jax.data.mixture import Mixture, parse_mixture
from taorl_jax.data.pipeline import heldout_prompts, prompt_stream
from taorl_jax.data.problem import Problem
from taorl_jax.errors import UserError


class Bytes:
    """One token a byte."""

    def prompt_ids(self, text):
        return list(text.encode())


def problems(*lengths):
    return [Problem(str(i), "x" * length, "1", "") for i, length in enumerate(lengths)]


def stream(source, seed=0, limit=10):
    return prompt_stream(source, Bytes(), seed=seed, max_prompt_tokens=limit)


def take(prompts, count):
    return list(itertools.islice(prompts, count))


@given(st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_every_epoch_draws_each_problem_once(size, seed):
    prompts = take(stream(problems(*[3] * size), seed), 3 * size)
    assert [p.draw for p in prompts] == list(range(3 * size))
    for epoch in range(3):
        drawn = [p.problem.id for p in prompts[epoch * size : (epoch + 1) * size]]
        assert sorted(drawn) == [str(i) for i in range(size)]


def test_epochs_and_seeds_have_orders_of_their_own():
    source = problems(*[3] * 20)
    order = [p.problem.id for p in take(stream(source, seed=1), 40)]
    assert order == [p.problem.id for p in take(stream(source, seed=1), 40)]
    other = [p.problem.id for p in take(stream(source, seed=2), 20)]
    orders = (order[:20], order[20:], other, [str(i) for i in range(20)])
    assert len(set(map(tuple, orders))) == 4


@pytest.mark.parametrize("consumed", [0, 1, 4, 5, 6, 7, 14])  # 5 prompts an epoch: its edges among them
def test_a_restored_stream_continues_with_the_next_prompt(consumed):
    source = problems(3, 3, 30, 3, 3, 40, 3)
    whole = stream(source)
    expected = take(whole, 30)
    first = stream(source)
    take(first, consumed)
    resumed = stream(source)
    resumed.restore(json.loads(json.dumps(first.state())))
    assert take(resumed, 30 - consumed) == expected[consumed:]
    assert resumed.state() == whole.state()


def test_nothing_is_tokenised_again_or_ahead():
    seen = []

    class Recording(Bytes):
        def prompt_ids(self, text):
            seen.append(text)
            return super().prompt_ids(text)

    source = problems(1, 2, 3, 4, 5)
    first = stream(source)
    take(first, 7)
    resumed = prompt_stream(source, Recording(), seed=0, max_prompt_tokens=10)
    resumed.restore(first.state())
    drawn = take(resumed, 2)
    assert seen == [p.problem.text for p in drawn]


def test_overlong_prompts_are_dropped_and_counted():
    prompts = stream(problems(10, 11, 3))  # 10 tokens fit, 11 do not
    drawn = take(prompts, 4)
    assert {p.problem.id for p in drawn} == {"0", "2"}
    assert all(p.ids == [ord("x")] * len(p.problem.text) for p in drawn)
    # draws skip the numbers of what was dropped, so that they stay unique
    assert prompts.overlong == drawn[-1].draw + 1 - 4
    take(prompts, 20)
    assert prompts.state()["overlong"] == prompts.overlong >= 11


def test_only_overlong_prompts_are_refused():
    with pytest.raises(ValueError, match=r"rollout\.prompt_tokens=10: the prompts of all 2 problems"):
        next(stream(problems(11, 12)))
    with pytest.raises(ValueError, match=r"rollout\.prompt_tokens=10"):
        heldout_prompts(problems(11, 12), Bytes(), 10)


def test_one_short_problem_is_enough():
    assert [p.problem.id for p in take(stream(problems(11, 12, 13, 4, 14)), 3)] == ["3"] * 3


def test_a_state_of_another_source_is_refused():
    with pytest.raises(ValueError, match=r"from 3 problems, `data\.train` now has 2"):
        stream(problems(1, 2)).restore(stream(problems(1, 2, 3)).state())


def test_heldout_keeps_the_order_and_hands_back_what_does_not_fit():
    source = problems(3, 11, 5)
    prompts, overlong = heldout_prompts(source, Bytes(), 10)
    assert [(p.draw, p.problem) for p in prompts] == [(0, source[0]), (2, source[2])]
    assert overlong == [source[1]]


def test_a_mixture_draws_each_source_by_its_weight_and_seeks_without_replaying():
    few = [Problem(f"few-{i}", f"few {i}", "1", "") for i in range(5)]
    many = [Problem(f"many-{i}", f"many {i}", "1", "") for i in range(50)]
    mixture = Mixture((few, many), (3.0, 1.0))
    assert len(mixture) == 55 and mixture[0] is few[0] and mixture[54] is many[49]

    class Counting:
        calls = 0

        def prompt_ids(self, text):
            Counting.calls += 1
            return [len(text)]

    stream = prompt_stream(mixture, Counting(), seed=0, max_prompt_tokens=100)
    drawn = [next(stream) for _ in range(200)]
    assert [prompt.draw for prompt in drawn] == list(range(200))
    assert sum(prompt.problem.id.startswith("few") for prompt in drawn) == 150
    epoch = [prompt.problem.id for prompt in drawn if prompt.problem.id.startswith("few")][:5]
    assert sorted(epoch) == [f"few-{i}" for i in range(5)]  # every problem once an epoch
    state = json.loads(json.dumps(stream.state()))
    expected = [next(stream).problem.id for _ in range(20)]
    again = prompt_stream(mixture, Counting(), seed=0, max_prompt_tokens=100)
    Counting.calls = 0
    again.restore(state)
    assert [next(again).problem.id for _ in range(20)] == expected
    assert Counting.calls == 20


@pytest.mark.parametrize(
    "text", ["", "a.jsonl:0", "a.jsonl:x", "a.jsonl,", ":2", "a.jsonl:-1", "a.jsonl:inf"]
)
def test_a_mixture_that_makes_no_sense_names_the_setting(text):
    with pytest.raises(UserError, match=r"data\.train"):
        parse_mixture(text, "data.train")


def test_a_mixture_s_weights_default_to_one():
    assert parse_mixture("a.jsonl:3, tasks", "data.train") == [("a.jsonl", 3.0), ("tasks", 1.0)]
