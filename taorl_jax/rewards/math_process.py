"""One verifier process under a wall clock, replaced whenever it dies or has to be killed."""

import contextlib
import multiprocessing
import pathlib
import subprocess
import sys

import taorl_jax
from taorl_jax.errors import UserError
from taorl_jax.rewards.verdict import Outcome

_START_S = 120.0


class VerifierFailed(UserError):
    """The verifier can't be started at all."""


class MathProcess:
    """Runs `taorl_jax.rewards.math_worker`; for one caller at a time."""

    def __init__(self, wall_s: float, memory_mb: int):
        self._wall_s = wall_s
        self._memory_mb = memory_mb
        self._process = None
        self.ready = False  # it has said so, and has not been replaced since

    def start(self):
        """Starts it unless it was started, without waiting for it."""
        if self._process is not None:
            return
        self._connection, theirs = multiprocessing.Pipe()
        # Not multiprocessing's spawn, which would import the parent's main module (and jax) again.
        arguments = (theirs.fileno(), self._memory_mb, self._wall_s)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "taorl_jax.rewards.math_worker", *map(str, arguments)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=pathlib.Path(taorl_jax.__file__).parents[1],
                process_group=0,  # Ctrl-C is for the parent, which still has answers to judge
            )
        self.ready = False

    def _await_ready(self):
        for _ in range(2):  # the first may have been killed while it idled, by whatever kills for memory
            self.start()
            if self._says_ready():
                return
            self.stop()
        raise VerifierFailed(
            f"the answer verifier did not start within {_START_S:.0f} s; its own message stands above. "
            "Is math-verify installed in this environment (requirements.txt)?"
        )

    def _says_ready(self) -> bool:
        if not self.ready:
            with contextlib.suppress(EOFError):
                self.ready = self._connection.poll(_START_S) and self._connection.recv() == "ready"
        return self.ready and self._process.poll() is None  # it may have said so and been killed since

    def ask(self, gold: str, answer: str | None) -> tuple[Outcome, str]:
        """Outcome and reason; if the limits were met, the process has been replaced by a fresh one."""
        self._await_ready()
        replied = False
        try:
            self._connection.send((gold, answer))
            if not self._connection.poll(self._wall_s):
                return Outcome.UNKNOWN, f"the verifier ran for more than {self._wall_s:g} s"
            name, reason = self._connection.recv()
            replied = "out of memory" not in reason  # what it took it may not give back
            return Outcome(name), reason
        except (EOFError, ConnectionError):
            return Outcome.UNKNOWN, "the verifier died"
        finally:  # also when interrupted: a reply left unread would be taken for that of the next answer
            if not replied:
                self.stop()
                self.start()

    def stop(self):
        """Ends it."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None
            self.ready = False
