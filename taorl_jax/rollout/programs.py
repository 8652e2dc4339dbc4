"""The sampler's programs with the shapes they are called with, built without making any array."""

import dataclasses
import functools

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from taorl_jax.distributed import mesh as meshes
from taorl_jax.distributed.program import Program
from taorl_jax.models import kv_cache
from taorl_jax.rollout import decode_state
from taorl_jax.rollout.decode_state import DecodeState
from taorl_jax.rollout.policy_params import abstract_policy_params
from taorl_jax.rollout.sampling import WHOLE, Truncation


@dataclasses.dataclass(frozen=True)
class EngineSizes:
    """Everything static about an engine.

    Attributes:
      slots, chunk, prefill_rows, prefill_tokens, extend_rows, extend_tokens: as in `rollout` of the config.
      block: positions in a block of the cache.
      buckets: how many blocks the cache of the slots may have, in rising order.
      pool_blocks: blocks of the pool of prompts.
    """

    slots: int
    chunk: int
    prefill_rows: int
    prefill_tokens: int
    extend_rows: int
    extend_tokens: int
    block: int
    buckets: tuple[int, ...]
    pool_blocks: int

    @classmethod
    def from_config(cls, rollout) -> "EngineSizes":
        """The cache's length doubles from `cache_bucket` up to `context_tokens`."""
        block = min(rollout.cache_bucket, rollout.context_tokens)
        most, pool = -(-rollout.context_tokens // block), -(-rollout.prompt_tokens // block)
        buckets = (*(1 << i for i in range(most.bit_length()) if 1 << i < most), most)
        return cls(
            rollout.slots, rollout.chunk, rollout.prefill_rows, rollout.prefill_tokens, rollout.extend_rows,
            rollout.extend_tokens, block, buckets, pool,
        )  # fmt: skip

    def bucket(self, tokens: int) -> int:
        """Least number of blocks for so many tokens."""
        return next((blocks for blocks in self.buckets if blocks * self.block >= tokens), self.buckets[-1])

    def name(self, function: str, *blocks: int) -> str:
        """Of the program of a function at a length of the cache, such as "decode[512]"."""
        return f"{function}[{'->'.join(str(count * self.block) for count in blocks)}]"


def build_programs(
    model, mesh, sizes: EngineSizes, dtype, cache_dtype, tables, truncation: Truncation
) -> list[Program]:
    """All programs of an engine.

    Args:
      model: ModelConfig.
      mesh: of real devices, or of a topology's, on which no array can exist.
      sizes: the static sizes.
      dtype: compute type.
      cache_dtype: of keys and values.
      tables: (next_state, hit, stop ids) of the stop automaton; only their shapes matter.
      truncation: of evaluation, which has a decode of its own where it truncates.
    """
    rules = meshes.rollout_rules(model.kv_heads, mesh.shape["tensor"])
    scope = functools.partial(meshes.logical_axes, mesh, rules)
    whole, rows = meshes.replicated(mesh), meshes.rows(mesh)
    cache = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), dict(rules)["kv_heads"]))
    caches = (cache,) * model.layers
    state = DecodeState(caches, rows, rows, rows, rows, rows, rows)
    programs = []

    def add(name, function, *arguments, out, **kwargs):
        programs.append(Program(name, jax.jit(function, out_shardings=out, **kwargs), arguments, scope))

    def host(*shape, dtype=np.int32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    def shaped(make, shardings):
        shapes = jax.eval_shape(make)
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            jax.tree.broadcast(shardings, shapes),
        )

    def make_state(blocks):
        return decode_state.empty_state(model, sizes.slots, blocks, sizes.block, cache_dtype)

    def make_pool():
        return kv_cache.empty_cache(model, sizes.prefill_rows, sizes.pool_blocks, sizes.block, cache_dtype)

    params, pool = abstract_policy_params(model, dtype, mesh), shaped(make_pool, caches)
    tables = tuple(host(*x.shape, dtype=x.dtype) for x in tables)
    P, C, R, T, S = (
        sizes.prefill_rows, sizes.prefill_tokens, sizes.extend_rows, sizes.extend_tokens, sizes.slots,
    )  # fmt: skip

    add("pool", make_pool, out=caches)
    add("state", functools.partial(make_state, sizes.buckets[0]), out=state)
    prefill = functools.partial(decode_state.prefill, model, dtype)
    add("prefill", prefill, params, pool, host(P, C), host(), host(P), out=caches, donate_argnums=1)
    decodes = {"decode": WHOLE} | ({} if truncation.off else {"decode_truncated": truncation})
    extend = functools.partial(decode_state.extend, model, dtype)
    for blocks in sizes.buckets:
        now = shaped(functools.partial(make_state, blocks), state)
        for name, truncate in decodes.items():
            decode = functools.partial(decode_state.decode, model, dtype, sizes.chunk, truncate)
            add(
                # The report is gathered: every process of the mesh reads it.
                sizes.name(name, blocks), decode, params, tables, now, host(dtype=np.float32),
                out=(state, whole), donate_argnums=2,
            )  # fmt: skip
        add(
            sizes.name("extend", blocks), extend, params, now, host(R), host(R, T), host(R), host(R), host(R),
            host(R, dtype=np.bool), host(), out=state, donate_argnums=1,
        )  # fmt: skip
        add(
            sizes.name("fork", blocks), decode_state.fork, now, pool, host(S), host(S), host(S), host(S),
            host(S, 5, dtype=np.uint32), host(S), host(), out=state, donate_argnums=0,
        )  # fmt: skip
        add(sizes.name("release", blocks), decode_state.release, now, out=state, donate_argnums=0)
        for other in sizes.buckets:
            if other != blocks:
                resize = functools.partial(kv_cache.LayerCache.resized, blocks=other)
                add(sizes.name("resize", blocks, other), resize, now.cache[0], out=cache)
    return programs
