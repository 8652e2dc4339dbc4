"""Loading and saving hold the parameters and little else, at a size where that can be told from noise."""

import json
import subprocess
import sys


def test_loading_and_saving_hold_no_second_copy():
    command = [sys.executable, "-m", "tools.benchmark_loading", "--gigabytes", "0.2"]
    measured = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    size = measured["file_bytes"]
    assert 150e6 < size < 250e6
    # The proportion that 2 GB may take: itself and 0.6 GB. A second copy, also of one stack, would be more.
    assert 0.9 * size < measured["peak_growth_bytes"] < 1.3 * size
    # One of 84 large tensors at a time, in a few stages, and what compiling takes.
    assert measured["save_growth_bytes"] < 0.3 * size
    assert measured["load_seconds"] > 0
    assert measured["read_seconds"] > 0
