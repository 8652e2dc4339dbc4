"""Loading holds the parameters and little else, at a size where that can be told from noise."""

import json
import subprocess
import sys


def test_loading_holds_no_second_copy():
    command = [sys.executable, "-m", "tools.benchmark_loading", "--gigabytes", "0.2"]
    measured = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    size = measured["file_bytes"]
    assert 150e6 < size < 250e6
    # The proportion that 2 GB may take: itself and 0.6 GB. A second copy, also of one stack, would be more.
    assert 0.9 * size < measured["peak_growth_bytes"] < 1.3 * size
    assert measured["load_seconds"] > 0
    assert measured["read_seconds"] > 0
