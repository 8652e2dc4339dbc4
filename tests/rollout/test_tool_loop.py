"""The scheduler's rules, with a scripted policy in place of the device and a scripted tool.

The script says what the policy writes in each segment; the stop table that the device uses decides where the
segment ends, so what is written after that point must never appear.
"""

import concurrent.futures
import types

import numpy as np
import pytest
import worlds

from taorl_jax.config import base_config
from taorl_jax.data.pipeline import Prompt
from taorl_jax.data.problem import Problem
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.rollout.decode_state import Report, Stop
from taorl_jax.rollout.scheduler import TRAINING, Draw, Scheduler
from taorl_jax.rollout.stopping import build_stop_table
from taorl_jax.rollout.trajectory import Author, EndReason
from taorl_jax.tool_use.result import SandboxDown, SandboxFailure, SandboxResult

END = "<|im_end|>"
OK = SandboxResult("ok", "7\n", "", None, 1.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(worlds.make_policy(tmp_path_factory.mktemp("policy")))


class ScriptedEngine:
    """Emits scripted ids with log-prob -0.5 and entropy 0.25, in chunks, as the device would."""

    slots, chunk, prefill_rows = 4, 5, 2

    def __init__(self, tokenizer, script):
        self.table = build_stop_table(tokenizer.token_bytes, tokenizer.size)
        self.stop_ids = set(tokenizer.stop_ids)
        self.script = script  # (prompt, sample) -> list of segments, each a list of ids
        self.running, self.active, self.appended = {}, set(), []

    def prefill(self, params, prompts):
        assert len(prompts) <= self.prefill_rows
        return [list(ids) for ids in prompts]

    def fork(self, pool, starts):
        for slot, row, ids, (_, _, _, prompt, sample), budget in starts:
            assert pool[row] == ids, "the pool row holds another prompt"
            assert slot not in self.active, "the slot is taken"
            self.active.add(slot)
            self.running[slot] = [iter(self.script[prompt, sample]), [], self.table.start, budget]
            self._next_segment(slot, budget)

    def _next_segment(self, slot, budget):
        episode = self.running[slot]
        episode[1:] = [list(next(episode[0])), self.table.start, budget]

    def extend(self, params, continuations):
        for slot, last, ids, budget in continuations:
            self.appended.append((last, list(ids)))
            self.active.add(slot)
            self._next_segment(slot, budget)

    def decode(self, params, temperature, truncated=False):
        shape = (self.slots, self.chunk)
        report = Report(
            np.zeros(shape, np.int32),
            np.full(shape, -0.5, np.float32),
            np.full(shape, 0.25, np.float32),
            np.zeros(self.slots, np.int32),
            np.zeros(self.slots, np.int32),
            np.zeros(self.slots, np.int32),
        )
        for slot, (_, ids, state, budget) in self.running.items():
            while ids and report.counts_S[slot] < self.chunk:
                token = ids.pop(0)
                report.tokens_SxC[slot, report.counts_S[slot]] = token
                report.counts_S[slot] += 1
                budget -= 1
                stop = Stop.BUDGET if budget == 0 else Stop.RUNNING
                stop = Stop.CODE if self.table.hit[state, token] else stop
                stop = Stop.END if token in self.stop_ids else stop
                state = self.table.next_state[state, token]
                if stop is not Stop.RUNNING:
                    report.stops_S[slot] = stop
                    ids.clear()
                    self.active.discard(slot)
            self.running[slot][2:] = [state, budget]
        return report

    def fetch(self, report):
        return report

    def release(self, slots=None):
        if slots is None:
            self.active.clear()


class ScriptedTool:
    """Answers from a list; exceptions in it are raised by the future, and None is never answered."""

    def __init__(self, answers):
        self.answers, self.codes, self.stuck = list(answers), [], []

    def submit(self, code):
        self.codes.append(code)
        future = concurrent.futures.Future()
        answer = self.answers.pop(0)
        if answer is None:
            future.set_running_or_notify_cancel()  # from now on it cannot be cancelled
            self.stuck.append(future)
        elif isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


LIMITS = {
    "rollout.turn_tokens": 60,
    "rollout.prompt_tokens": 40,
    "rollout.context_tokens": 160,
    "rollout.max_turns": 3,
    "rollout.observation_tokens": 64,
    "rollout.rerolls": 1,
}


def make_config(**limits):
    """The base config under LIMITS and `limits`, which are dotted names with __ for the dot."""
    config = base_config()
    config.update_from_flattened_dict(LIMITS | {k.replace("__", "."): v for k, v in limits.items()})
    return config


def run(tokenizer, segments, answers=(), **limits):
    """One episode; returns (trajectory, engine, tool, stats)."""
    ids = lambda text: [
        i for part in text.split(END) for i in [*tokenizer.encode(part), tokenizer.stop_ids[-1]]
    ][:-1]
    engine = ScriptedEngine(tokenizer, {(0, 0): [ids(s) for s in segments]})
    tool = ScriptedTool(answers)
    scheduler = Scheduler(engine, tokenizer, tool, make_config(**limits))
    prompt = Prompt(0, Problem("p", "q", "7", ""), tokenizer.prompt_ids("What is 7?"))
    (trajectory,), stats = scheduler.run(None, [prompt], 1, Draw(0, TRAINING, 0), temperature=1.0)
    return trajectory, engine, tool, stats


CODE = "Let me see.\n```python\nprint(7)\n```"


def written(trajectory, tokenizer, author):
    return tokenizer.decode(trajectory.tokens[trajectory.authors == author].tolist())


def test_code_then_answer(tokenizer):
    t, engine, tool, _ = run(tokenizer, [CODE + "ignored", "It is \\boxed{7}." + END], [OK])
    assert (t.end, t.answer, t.turns, t.void) == (EndReason.ANSWERED, "7", 2, False)
    assert tool.codes == ["print(7)"]
    assert written(t, tokenizer, Author.POLICY) == CODE + "It is \\boxed{7}." + END
    observation = "\nCode execution result: 7\n"
    assert written(t, tokenizer, Author.TOOL) == observation
    assert engine.appended == [(tokenizer.encode(CODE)[-1], tokenizer.encode(observation))]
    (call,) = t.calls
    assert tokenizer.decode(t.tokens[slice(*call.span)].tolist()) == CODE
    assert t.tokens[-1] in tokenizer.stop_ids, "the sampled end token stays"
    assert t.loss_mask[-1]
    assert set(t.logprobs[t.loss_mask]) == {np.float32(-0.5)}


def test_an_end_token_without_code_or_answer_is_void(tokenizer):
    t, *_ = run(tokenizer, ["No idea." + END])
    assert (t.end, t.void, t.answer) == (EndReason.VOID, True, None)


def test_an_answer_inside_unfinished_code_is_none(tokenizer):
    t, *_ = run(tokenizer, ["```python\nprint('\\boxed{7}')" + END])
    assert (t.end, t.void, t.answer) == (EndReason.VOID, True, None)


def test_a_box_before_the_code_answers_after_it_ran(tokenizer):
    t, *_ = run(tokenizer, ["\\boxed{7}\n```\nprint(7)\n```"], [OK])
    assert (t.end, t.answer, len(t.calls)) == (EndReason.ANSWERED, "7", 1)
    assert t.authors[-1] == Author.TOOL, "the last observation is part of the record"


def test_a_box_that_only_the_tool_printed_is_no_answer(tokenizer):
    printed = SandboxResult("ok", "\\boxed{8}\n", "", None, 1.0)
    t, *_ = run(tokenizer, [CODE, "See above." + END], [printed])
    assert (t.end, t.void, t.answer) == (EndReason.VOID, True, None)


def test_final_answer_answers(tokenizer):
    called = SandboxResult("ok", "\\boxed{7}\n", "", "7", 1.0)
    t, *_ = run(tokenizer, [CODE], [called])
    assert (t.end, t.answer) == (EndReason.ANSWERED, "7")


def test_the_turn_limit_ends_with_the_last_observation(tokenizer):
    t, *_ = run(tokenizer, [CODE, CODE, CODE], [OK] * 3)
    assert (t.end, t.turns, len(t.calls), t.void) == (EndReason.TURN_LIMIT, 3, 3, False)
    assert t.authors[-1] == Author.TOOL


def test_the_turn_budget_is_exact(tokenizer):
    t, *_ = run(tokenizer, ["x" * 200], rollout__turn_tokens=17)
    assert (t.end, t.loss_mask.sum(), t.void, t.overlong) == (EndReason.LENGTH, 17, True, True)


def test_the_context_budget_is_exact(tokenizer):
    t, *_ = run(tokenizer, [CODE, "x" * 200], [OK], rollout__context_tokens=70)
    assert t.end is EndReason.LENGTH
    assert len(t) == 70


def test_the_episode_budget_is_exact_over_turns(tokenizer):
    code = len(tokenizer.encode(CODE))
    t, *_ = run(tokenizer, [CODE, "x" * 200], [OK], rollout__episode_tokens=code + 7)
    assert (t.end, t.loss_mask.sum(), t.turns) == (EndReason.LENGTH, code + 7, 2)
    t, *_ = run(tokenizer, [CODE], [OK], rollout__episode_tokens=code)
    assert (t.end, t.loss_mask.sum(), len(t.calls)) == (EndReason.LENGTH, code, 1)
    assert not t.void


def test_a_segment_cut_inside_a_code_block_runs_nothing(tokenizer):
    cut = len(tokenizer.encode(CODE)) - 1  # the closing fence is one token
    t, _, tool, _ = run(tokenizer, [CODE], rollout__turn_tokens=cut)
    assert (t.end, t.void, tool.codes, t.loss_mask.sum()) == (EndReason.LENGTH, True, [], cut)


def test_code_may_follow_an_observation_at_once(tokenizer):
    block = "```\nprint(8)\n```"
    t, _, tool, _ = run(tokenizer, [CODE, block, "\\boxed{7}" + END], [OK, OK])
    assert (t.end, tool.codes) == (EndReason.ANSWERED, ["print(7)", "print(8)"])
    assert tokenizer.decode(t.tokens[slice(*t.calls[1].span)].tolist()) == block


def test_a_cut_observation_ends_in_a_newline(tokenizer):
    flood = SandboxResult("ok", "7 " * 100, "", None, 1.0)
    t, *_ = run(tokenizer, [CODE, "\\boxed{7}" + END], [flood], rollout__observation_tokens=12)
    shown = t.tokens[t.authors == Author.TOOL].tolist()
    assert len(shown) == 12
    assert tokenizer.decode(shown).endswith("7 7\n")


def test_what_a_call_counts_as_follows_the_configured_rule(tokenizer):
    warned = SandboxResult("ok", "7\n", "Warning: old\n", None, 1.0)
    for rule, shown, valid in (("sane", "7", True), ("released", "Warning: old", False)):
        t, *_ = run(tokenizer, [CODE, "\\boxed{7}" + END], [warned], rollout__valid_call=rule)
        assert written(t, tokenizer, Author.TOOL) == f"\nCode execution result: {shown}\n"
        assert t.calls[0].valid is valid
        assert t.post_tool_mask.any() == valid
        assert t.all_calls_failed is not valid


def test_code_whose_fence_closes_on_the_last_token_still_runs(tokenizer):
    t, _, tool, _ = run(
        tokenizer, [CODE, "\\boxed{7}" + END], [OK], rollout__turn_tokens=len(tokenizer.encode(CODE))
    )
    assert (t.end, tool.codes) == (EndReason.ANSWERED, ["print(7)"])


def test_an_observation_that_does_not_fit_ends_the_episode(tokenizer):
    prompt = len(tokenizer.prompt_ids("What is 7?"))
    exact = prompt + len(tokenizer.encode(CODE)) + len(tokenizer.encode("\nCode execution result: 7\n"))
    t, *_ = run(tokenizer, [CODE], [OK], rollout__context_tokens=exact)
    assert (t.end, t.calls[0].observation) == (EndReason.LENGTH, "")
    assert t.authors[-1] == Author.POLICY
    t, *_ = run(tokenizer, [CODE, "x" * 99], [OK], rollout__context_tokens=exact + 1)
    assert (t.end, len(t)) == (EndReason.LENGTH, exact + 1)


def test_a_failed_call_shows_its_last_line_and_is_not_valid(tokenizer):
    failed = SandboxResult("exception", "half\n", "Traceback\nNameError: x\n", None, 1.0)
    t, *_ = run(tokenizer, [CODE, "\\boxed{7}" + END], [failed])
    assert written(t, tokenizer, Author.TOOL) == "\nCode execution result: half\nNameError: x\n"
    assert t.all_calls_failed
    assert not t.post_tool_mask.any()


def test_a_sandbox_fault_starts_the_episode_again_without_a_trace(tokenizer):
    t, _, _, stats = run(tokenizer, [CODE, "\\boxed{7}" + END], [SandboxFailure("lost"), OK])
    again, *_ = run(tokenizer, [CODE, "\\boxed{7}" + END], [OK])
    assert t.tokens.tolist() == again.tokens.tolist()
    assert (t.end, len(t.calls), stats.rerolled, stats.dropped) == (EndReason.ANSWERED, 1, 1, 0)


def test_after_its_rerolls_an_episode_is_dropped_unscored(tokenizer):
    t, _, _, stats = run(tokenizer, [CODE], [SandboxFailure("lost")] * 2)
    assert (t.end, t.calls, stats.rerolled, stats.dropped) == (EndReason.SANDBOX_FAILURE, [], 1, 1)


def test_a_stuck_call_is_given_up_and_its_late_answer_ignored(tokenizer):
    """The first call is never answered in time; the second's answer comes after that of the first."""
    limit_s = 0.2

    class Late(ScriptedTool):
        def submit(self, code):
            future = super().submit(code)
            if self.stuck and future not in self.stuck:
                self.stuck.pop().set_result(SandboxResult("ok", "8\n", "", "8", 1.0))
            return future

    segments = [tokenizer.encode(CODE), [*tokenizer.encode("\\boxed{7}"), tokenizer.stop_ids[-1]]]
    engine, tool = ScriptedEngine(tokenizer, {(0, 0): segments}), Late([None, OK])
    scheduler = Scheduler(engine, tokenizer, tool, make_config(sandbox__call_limit_s=limit_s))
    prompt = Prompt(0, Problem("p", "q", "7", ""), tokenizer.prompt_ids("What is 7?"))
    (t,), stats = scheduler.run(None, [prompt], 1, Draw(0, TRAINING, 0), temperature=1.0)
    assert (t.end, t.answer, len(t.calls)) == (EndReason.ANSWERED, "7", 1)
    assert (stats.lost_calls, stats.late_answers, stats.rerolled, stats.dropped) == (1, 1, 1, 0)


def test_calls_that_stay_stuck_drop_the_episode_unscored(tokenizer):
    t, _, _, stats = run(tokenizer, [CODE], [None, None], sandbox__call_limit_s=0.05)
    assert (t.end, t.calls, stats.lost_calls, stats.dropped) == (EndReason.SANDBOX_FAILURE, [], 2, 1)


def test_an_interrupt_leaves_no_call_and_no_slot(tokenizer):
    """Raised by the progress callback, as a stop request is, while the only episode waits for its tool."""
    future = concurrent.futures.Future()
    tool = types.SimpleNamespace(submit=lambda code: future)
    engine = ScriptedEngine(tokenizer, {(0, 0): [tokenizer.encode(CODE)]})
    scheduler = Scheduler(engine, tokenizer, tool, make_config())
    prompt = Prompt(0, Problem("p", "q", "7", ""), tokenizer.prompt_ids("What is 7?"))
    looks = iter(range(8))

    def progress(done, total):
        if next(looks) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scheduler.run(None, [prompt], 1, Draw(0, TRAINING, 0), temperature=1.0, progress=progress)
    assert future.cancelled()
    assert not engine.active


def test_other_slots_decode_while_a_tool_runs_and_its_slot_is_refilled(tokenizer):
    """The first episode's call is answered only when all others have ended, in the one slot left."""
    end = tokenizer.stop_ids[-1]
    script = {(0, 0): [tokenizer.encode(CODE), [*tokenizer.encode("\\boxed{0}"), end]]}
    script |= {(draw, 0): [[*tokenizer.encode(f"\\boxed{{{draw}}}"), end]] for draw in range(1, 6)}
    tool = ScriptedTool([None])
    ended = []

    def on_finished(trajectory):
        ended.append(trajectory.prompt_id)
        if len(ended) == 5:
            tool.stuck[0].set_result(OK)

    engine = ScriptedEngine(tokenizer, script)
    engine.slots = 2
    scheduler = Scheduler(engine, tokenizer, tool, make_config())
    prompts = [
        Prompt(draw, Problem("p", "q", "7", ""), tokenizer.prompt_ids("What is 7?")) for draw in range(6)
    ]
    trajectories, _ = scheduler.run(
        None, prompts, 1, Draw(0, TRAINING, 0), temperature=1.0, on_finished=on_finished
    )
    assert ended == [1, 2, 3, 4, 5, 0]
    assert [t.answer for t in trajectories] == list("012345")


def test_an_outage_ends_the_rollout_and_leaves_nothing_running(tokenizer):
    engine = ScriptedEngine(tokenizer, {(0, 0): [tokenizer.encode(CODE)]})
    scheduler = Scheduler(engine, tokenizer, ScriptedTool([SandboxDown("none answers")]), make_config())
    prompt = Prompt(0, Problem("p", "q", "7", ""), tokenizer.prompt_ids("What is 7?"))
    with pytest.raises(SandboxDown):
        scheduler.run(None, [prompt], 1, Draw(0, TRAINING, 0), temperature=1.0)
    assert not engine.active


def test_more_episodes_than_slots_come_back_in_order(tokenizer):
    """Five prompts of three samples through four slots and a pool of two rows."""
    prompts = [
        Prompt(draw, Problem(str(draw), "q", "7", ""), tokenizer.prompt_ids(f"What is {draw}?"))
        for draw in (30, 10, 20, 50, 40)
    ]
    script = {
        (p.draw, sample): [[*tokenizer.encode(f"\\boxed{{{p.draw + sample}}}"), tokenizer.stop_ids[-1]]]
        for p in prompts
        for sample in range(3)
    }
    scheduler = Scheduler(ScriptedEngine(tokenizer, script), tokenizer, ScriptedTool([]), make_config())
    trajectories, _ = scheduler.run(None, prompts, 3, Draw(0, TRAINING, 0), temperature=1.0)
    assert [t.answer for t in trajectories] == [str(p.draw + s) for p in prompts for s in range(3)]
