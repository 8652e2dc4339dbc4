"""The sampler on the host: its programs, compiled before the first episode, and the calls that use them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from taorl_jax.distributed import mesh as meshes
from taorl_jax.distributed.program import Program
from taorl_jax.models.model_config import ModelConfig
from taorl_jax.rollout.decode_state import Report, Stop
from taorl_jax.rollout.programs import EngineSizes, build_programs
from taorl_jax.rollout.sampling import WHOLE
from taorl_jax.rollout.stopping import StopTable

__all__ = ["Engine", "Report", "Stop"]


class Engine:
    """Episodes in slots; the cache is as long as the longest live episode needs, in a few lengths.

    Making one allocates nothing. The programs are compiled and the state is made at the first `prefill`.

    Attributes:
      sizes: the static sizes; `slots` and `prefill_rows` of them also by themselves.
      state: the DecodeState, once there is one.
    """

    def __init__(
        self, model: ModelConfig, mesh, rollout, policy, table: StopTable, stop_ids, truncation=WHOLE
    ):
        """Neither compiles nor allocates.

        Args:
          model: shape of the policy.
          mesh: where to run.
          rollout: that part of the config.
          policy: that part of the config.
          table: decides, with `stop_ids`, where segments stop.
          stop_ids: ids that end a segment.
          truncation: of an evaluation's draws.
        """
        self.sizes = EngineSizes.from_config(rollout)
        self.slots, self.prefill_rows = rollout.slots, rollout.prefill_rows
        self._mesh, self._start = mesh, table.start
        self._make_programs = functools.partial(
            build_programs,
            model,
            mesh,
            self.sizes,
            jnp.dtype(policy.compute_dtype),
            jnp.dtype(policy.cache_dtype),
        )
        self._truncation = truncation
        self._host_tables = (table.next_state, table.hit, np.asarray(stop_ids, np.int32))
        self._blocks = self.sizes.buckets[0]  # of the state's cache
        # Upper bounds of what the slots hold; exact where the last report fetched has seen the slot stop.
        self._held_S, self._most_S = np.zeros(self.slots, np.int64), np.zeros(self.slots, np.int64)
        self._decoding_S = np.zeros(self.slots, bool)
        self.state = None

    def programs(self) -> list[Program]:
        """Every program, for every length of the cache, with abstract arguments."""
        return list(self._programs.values())

    @functools.cached_property
    def _programs(self) -> dict[str, Program]:
        return {program.name: program for program in self._make_programs(self._host_tables, self._truncation)}

    def compile(self):
        """Compiles every program and makes the state; a second call does nothing."""
        if self.state is None:
            self._compiled = {name: program.compile() for name, program in self._programs.items()}
            self._tables = jax.device_put(self._host_tables, meshes.replicated(self._mesh))
            self.state = self._compiled["state"]()

    def _run(self, name, *args):
        return self._compiled[self.sizes.name(name, self._blocks)](*args)

    def _fit(self):
        """Gives the cache the least length that holds every live episode, one layer after the other."""
        blocks = self.sizes.bucket(int(self._held_S.max()))
        if blocks == self._blocks:
            return
        resize = self._compiled[self.sizes.name("resize", self._blocks, blocks)]
        layers = list(self.state.cache)
        self.state = self.state.replace(cache=())
        for i in range(len(layers)):
            layers[i] = resize(layers[i])
        self.state, self._blocks = self.state.replace(cache=tuple(layers)), blocks

    def prefill(self, params, prompts: list[list[int]]):
        """Runs up to `prefill_rows` prompts; returns the pool that `fork` reads."""
        self.compile()
        C, longest = self.sizes.prefill_tokens, max(map(len, prompts))
        tokens = np.zeros((self.prefill_rows, -(-longest // C) * C), np.int32)
        lengths = np.ones(self.prefill_rows, np.int32)
        for row, ids in enumerate(prompts):
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        pool = self._compiled["pool"]()
        for begin in range(0, longest - 1, C):
            piece = tokens[:, begin : begin + C]
            pool = self._compiled["prefill"](params, pool, piece, np.int32(begin), lengths)
        return pool

    def fork(self, pool, starts):
        """Starts episodes.

        Args:
          pool: from `prefill`.
          starts: at most `slots` tuples (slot, pool row, prompt ids, request, budget); a request is the
            five integers of `sampling.request_key`.
        """
        F = self.slots
        slots, rows = np.full(F, F, np.int32), np.zeros(F, np.int32)
        lengths, last, budgets = np.ones(F, np.int32), np.zeros(F, np.int32), np.zeros(F, np.int32)
        requests = np.zeros((F, 5), np.uint32)
        for i, (slot, row, ids, request, budget) in enumerate(starts):
            slots[i], rows[i], lengths[i], last[i] = slot, row, len(ids), ids[-1]
            requests[i], budgets[i] = request, budget
            self._begin_segment(slot, len(ids) - 1, budget)
        self._fit()
        self.state = self._run(
            "fork", self.state, pool, slots, rows, lengths, last, requests, budgets, self._start
        )

    def _begin_segment(self, slot, held, budget):
        self._held_S[slot], self._most_S[slot], self._decoding_S[slot] = held, held + budget, True

    def decode(self, params, temperature: float, truncated: bool = False) -> Report:
        """Runs a chunk; the report arrives asynchronously: `fetch` waits for it.

        Args:
          params: the policy in its rollout placement.
          temperature: T; 0 is greedy.
          truncated: whether to draw as an evaluation does, see `sampling.Truncation`.
        """
        grown_S = np.minimum(self._held_S + self.sizes.chunk, self._most_S)
        self._held_S = np.where(self._decoding_S, grown_S, self._held_S)
        self._fit()
        name = "decode_truncated" if truncated and not self._truncation.off else "decode"
        self.state, report = self._run(name, params, self._tables, self.state, np.float32(temperature))
        return report

    def fetch(self, report: Report) -> Report:
        """The report on the host. Reports are fetched in the order in which `decode` made them."""
        report = jax.device_get(report)
        stopped_S = report.stops_S != Stop.RUNNING
        self._held_S = np.where(stopped_S, report.lengths_S, self._held_S)
        self._decoding_S &= ~stopped_S
        return report

    def extend(self, params, continuations):
        """Appends observations and resumes their slots.

        Args:
          params: the policy in its rollout placement.
          continuations: tuples (slot, last token, observation ids, budget), any number.
        """
        for slot, _, ids, budget in continuations:
            self._begin_segment(slot, self._held_S[slot] + len(ids), budget)
        self._fit()
        R, C = self.sizes.extend_rows, self.sizes.extend_tokens
        for first in range(0, len(continuations), R):
            batch = continuations[first : first + R]
            feeds = [[last, *ids[:-1]] for _, last, ids, _ in batch]
            for begin in range(0, max(map(len, feeds)), C):
                self._extend_piece(params, batch, feeds, begin)

    def _extend_piece(self, params, batch, feeds, begin):
        R, C = self.sizes.extend_rows, self.sizes.extend_tokens
        end = begin + C
        slots, tokens = np.full(R, self.slots, np.int32), np.zeros((R, C), np.int32)
        counts, last, budgets = np.zeros(R, np.int32), np.zeros(R, np.int32), np.zeros(R, np.int32)
        resume = np.zeros(R, bool)
        for i, ((slot, _, ids, budget), feed) in enumerate(zip(batch, feeds, strict=True)):
            piece = feed[begin:end]
            if piece:
                slots[i], counts[i], tokens[i, : len(piece)] = slot, len(piece), piece
                last[i], budgets[i], resume[i] = ids[-1], budget, len(feed) <= end
        self.state = self._run(
            "extend", params, self.state, slots, tokens, counts, last, budgets, resume, self._start
        )

    def release(self, slots=None):
        """Forgets the episodes of some slots, which have stopped, so that the cache may shrink; None: all."""
        chosen = slice(None) if slots is None else list(slots)
        self._held_S[chosen], self._most_S[chosen], self._decoding_S[chosen] = 0, 0, False
        if slots is None and self.state is not None:
            self._fit()  # to the least length: between rollouts the update needs the memory
            self.state = self._run("release", self.state)
