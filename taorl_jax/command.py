"""What the commands share: flags into a config, and errors into messages."""

import errno
import itertools
import os
import pathlib
import runpy
import sys
from collections.abc import Callable

from absl import flags
from ml_collections import ConfigDict, config_flags
from rich.console import Console

from taorl_jax.config import ConfigError, flatten, nearest_key
from taorl_jax.errors import UserError

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Config file, e.g. experiments/quickstart.py or experiments/quickstart.py:arm=tir."
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    'On several hosts: HOST:PORT of process 0, or "auto" under Slurm, Open MPI, Kubernetes. TPU pods: omit.',
)
_PROCESSES = flags.DEFINE_integer("processes", None, "How many processes the run has, with --coordinator.")
_PROCESS = flags.DEFINE_integer("process", None, "Which of them this is, from 0, with --coordinator.")
_PREFIX = "--config."


def run(main: Callable[[ConfigDict, Console], None]):
    """Parses the command line and calls `main`; errors of the user end it with a message, status 1."""
    # It says on import that PyTorch is missing, which is how we want it.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    console = Console()
    try:
        config = parse(sys.argv)
        from taorl_jax.distributed import hosts

        hosts.initialize(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
        with hosts.not_waiting_after_a_crash():
            main(config, console)
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        _fail(
            f"no room on the disk ({error}). The last checkpoint is intact: make room, then give the same "
            "command with the same --workdir to go on"
        )


def parse(argv: list[str]) -> ConfigDict:
    """The config file with the overrides of the command line.

    Raises:
      ConfigError: an unknown flag or setting (with the nearest one), or a value of another type.
    """
    _check_names(argv)
    try:
        rest = flags.FLAGS(argv)
    except (flags.Error, TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if len(rest) > 1:
        raise ConfigError(f"{rest[1]}: unexpected; settings are written --config.section.name=value")
    return _CONFIG.value


def _check_names(argv: list[str]):
    """Refuses unknown settings by itself, since ml_collections ends in a bare KeyError for them."""
    joined = [argument.removeprefix("--config=") for argument in argv if argument.startswith("--config=")]
    apart = [value for flag, value in itertools.pairwise(argv) if flag == "--config"]
    if not joined + apart:
        raise ConfigError("name a config: --config experiments/quickstart.py")
    path, _, argument = (joined + apart)[0].partition(":")
    if not pathlib.Path(path).is_file():
        raise ConfigError(f"--config {path}: no such file; the configs are in experiments/")
    config = runpy.run_path(path)["get_config"](argument)
    for argument in argv:
        name = argument.removeprefix(_PREFIX).partition("=")[0]
        if argument.startswith(_PREFIX) and name not in flatten(config):
            nearest = nearest_key(name, config)
            raise ConfigError(f"{_PREFIX}{name}: no such setting; did you mean {_PREFIX}{nearest}?")


def _fail(message: str):
    escaped = message.replace("[", "\\[")
    Console(stderr=True).print(f"[bold red]error:[/] {escaped}", highlight=False, soft_wrap=True)
    sys.exit(1)
