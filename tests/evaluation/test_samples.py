"""The file of samples: appended from threads, cut back after a kill, held by one process."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from evaluation.test_table import sample

from taorl_jax.errors import UserError
from taorl_jax.evaluation.samples import SampleLog, read_samples


def test_what_was_appended_is_there_again(tmp_path):
    path = tmp_path / "new" / "samples.jsonl"
    with SampleLog(path) as log, ThreadPoolExecutor(8) as threads:
        odd = sample("a", 99, text="\ud800 \u2028 line\n")  # what a snippet may print
        list(threads.map(log.append, [*(sample("a", number) for number in range(50)), odd]))
    with SampleLog(path) as log:
        assert len(log.samples) == 51 and log.samples["own", "a", 99] == odd


def test_a_line_that_a_kill_left_unfinished_is_cut_off(tmp_path):
    path = tmp_path / "samples.jsonl"
    with SampleLog(path) as log:
        log.append(sample("a", 0))
    whole = path.read_bytes()
    for length in (1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole + whole[:length])
        with SampleLog(path) as log:
            assert list(log.samples) == [("own", "a", 0)]
            log.append(sample("a", 1))
        assert len(path.read_bytes().splitlines()) == len(read_samples(path)[0]) == 2


def test_no_sample_is_written_twice(tmp_path):
    with SampleLog(tmp_path / "samples.jsonl") as log:
        log.append(sample("a", 0))
        with pytest.raises(ValueError, match="twice"):
            log.append(sample("a", 0, "wrong"))


def test_two_processes_cannot_write_and_other_files_are_refused(tmp_path):
    path = tmp_path / "samples.jsonl"
    with SampleLog(path), pytest.raises(UserError, match="another evaluation"), SampleLog(path):
        pass
    path.write_text('{"benchmark": "own"}\n')
    with pytest.raises(UserError, match=r"samples\.jsonl:1: no sample"), SampleLog(path):
        pass
