"""What became of a snippet. That the code failed and that the sandbox failed are different types."""

import dataclasses

from taorl_jax.errors import UserError

# Outcomes of code that the sandbox did run or rightly refused; all but `ok` mean that the code failed.
CODE_OUTCOMES = (
    "ok",
    "nonzero_exit",
    "exception",
    "timeout",
    "cpu_limit",
    "memory_limit",
    "output_limit",
    "signal",
    "rejected",
)


@dataclasses.dataclass(frozen=True)
class SandboxResult:
    """The fate of one snippet.

    Attributes:
      outcome: one of CODE_OUTCOMES.
      stdout, stderr: decoded output, cut to the service's byte limits.
      final_answer: str() of what the code last passed to `final_answer()`; None if it never called it.
      wall_ms: wall time of the run itself, without the queue.
    """

    outcome: str
    stdout: str
    stderr: str
    final_answer: str | None
    wall_ms: float


class SandboxFailure(UserError):
    """A snippet could not be run, through no fault of its own (an infrastructure error)."""


class SandboxDown(SandboxFailure):
    """No sandbox answers at all; the message names the addresses and how long we tried."""


class SandboxTooWeak(UserError):
    """A service isolates less than `sandbox.min_isolation`; the message names both."""
