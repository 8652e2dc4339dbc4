"""Answers for snippets that did not run."""


def failed(outcome: str, message: str) -> dict:
    """The fields of a response, with nothing but an outcome and a message."""
    return {
        "outcome": outcome,
        "exit_code": None,
        "signal": None,
        "stdout": "",
        "stderr": message + "\n",
        "truncated": {"stdout": False, "stderr": False},
        "files": {},
        "wall_ms": 0.0,
        "cpu_ms": 0.0,
        "max_rss_kb": 0,
    }
