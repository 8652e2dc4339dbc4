"""The snippets that are on their way: sent, answered, given up."""

import concurrent.futures
import contextlib
import queue
import time
from typing import Protocol

from taorl_jax.tool_use.result import SandboxDown, SandboxFailure, SandboxResult


class Tool(Protocol):
    """What runs the policy's code."""

    def submit(self, code: str) -> "concurrent.futures.Future[SandboxResult]":
        """Starts a snippet; the future raises SandboxFailure or SandboxDown if it could not be run."""


class PendingCalls:
    """At most one call a slot. Answers come from any thread, in any order, and only to who still waits.

    Attributes:
      lost: calls given up because no answer came within the limit, whatever the tool's own time-outs say.
      late: answers to calls that had been given up; they are ignored.
    """

    def __init__(self, tool: Tool, limit_s: float):
        """`limit_s`: seconds after which a call is given up."""
        self._tool, self._limit_s = tool, limit_s
        self._calls: dict[int, concurrent.futures.Future] = {}
        self._deadlines: dict[int, float] = {}
        self._answered = queue.SimpleQueue()
        self.lost = self.late = 0

    def __len__(self) -> int:
        return len(self._calls)

    def submit(self, slot: int, code: str):
        """Sends a snippet on behalf of a slot."""
        call = self._tool.submit(code)
        self._calls[slot], self._deadlines[slot] = call, time.monotonic() + self._limit_s
        call.add_done_callback(lambda call: self._answered.put((slot, call)))

    def take(self, wait_s: float = 0.0) -> list[tuple[int, SandboxResult | SandboxFailure]]:
        """What has become of calls since the last look, in the order of their slots.

        Args:
          wait_s: seconds to wait if there is nothing yet.

        Raises:
          SandboxDown: no sandbox answers at all.
        """
        outcomes, block = {}, wait_s > 0
        with contextlib.suppress(queue.Empty):
            while True:
                slot, call = self._answered.get(block, wait_s)
                block = False
                if self._calls.get(slot) is not call:
                    self.late += not call.cancelled()
                    continue
                self._forget(slot)
                outcomes[slot] = _outcome(call)
        now = time.monotonic()
        for slot in [slot for slot, deadline in self._deadlines.items() if deadline < now]:
            self._forget(slot).cancel()
            self.lost += 1
            outcomes[slot] = SandboxFailure(
                f"no answer to a snippet within {self._limit_s:g} s (`sandbox.call_limit_s`)"
            )
        return sorted(outcomes.items())

    def cancel(self):
        """Gives up every call."""
        for slot in list(self._calls):
            self._forget(slot).cancel()

    def _forget(self, slot) -> concurrent.futures.Future:
        del self._deadlines[slot]
        return self._calls.pop(slot)


def _outcome(call) -> SandboxResult | SandboxFailure:
    try:
        return call.result()
    except SandboxDown:
        raise
    except SandboxFailure as failure:
        return failure
