"""A jitted function with the shapes that it will be called with: what is compiled before a run begins."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Program:
    """One program of the sampler or of training.

    Attributes:
      name: for people, such as "decode[512]".
      function: the result of `jax.jit`.
      arguments: a pytree of `jax.ShapeDtypeStruct`, with shardings where they are not single-device.
      scope: the context to trace it in, such as a mesh with its logical axes.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple
    scope: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def compile(self) -> jax.stages.Compiled:
        """Compiles it; the result refuses arguments of any other shape, so nothing recompiles in a run."""
        with self.scope():
            return self.function.lower(*self.arguments).compile()
