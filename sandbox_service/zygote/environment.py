"""The environment and the flags of the interpreters that snippets run in, warm or fresh."""

# `-s -P` and an environment made by us isolate as `-I` does, which would ignore PYTHONHASHSEED: the same
# snippet must print its sets in the same order every time.
INTERPRETER_FLAGS = ("-s", "-P")


def environment(box: str) -> dict[str, str]:
    """The whole environment; the memory limit would kill the threads of BLAS."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": box,
        "TMPDIR": box,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }
