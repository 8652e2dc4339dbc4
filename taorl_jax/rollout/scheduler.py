"""The tool loop on the host: keeps slots decoding while snippets run, and builds the trajectories.

While a chunk decodes, the stops of the previous one are handled: code goes to the sandbox, answers that
came back are appended, finished episodes leave their slot to the next one. No slot waits for another's tool.
"""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Container, Sequence

from ml_collections import ConfigDict

from taorl_jax.data.pipeline import Prompt
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.rewards.extraction import last_boxed, paper_answer
from taorl_jax.rollout.engine import Engine, Stop
from taorl_jax.rollout.pending_calls import PendingCalls, Tool
from taorl_jax.rollout.trajectory import EndReason, ToolCall, Trajectory
from taorl_jax.tool_use.code_block import CodeBlock, find_code, prose
from taorl_jax.tool_use.observation import format_observation, is_valid_call, observation_ids
from taorl_jax.tool_use.result import SandboxFailure, SandboxResult

# Seconds between two looks at a signal while there is nothing but answers to wait for.
_WAIT_S = 0.5


@dataclasses.dataclass(frozen=True)
class Draw:
    """What the random numbers of a rollout are derived from, beside prompt, sample and position."""

    seed: int
    stream: int  # TRAINING or EVALUATION, so that the two never share numbers
    step: int


TRAINING, EVALUATION = 0, 1


@dataclasses.dataclass
class RolloutStats:
    """Counts and clock of one rollout."""

    rerolled: int = 0  # episodes started again after a fault of the sandbox
    dropped: int = 0  # episodes given up after it
    lost_calls: int = 0  # snippets without an answer within `sandbox.call_limit_s`
    late_answers: int = 0  # answers that came after that, and were ignored
    decode_slots: int = 0  # slots * steps that ran
    decode_tokens: int = 0  # of those, tokens sampled
    seconds: float = 0.0
    waiting_s: float = 0.0  # of those, nothing to decode: all episodes waited for their tools
    slowest_s: float = 0.0  # of those, only the last 5 % of the episodes ran


def over_hosts(stats: Sequence[RolloutStats]) -> RolloutStats:
    """Counts of all hosts that sampled side by side; the clock is that of the slowest."""
    slowest = max(stats, key=lambda s: s.seconds)
    counts = [field.name for field in dataclasses.fields(RolloutStats) if field.type is int]
    return dataclasses.replace(slowest, **{name: sum(getattr(s, name) for s in stats) for name in counts})


@dataclasses.dataclass
class _Episode:
    trajectory: Trajectory
    prompt: Prompt
    segment_start: int = 0
    failures: int = 0
    block: CodeBlock | None = None  # the snippet whose answer it waits for


