"""Starting the process of one snippet: a fresh interpreter, a bare environment, the kernel's limits."""

import math
import os
import resource
import signal
import sys

from sandbox_service import limits as bounds
from sandbox_service.process_tree import LINUX, die_with_parent

SCRIPT = "main.py"
# The path shows up in tracebacks, so it must not differ from run to run.
_SCRIPT_PATH = f"/proc/self/cwd/{SCRIPT}" if LINUX else SCRIPT
_ADDRESS_SPACE_SLACK_MB = 1024  # of libraries and reserved, never touched memory
# `-s -P` and an environment made by us isolate as `-I` does, which would ignore PYTHONHASHSEED: the same
# snippet must print its sets in the same order every time.
_COMMAND = (sys.executable, "-s", "-P", _SCRIPT_PATH)

# Python ignores the first two, a lane the others; exec keeps what is ignored.
_IGNORED_HERE = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)


def environment(box: str) -> dict[str, str]:
    """The whole environment of a snippet; BLAS threads would be killed by the memory limit."""
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
        "VECLIB_MAXIMUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }


def _kernel_limits(cpu_s: float, memory_mb: int) -> list[tuple[int, int, int]]:
    whole_s = math.ceil(cpu_s)
    limits = [
        (resource.RLIMIT_CPU, whole_s, whole_s + 1),
        (resource.RLIMIT_FSIZE, bounds.FILE_BYTES, bounds.FILE_BYTES),
        (resource.RLIMIT_NOFILE, bounds.OPEN_FILES, bounds.OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
    ]
    if LINUX:  # macOS refuses or ignores both
        private, mapped = memory_mb << 20, (memory_mb + _ADDRESS_SPACE_SLACK_MB) << 20
        limits += [(resource.RLIMIT_DATA, private, private), (resource.RLIMIT_AS, mapped, mapped)]
    return limits


def _lower(which: int, soft: int, hard: int):
    """Sets a limit, below the hard one that we may live under ourselves."""
    ceiling = resource.getrlimit(which)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(which, (soft, hard))


def _become_snippet(box, stdio, limits):
    os.setsid()
    die_with_parent()
    os.chdir(box)
    for target, source in enumerate(stdio):
        os.dup2(source, target)
    for number in _IGNORED_HERE:
        signal.signal(number, signal.SIG_DFL)
    for limit in limits:
        _lower(*limit)
    os.execve(_COMMAND[0], _COMMAND, environment(box))


def spawn(box: str, stdio: tuple[int, int, int], cpu_s: float, memory_mb: int) -> int:
    """Starts `box`/main.py as the leader of a session of its own and returns its process id.

    Args:
      box: scratch directory, becomes the working directory.
      stdio: descriptors for stdin, stdout and stderr, all above 2.
      cpu_s: CPU time, seconds.
      memory_mb: private memory, MiB.

    Raises:
      OSError: the process could not be started (this is never the snippet's fault).
    """
    failure, report = os.pipe()  # closed by exec; anything in it is why there was no exec
    limits = _kernel_limits(cpu_s, memory_mb)
    pid = os.fork()
    if pid == 0:
        try:
            _become_snippet(box, stdio, limits)
        except Exception as error:
            os.write(report, repr(error).encode())
        finally:
            os._exit(127)
    os.close(report)
    with open(failure, "rb") as pipe:
        reason = pipe.read()
    if reason:
        os.waitpid(pid, 0)
        raise OSError(f"cannot start the interpreter: {reason.decode()}")
    return pid
