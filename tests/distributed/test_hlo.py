"""Collectives of a compiled program, counted by hand on text and on a program of a known number of turns."""

import os
import subprocess
import sys

from taorl_jax.distributed.hlo import collectives

TEXT = """HloModule m
%inner (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %r = f32[4]{0} all-reduce(f32[4]{0} %x), to_apply=%add
}
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %s = (bf16[8,2]{1,0}, bf16[8,16]{1,0}) all-gather-start(bf16[8,2]{1,0} %y), dimensions={1}
  %w = (s32[], f32[4]) while((s32[], f32[4]) %t), condition=%c, body=%inner
}
ENTRY %main (a: f32[4]) -> f32[4] {
  %p = (f32[6]{0}, f32[6]{0}, u32[], u32[]) collective-permute-start(f32[6]{0} %a)
  %w = (s32[], f32[4]) while((s32[], f32[4]) %t), body=%body, backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_loops_are_counted_out():
    assert collectives(TEXT, (3,)) == {
        "all-gather": (5, 5 * 8 * 16 * 2),
        "all-reduce": (15, 15 * 4 * 4),
        "collective-permute": (1, 6 * 4),
    }
    assert collectives(TEXT, ())["all-reduce"] == (5, 5 * 4 * 4)


PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from taorl_jax.distributed.hlo import collectives
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
def run(x, n):
    step = lambda i, c: c + jax.lax.psum(c, "x")
    return jax.lax.fori_loop(0, n, lambda i, c: jax.lax.fori_loop(0, 7, step, c), x)
mapped = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False))
text = mapped.lower(jnp.zeros(64), 3).compile().as_text()
print(collectives(text, (3,)))
"""


def test_a_program_of_21_all_reduces():
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "{'all-reduce': (21, 2688)}", done.stderr[-2000:]
