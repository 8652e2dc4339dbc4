"""Stopping on SIGTERM or SIGINT at a point where nothing is lost."""

import contextlib
import signal

from taorl_jax.errors import Interrupted


class StopRequest:
    """Remembers a signal until the loop asks for it."""

    def __init__(self):
        self.signal: int | None = None

    def check(self):
        """Raises Interrupted if a signal has come."""
        if self.signal is not None:
            raise Interrupted(signal.Signals(self.signal).name)

    def remember(self, number, frame):
        """The signal handler."""
        if self.signal is not None:
            # A second one means now: the default action, without our saving anything.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal = number


@contextlib.contextmanager
def stop_request():
    """Within it SIGTERM and SIGINT are remembered instead of ending the process; a second one ends it."""
    request = StopRequest()
    before = {number: signal.signal(number, request.remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
