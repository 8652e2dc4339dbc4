"""Signals are remembered, and asked for; a second one ends the process."""

import os
import signal
import subprocess
import sys

import pytest

from taorl_jax.errors import Interrupted
from taorl_jax.training.interrupt import stop_request


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_it_is_asked_for(number):
    before = signal.getsignal(number)
    with stop_request() as request:
        request.check()
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match=signal.Signals(number).name):
            request.check()
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_the_process():
    script = (
        "import os, signal\nfrom taorl_jax.training.interrupt import stop_request\n"
        "with stop_request():\n    for _ in range(2): os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == ""
