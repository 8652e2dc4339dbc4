"""The tool loop on the host: keeps slots decoding while snippets run, and builds the trajectories.

While a chunk decodes, the stops of the previous one are handled: code goes to the sandbox, answers that
came back are appended, finished episodes leave their slot to the next one. No slot waits for another's tool.
"""

import collections
import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Container, Sequence
from typing import Protocol

import jax
from ml_collections import ConfigDict

from taorl_jax.data.pipeline import Prompt
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.rewards.extraction import last_boxed, paper_answer
from taorl_jax.rollout.engine import Engine, Stop
from taorl_jax.rollout.trajectory import EndReason, ToolCall, Trajectory
from taorl_jax.tool_use.code_block import CodeBlock, find_code, prose
from taorl_jax.tool_use.observation import format_observation, is_valid_call, observation_ids
from taorl_jax.tool_use.result import SandboxDown, SandboxFailure, SandboxResult


class Tool(Protocol):
    """What runs the policy's code."""

    def submit(self, code: str) -> "concurrent.futures.Future[SandboxResult]":
        """Starts a snippet; the future raises SandboxFailure or SandboxDown if it could not be run."""


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
    decode_slots: int = 0  # slots * steps that ran
    decode_tokens: int = 0  # of those, tokens sampled
    seconds: float = 0.0
    waiting_s: float = 0.0  # of those, nothing to decode: all episodes waited for their tools


@dataclasses.dataclass
class _Episode:
    trajectory: Trajectory
    prompt: Prompt
    segment_start: int = 0
    failures: int = 0
    block: CodeBlock | None = None
    call: concurrent.futures.Future | None = None


class Scheduler:
    """Runs episodes through one engine and one tool."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, tool: Tool, rollout: ConfigDict, extraction: str = "boxed"
    ):
        """`rollout` is that part of the config: budgets and limits; `extraction` is `reward.extraction`."""
        self._engine, self._tokenizer, self._tool, self._limits = engine, tokenizer, tool, rollout
        self._extraction = extraction

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
            self._engine, self._tokenizer, self._tool, self._limits, params, draw, temperature,
            self._extraction, on_finished,
        )  # fmt: skip
        started = time.monotonic()
        try:
            finished = run.finish_all(prompts, samples, done, progress)
        finally:
            run.cancel()
        run.stats.seconds = time.monotonic() - started
        return finished, run.stats


class _Run:
    """The state of one `Scheduler.run`."""

    def __init__(self, engine, tokenizer, tool, limits, params, draw, temperature, extraction, on_finished):
        self.extraction, self.on_finished = extraction, on_finished
        self.engine, self.tokenizer, self.tool, self.limits = engine, tokenizer, tool, limits
        self.params, self.draw, self.temperature = params, draw, temperature
        self.stats = RolloutStats()
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
            self._resume_answered(block=report is None and not self.decoding)
            chunk = self.engine.decode(self.params, self.temperature) if self.decoding else None
            if report is not None:
                self._handle(report)
            report = chunk
        progress(len(self.finished), len(order))
        ended = [episode.trajectory for episode in self.finished]
        return sorted(ended, key=lambda t: order[t.prompt_id, t.sample])

    def cancel(self):
        """Leaves no snippet and no slot running, however the run ended."""
        for episode in self.in_slot.values():
            if episode.call is not None:
                episode.call.cancel()
        self.engine.release()

    def _new_episode(self, prompt, sample, failures=0) -> _Episode:
        trajectory = Trajectory(prompt.draw, sample, prompt.ids)
        return _Episode(trajectory, prompt, segment_start=len(trajectory), failures=failures)

    def _segment_budget(self, trajectory) -> int:
        return min(self.limits.turn_tokens, self.limits.context_tokens - len(trajectory))

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
        report = jax.device_get(report)
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
            episode.call = self.tool.submit(episode.block.code)
            return
        answer = last_boxed(prose(segment))
        trajectory.answer = answer or trajectory.answer
        trajectory.void |= answer is None
        trajectory.turns += 1
        if stop is Stop.BUDGET:
            self._finish(slot, EndReason.LENGTH)
        else:
            self._finish(slot, EndReason.VOID if answer is None else EndReason.ANSWERED)

    def _resume_answered(self, block: bool):
        """Appends the observations that have arrived; with `block`, waits for one if none has."""
        waiting = {slot: e.call for slot, e in self.in_slot.items() if e.call is not None}
        if block and waiting:
            started = time.monotonic()
            # The time-out only lets an interrupt through; calls are bounded by the client.
            concurrent.futures.wait(waiting.values(), 0.5, concurrent.futures.FIRST_COMPLETED)
            self.stats.waiting_s += time.monotonic() - started
        continuations = []
        for slot, call in waiting.items():
            if call.done():
                continuations += self._take_result(slot, self.in_slot[slot])
        if continuations:
            self.engine.extend(self.params, continuations)
            self.decoding.update(slot for slot, *_ in continuations)

    def _take_result(self, slot, episode):
        """Appends one answer; returns what `extend` needs if the episode goes on, else nothing."""
        trajectory, block = episode.trajectory, episode.block
        try:
            result = episode.call.result()
        except SandboxDown:
            raise
        except SandboxFailure:
            self._reroll_or_drop(slot, episode)
            return []
        episode.call = None
        text = format_observation(result, self.limits.observation_chars)
        ids = observation_ids(self.tokenizer, text, self.limits.observation_tokens)
        fits = len(trajectory) + len(ids) < self.limits.context_tokens
        span = (episode.segment_start, len(trajectory))
        valid = is_valid_call(result)
        trajectory.calls.append(
            ToolCall(trajectory.turns, block.code, result, valid, text if fits else "", span)
        )
        last_token = trajectory.tokens[-1]
        if fits:
            trajectory.append_observation(ids)
        trajectory.turns += 1
        episode.segment_start = len(trajectory)

        answer = last_boxed(block.prose) if result.final_answer is None else result.final_answer
        if answer is not None:
            trajectory.answer = answer
            self._finish(slot, EndReason.ANSWERED)
        elif trajectory.turns == self.limits.max_turns:
            self._finish(slot, EndReason.TURN_LIMIT)
        elif not fits:
            self._finish(slot, EndReason.LENGTH)
        else:
            return [(slot, last_token, ids, self._segment_budget(trajectory))]
        return []

    def _reroll_or_drop(self, slot, episode):
        """A snippet that the sandbox could not run is no fault of the policy: never scored."""
        trajectory = episode.trajectory
        if episode.failures < self.limits.rerolls:
            self.stats.rerolled += 1
            del self.in_slot[slot]
            self.free.append(slot)
            self.queue.appendleft(self._new_episode(episode.prompt, trajectory.sample, episode.failures + 1))
        else:
            self.stats.dropped += 1
            self._finish(slot, EndReason.SANDBOX_FAILURE)

    def _finish(self, slot, reason: EndReason):
        episode = self.in_slot.pop(slot)
        trajectory = episode.trajectory
        trajectory.end = reason
        if self.extraction == "paper":
            response = trajectory.tokens[trajectory.prompt_length :].tolist()
            trajectory.answer = paper_answer(self.tokenizer.decode(response))
        self.on_finished(trajectory)
        self.finished.append(episode)
        self.free.append(slot)