class Scheduler:
    """Runs episodes through one engine and one tool."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, tool: Tool, config: ConfigDict):
        """Reads `rollout`, `reward.extraction` and `sandbox.call_limit_s` of the config."""
        self._engine, self._tokenizer, self._tool, self._config = engine, tokenizer, tool, config

    def run(
        self,
        params,
        prompts: Sequence[Prompt],
        samples: int,
        draw: Draw,
        *,
        temperature: float,
        progress: Callable[[int, int], None] = lambda done, total: None,
        done: Container[tuple[int, int]] = (),
        on_finished: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> tuple[list[Trajectory], RolloutStats]:
        """Samples `samples` episodes of every prompt.

        Args:
          params: the policy in its rollout placement (`unstack_layers`).
          prompts: distinct draws, in any order; the result has the same, samples of a prompt side by side.
          samples: episodes of each prompt.
          draw: with prompt, sample and position it decides every random number.
          temperature: T; 0 is greedy.
          progress: called now and then with (finished, wanted); what it raises ends the rollout.
          done: (draw, sample) pairs that are not wanted; the others come out as they would without it.
          on_finished: called with each episode as it ends, in the order in which they happen to end.

        Raises:
          SandboxDown: no sandbox answered for as long as its client's patience.
        """
        run = _Run(
            self._engine, self._tokenizer, self._tool, self._config, params, draw, temperature, on_finished
        )
        started = time.monotonic()
        try:
            finished = run.finish_all(prompts, samples, done, progress)
        finally:
            run.cancel()
        run.finish_stats(started)
        return finished, run.stats


class _Run:
    """The state of one `Scheduler.run`."""

    def __init__(self, engine, tokenizer, tool, config, params, draw, temperature, on_finished):
        self.engine, self.tokenizer, self.limits = engine, tokenizer, config.rollout
        self.extraction, self.on_finished = config.reward.extraction, on_finished
        self.params, self.draw, self.temperature = params, draw, temperature
        self.calls = PendingCalls(tool, config.sandbox.call_limit_s)
        self.stats = RolloutStats()
        self.finish_times: list[float] = []
        self.queue: collections.deque[_Episode] = collections.deque()
        self.in_slot: dict[int, _Episode] = {}
        self.free = list(range(engine.slots))[::-1]
        self.decoding: set[int] = set()
        self.finished: list[_Episode] = []
        self.pool, self.pool_row = None, {}

    def finish_all(self, prompts, samples, done, progress) -> list[Trajectory]:
        order = {}
        for prompt in prompts:
            for sample in range(samples):
                if (prompt.draw, sample) in done:
                    continue
                order[prompt.draw, sample] = len(order)
                self.queue.append(self._new_episode(prompt, sample))
        report = None
        while len(self.finished) < len(order):
            progress(len(self.finished), len(order))
            self._admit()
            self._resume_answered(wait=report is None and not self.decoding)
            chunk = self._decode() if self.decoding else None
            if report is not None:
                self._handle(report)
            report = chunk
        progress(len(self.finished), len(order))
        ended = [episode.trajectory for episode in self.finished]
        return sorted(ended, key=lambda t: order[t.prompt_id, t.sample])

    def _decode(self):
        return self.engine.decode(self.params, self.temperature, self.draw.stream == EVALUATION)

    def cancel(self):
        """Leaves no snippet and no slot running, however the run ended."""
        self.calls.cancel()
        self.engine.release()

    def finish_stats(self, started: float):
        """Fills in what is known at the end only."""
        times, stats = self.finish_times, self.stats
        stats.seconds = time.monotonic() - started
        stats.lost_calls, stats.late_answers = self.calls.lost, self.calls.late
        if times:
            stats.slowest_s = times[-1] - times[math.ceil(0.95 * len(times)) - 1]

    def _new_episode(self, prompt, sample, failures=0) -> _Episode:
        trajectory = Trajectory(prompt.draw, sample, prompt.ids)
        return _Episode(trajectory, prompt, segment_start=len(trajectory), failures=failures)

    def _segment_budget(self, trajectory) -> int:
        limits = self.limits
        budget = min(limits.turn_tokens, limits.context_tokens - len(trajectory))
        if limits.episode_tokens:
            budget = min(budget, limits.episode_tokens - int(trajectory.loss_mask.sum()))
        return budget

    def _admit(self):
        """Moves episodes from the queue into free slots, prefilling prompts as needed."""
        starts = []
        while self.queue and self.free:
            episode = self.queue[0]
            if episode.prompt.draw not in self.pool_row:
                self._fork(starts)
                starts = []
                self._prefill()
            self.queue.popleft()
            slot = self.free.pop()
            self.in_slot[slot] = episode
            trajectory, draw = episode.trajectory, self.draw
            request = (draw.seed, draw.stream, draw.step, trajectory.prompt_id, trajectory.sample)
            row, budget = self.pool_row[episode.prompt.draw], self._segment_budget(trajectory)
            starts.append((slot, row, episode.prompt.ids, request, budget))
        self._fork(starts)

    def _prefill(self):
        """Refills the pool with the next distinct prompts of the queue."""
        prompts = {}
        for episode in self.queue:
            prompts.setdefault(episode.prompt.draw, episode.prompt.ids)
            if len(prompts) == self.engine.prefill_rows:
                break
        self.pool = self.engine.prefill(self.params, list(prompts.values()))
        self.pool_row = {draw: row for row, draw in enumerate(prompts)}

    def _fork(self, starts):
        if starts:
            self.engine.fork(self.pool, starts)
            self.decoding.update(slot for slot, *_ in starts)

    def _handle(self, report):
        """Takes over the tokens of a finished chunk and acts on the stops."""
        report = self.engine.fetch(report)
        self.stats.decode_slots += len(report.counts_S) * int(report.counts_S.max(initial=0))
        self.stats.decode_tokens += int(report.counts_S.sum())
        for slot in report.counts_S.nonzero()[0].tolist():
            count, episode = report.counts_S[slot], self.in_slot[slot]
            episode.trajectory.append_policy(
                report.tokens_SxC[slot, :count],
                report.logprobs_SxC[slot, :count],
                report.entropies_SxC[slot, :count],
            )
            stop = Stop(report.stops_S[slot])
            if stop is not Stop.RUNNING:
                self.decoding.discard(slot)
                self._end_segment(slot, episode, stop)

    def _end_segment(self, slot, episode, stop):
        trajectory = episode.trajectory
        segment = [
            self.tokenizer.token_bytes[token] if token < self.tokenizer.size else b""
            for token in trajectory.tokens[episode.segment_start :].tolist()
        ]
        if stop is Stop.CODE:
            episode.block = find_code(segment)
            self.calls.submit(slot, episode.block.code)
            return
        answer = last_boxed(prose(segment))
        trajectory.answer = answer or trajectory.answer
        trajectory.void |= answer is None
        trajectory.turns += 1
        if stop is Stop.BUDGET:
            self._finish(slot, EndReason.LENGTH)
        else:
            self._finish(slot, EndReason.VOID if answer is None else EndReason.ANSWERED)

    def _resume_answered(self, wait: bool):
        """Appends the observations that have arrived; with `wait`, waits for one if none has."""
        wait &= len(self.calls) > 0
        started = time.monotonic()
        outcomes = self.calls.take(_WAIT_S if wait else 0.0)
        self.stats.waiting_s += (time.monotonic() - started) * wait
        continuations = []
        for slot, outcome in outcomes:
            if isinstance(outcome, SandboxFailure):
                self._reroll_or_drop(slot, self.in_slot[slot])
            else:
                continuations += self._take_result(slot, self.in_slot[slot], outcome)
        if continuations:
            self.engine.extend(self.params, continuations)
            self.decoding.update(slot for slot, *_ in continuations)

    def _take_result(self, slot, episode, result: SandboxResult):
        """Appends one answer; returns what `extend` needs if the episode goes on, else nothing."""
        trajectory, block, limits = episode.trajectory, episode.block, self.limits
        text = format_observation(result, limits.observation_chars, limits.valid_call)
        ids = observation_ids(self.tokenizer, text, limits.observation_tokens)
        fits = len(trajectory) + len(ids) < limits.context_tokens
        span = (episode.segment_start, len(trajectory))
        valid = is_valid_call(result, limits.valid_call)
        trajectory.calls.append(
            ToolCall(trajectory.turns, block.code, result, valid, text if fits else "", span)
        )
        last_token = trajectory.tokens[-1]
        if fits:
            trajectory.append_observation(ids)
        trajectory.turns += 1
        episode.segment_start = len(trajectory)

        budget = self._segment_budget(trajectory)
        answer = last_boxed(block.prose) if result.final_answer is None else result.final_answer
        if answer is not None:
            trajectory.answer = answer
            self._finish(slot, EndReason.ANSWERED)
        elif trajectory.turns == limits.max_turns:
            self._finish(slot, EndReason.TURN_LIMIT)
        elif not fits or budget == 0:
            self._finish(slot, EndReason.LENGTH)
        else:
            return [(slot, last_token, ids, budget)]
        return []

    def _reroll_or_drop(self, slot, episode):
        """A snippet that the sandbox could not run is no fault of the policy: never scored."""
        trajectory = episode.trajectory
        if episode.failures < self.limits.rerolls:
            self.stats.rerolled += 1
            del self.in_slot[slot]
            self.engine.release([slot])
            self.free.append(slot)
            self.queue.appendleft(self._new_episode(episode.prompt, trajectory.sample, episode.failures + 1))
        else:
            self.stats.dropped += 1
            self._finish(slot, EndReason.SANDBOX_FAILURE)

    def _finish(self, slot, reason: EndReason):
        episode = self.in_slot.pop(slot)
        self.engine.release([slot])
        trajectory = episode.trajectory
        trajectory.end = reason
        if self.extraction == "paper":
            response = trajectory.tokens[trajectory.prompt_length :].tolist()
            trajectory.answer = paper_answer(self.tokenizer.decode(response))
        self.on_finished(trajectory)
        self.finished.append(episode)
        self.finish_times.append(time.monotonic())
        self.free.append(slot)
