import pytest

from sandbox_service.outcome import completed_stderr, name_outcome

TRACEBACK = 'Traceback (most recent call last):\n  File "main.py", line 1, in <module>\n'
UNPRINTED = (
    "Traceback (most recent call last):\nobject address  : 0x7f\nobject type name: MemoryError\n"
    "object repr     : MemoryError()\nlost sys.stderr\n"
)


@pytest.mark.parametrize(
    ("exit_code", "signal_number", "cpu_s", "stderr", "outcome"),
    [
        (0, None, 0.1, "", "ok"),
        (0, None, 0.1, TRACEBACK + "ValueError\n", "ok"),
        (1, None, 0.1, "", "nonzero_exit"),
        (1, None, 0.1, "ValueError: as text\n", "nonzero_exit"),
        (2, None, 0.1, TRACEBACK + "ValueError\n", "nonzero_exit"),
        (1, None, 0.1, TRACEBACK + "ValueError: no\n", "exception"),
        (1, None, 0.1, '  File "main.py", line 1\n    def f(:\nSyntaxError: invalid syntax\n', "exception"),
        (1, None, 0.1, TRACEBACK + "MemoryError\n", "memory_limit"),
        (1, None, 0.1, TRACEBACK + "numpy._core._exceptions._ArrayMemoryError: 8 GiB\n", "memory_limit"),
        (1, None, 0.1, TRACEBACK + "ValueError: MemoryError\n", "exception"),
        (1, None, 0.1, UNPRINTED, "memory_limit"),
        (None, 11, 0.1, "", "signal"),
        (None, 9, 0.1, "", "signal"),
        (None, 9, 2.0, "", "cpu_limit"),
        (None, 24, 1.9, "", "cpu_limit"),
    ],
)
def test_name_outcome(exit_code, signal_number, cpu_s, stderr, outcome):
    assert name_outcome(exit_code, signal_number, cpu_s, 2.0, stderr) == outcome


def test_completed_stderr():
    assert completed_stderr("a\n", "") == "a\n"
    assert completed_stderr("a\n", "killed") == "a\nkilled\n"
    assert completed_stderr(UNPRINTED, "") == UNPRINTED + "MemoryError\n"
