"""The folder of one run: made or continued, held by one process, with its config and its log file."""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import logging
import os
import pathlib
from collections.abc import Iterator

import absl.logging
from ml_collections import ConfigDict

from taorl_jax.config import ConfigError, flatten
from taorl_jax.training.durable_files import write_atomically

# Settings that may differ when a run goes on: they steer how long, how often and where, and leave the
# numbers of a step as they are. An entry that ends in a dot stands for everything below it.
MAY_CHANGE = (
    "name",
    "train.steps",
    "checkpoint.",
    "log.",
    "benchmarks.",
    "reward.workers",
    "sandbox.urls",
    "sandbox.min_isolation",
    "sandbox.lanes",
    "sandbox.concurrency",
    "sandbox.patience_s",
    "sandbox.call_limit_s",
    "sandbox.max_failed_share",
)

# What may lie in a folder in which a run was killed before its config was written.
_OURS = {"lock", "train.log", "config.json.unfinished"}


class WorkdirRefused(ConfigError):
    """The workdir cannot be used for this run; the message says why and how to go on."""


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """Where the files of a run stand.

    Attributes:
      path: the folder itself.
      continued: whether it held a run of this config already.
      host: of the process; on all but the first the logs have its number.
    """

    path: pathlib.Path
    continued: bool
    host: int = 0

    config = property(lambda self: self.path / "config.json")
    log = property(lambda self: self._log("train"))
    sandbox_log = property(lambda self: self._log("sandbox"))
    metrics = property(lambda self: self.path / "metrics.jsonl")
    checkpoints = property(lambda self: self.path / "checkpoints")
    trajectories = property(lambda self: self.path / "trajectories")
    curves = property(lambda self: self.path / "curves.png")

    def _log(self, name: str) -> pathlib.Path:
        return self.path / (f"{name}.log" if self.host == 0 else f"{name}-{self.host}.log")

    def recorded_step(self, step: int) -> pathlib.Path:
        """The file with the experience of a step."""
        return self.path / "replay" / f"step_{step:06d}.arrow"


@contextlib.contextmanager
def open_run(
    workdir: str | None, config: ConfigDict, name: str, runs: pathlib.Path = pathlib.Path("runs")
) -> Iterator[RunDirectory]:
    """Makes or continues a run's folder and holds it, with logging to its `train.log`, until the block ends.

    On several hosts this is for the first host only; the others follow with `follow_run`.

    Args:
      workdir: folder of the run, made if need be; None: a fresh `<runs>/<name>-<timestamp>`.
      config: the resolved config, saved as `config.json`.
      name: short name of the run.
      runs: parent of fresh folders.

    Raises:
      WorkdirRefused: the folder holds a run of another config, belongs to something else, or another
        process is writing in it.
    """
    path = _fresh_folder(runs, name) if workdir is None else pathlib.Path(workdir)
    if path.exists() and not path.is_dir():
        raise WorkdirRefused(f"--workdir {path} is a file; name a folder.")
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        run = RunDirectory(path, continued=(path / "config.json").exists())
        text = config.to_json(indent=2, sort_keys=True) + "\n"
        if run.continued:
            _require_same_config(run.config, text)
        elif foreign := sorted(set(os.listdir(path)) - _OURS):
            raise WorkdirRefused(
                f"--workdir {path} holds other files ({', '.join(foreign[:3])}) and no config.json of a run; "
                "name another folder, or one that does not exist yet."
            )
        write_atomically(run.config, text.encode())
        with _logging_to(run.log):
            yield run


@contextlib.contextmanager
def follow_run(path: pathlib.Path, host: int) -> Iterator[RunDirectory]:
    """The folder of a run that the first host holds, on another; it has to be on a disk that hosts share.

    Raises:
      WorkdirRefused: the folder is not there.
    """
    run = RunDirectory(path, continued=True, host=host)
    if not run.config.is_file():
        raise WorkdirRefused(f"--workdir {path} is not the first host's: name one on a disk that hosts share")
    with _logging_to(run.log):
        yield run


def config_differences(saved: ConfigDict, current: ConfigDict) -> dict[str, tuple]:
    """Dotted name -> (saved, current) value of settings that may not differ and do; "absent" if missing."""
    saved_flat, current_flat = flatten(saved), flatten(current)
    differences = {}
    for key in sorted(saved_flat.keys() | current_flat.keys()):
        pair = saved_flat.get(key, "absent"), current_flat.get(key, "absent")
        if pair[0] != pair[1] and not _may_change(key):
            differences[key] = pair
    return differences


def _may_change(key):
    return any(key.startswith(entry) if entry.endswith(".") else key == entry for entry in MAY_CHANGE)


def _require_same_config(config_path, text):
    saved, current = (ConfigDict(json.loads(config)) for config in (config_path.read_text(), text))
    differences = config_differences(saved, current)
    if differences:
        free = ", ".join(entry + "*" if entry.endswith(".") else entry for entry in MAY_CHANGE)
        lines = [f"  {key}: {there!r} there, {here!r} now" for key, (there, here) in differences.items()]
        raise WorkdirRefused(
            f"--workdir {config_path.parent} holds a run of another config:\n"
            + "\n".join(lines)
            + "\nGive that run's values to go on with it, or name another --workdir. "
            + f"Only these may change: {free}."
        )


def _fresh_folder(runs, name):
    base = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    attempt = 1
    while True:
        path = runs / (base if attempt == 1 else f"{base}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            attempt += 1
        else:
            return path


@contextlib.contextmanager
def _locked(path):
    """Holds the folder's lock, which the system releases however the process ends."""
    with open(path / "lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise WorkdirRefused(
                f"Process {lock.read().strip()} is writing in --workdir {path}. "
                "Wait until it ends, stop it, or name another folder."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextlib.contextmanager
def _logging_to(path):
    """Sends everything logged, warnings included, to a file and keeps it off the console."""
    root = logging.getLogger()
    before = list(root.handlers), root.level
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    absl.logging.set_verbosity(absl.logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else one line a snippet
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:], root.level = before[0], before[1]
        handler.close()
