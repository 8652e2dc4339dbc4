"""What the benchmarks of sampler and update share: the workload, timing, a JSON line, the machine's limit."""

import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from taorl_jax.models import transformer
from taorl_jax.models.model_config import ModelConfig

TOY = ModelConfig(
    vocab_size=2048,
    hidden=256,
    mlp=1024,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=64,
    max_positions=32_768,
    rope_theta=1e6,
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A toy Qwen2 with random weights, and what it has to do."""

    model: ModelConfig = TOY
    sequences: int = 32
    group: int = 8  # samples of a prompt
    prompt: int = 64  # tokens
    generated: int = 128  # tokens

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.prompt + self.generated

    def params(self, seed: int = 0):
        """Random parameters in the layout of training."""
        tokens = jnp.zeros((1, 1), jnp.int32)
        boxed = transformer.Decoder(self.model).init(jax.random.key(seed), tokens, tokens)["params"]
        return jax.tree.map(lambda box: box.value, boxed, is_leaf=lambda box: hasattr(box, "names"))

    def tokens(self, seed: int = 0) -> np.ndarray:
        """[sequences, length] random ids."""
        rng = np.random.default_rng(seed)
        return rng.integers(3, self.model.vocab_size, (self.sequences, self.length)).astype(np.int32)

    def forward_flops(self, tokens: int, head_tokens: int, attended: int) -> float:
        """Floating-point operations of the matrix products in a forward.

        Args:
          tokens: through the layers.
          head_tokens: of which so many go through the unembedding.
          attended: pairs of a query and a key whose score is computed.
        """
        m = self.model
        layer = dataclasses.replace(m, layers=1).parameters - dataclasses.replace(m, layers=0).parameters
        per_pair = 4 * m.heads * m.head_dim
        head = 2 * m.vocab_size * m.hidden * head_tokens
        return m.layers * (2 * layer * tokens + per_pair * attended) + head


def measure(function: Callable[[], None], repeats: int) -> tuple[float, list[float]]:
    """(seconds of the first call, sorted seconds of `repeats` more); `function` blocks until it is done."""
    seconds = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds[0], sorted(seconds[1:])


def emit(what: str, first_s: float, seconds: list[float], tokens: int, **extra):
    """Prints a JSON line; `tokens` are those that one timed call handles."""
    median = statistics.median(seconds)
    row = {
        "peer": "taorl_jax",
        "what": what,
        "median_s": round(median, 4),
        "min_s": round(seconds[0], 4),
        "max_s": round(seconds[-1], 4),
        "tokens_per_s": round(tokens / median, 1),
        "first_call_s": round(first_s, 2),
        "repeats": len(seconds),
        "load1": round(os.getloadavg()[0], 2),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }
    print(json.dumps(row | extra), flush=True)


def gemm_limit(rows: int, repeats: int = 5) -> float:
    """FLOP/s of float32 products [rows, 256] x [256, 1024] x [1024, 256], as in the MLP."""
    a, b, c = (jnp.ones(shape, jnp.float32) for shape in ((rows, 256), (256, 1024), (1024, 256)))
    times = max(1, int(4e9 / (rows * 256 * 1024 * 4)))

    @jax.jit
    def products(a, b, c):
        return jax.lax.fori_loop(0, times, lambda _, x: (x @ b) @ c * 1e-3, a)

    _, seconds = measure(lambda: jax.block_until_ready(products(a, b, c)), repeats)
    return times * rows * 256 * 1024 * 4 / seconds[0]
