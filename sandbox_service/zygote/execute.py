"""Running a script in this warm interpreter as `python main.py` would in a new one, to its very end."""

import atexit
import builtins
import contextlib
import functools
import gc
import importlib.machinery
import io
import os
import signal
import sys
import threading
import traceback
import types

_PACKAGE = __name__.partition(".")[0]
# From `run_script` to the script's own frame; before Python 3.12 calls of C functions (exec) count too.
_CALLS_TO_SCRIPT = 3 if sys.version_info < (3, 12) else 2


def run_script(path: str, source: bytes):
    """Runs the text of a file as the main module and ends this process; never returns."""
    _renew_streams()
    _forget_ourselves()
    main = _main_module(path)
    status = _guarded(lambda: exec(compile(source, path, "exec", dont_inherit=True), main.__dict__), frames=2)
    status = _finish(main) or status
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _renew_streams():
    """Text streams over descriptors 0 to 2, with the encodings that the interpreter chose at its start."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, f"__{name}__")
        binary = _buffered(fd, mode)
        binary.raw.name = f"<{name}>"
        stream = io.TextIOWrapper(
            binary, old.encoding, old.errors, newline=None if fd == 0 else "\n", line_buffering=fd == 2
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


@functools.cache
def modules_of_ours() -> tuple[str, ...]:
    """The service's modules; found once by the lane: looking costs a child a copy of each page of names."""
    return tuple(name for name in sys.modules if name.partition(".")[0] == _PACKAGE)


def _buffered(fd: int, mode: str):
    if mode == "r":
        return io.BufferedReader(io.FileIO(fd, mode, closefd=False))
    return io.BufferedWriter(io.FileIO(fd, mode, closefd=False))


def _forget_ourselves():
    """Leaves of this service only what the running code holds on to."""
    for name in modules_of_ours():
        sys.modules.pop(name, None)
    sys.argv[:] = ["main.py"]
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # else every run would draw the template's numbers
    # What lies below the script's frames is no depth of its own; else a deep recursion would end early.
    sys.setrecursionlimit(sys.getrecursionlimit() + _depth() + _CALLS_TO_SCRIPT)


def _depth() -> int:
    frame, depth = sys._getframe(2), 0  # without those of the two functions that ask
    while frame:
        frame, depth = frame.f_back, depth + 1
    return depth


def _main_module(path: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __builtins__=builtins,
        __annotations__={},
        __cached__=None,
        __file__=path,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main
    return main


def _guarded(action, frames: int) -> int:
    """Exit status after an action: its exceptions are shown without the first `frames` of the traceback."""
    try:
        action()
    except SystemExit as exit_:
        return _exit_status(exit_)
    except BaseException as raised:
        error = raised  # shown outside of this clause, or it would be the context of a failure to show it
    else:
        return 0
    trace = error.__traceback__
    for _ in range(frames):
        trace = trace and trace.tb_next
    interrupted = isinstance(error, KeyboardInterrupt)
    return _show(error.with_traceback(trace)) or (-signal.SIGINT if interrupted else 1)


def _exit_status(exit_: SystemExit) -> int:
    code = exit_.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF or (256 if code else 0)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    print(code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> int:
    """Calls the excepthook as the interpreter does; returns an exit status if the hook asked for one."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as exit_:
        return _exit_status(exit_)
    except BaseException as second:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(second.with_traceback(second.__traceback__.tb_next))
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)
    return 0


def _finish(main: types.ModuleType) -> int:
    """What the interpreter does at its end, as far as a script can tell: only its own module is torn down."""
    _guarded(threading._shutdown, frames=1)
    atexit._run_exitfuncs()
    _flush()
    names = sorted(main.__dict__, key=lambda name: not name.startswith("_"))
    for name in names:
        if name != "__builtins__":
            main.__dict__[name] = None
    gc.collect()
    return _flush()


def _flush() -> int:
    """Exit status 120 if what was written can't be, as the interpreter has it."""
    status = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:
            status = 120
            if stream is sys.stdout:
                sys.unraisablehook(
                    types.SimpleNamespace(
                        exc_type=type(error), exc_value=error, exc_traceback=None, err_msg=None, object=stream
                    )
                )
    return status
