"""The hosts of one run: joining them, and agreeing on what each of them did.

Every host runs the same command (JAX's multi-controller runtime). What only one host knows, such as the
episodes it sampled, an error or a signal, reaches the others through the functions below, which all hosts
call together. On a single host they cost nothing.
"""

import contextlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from taorl_jax.distributed.accelerators import find_accelerators
from taorl_jax.errors import Interrupted, UserError

T = TypeVar("T")
PIECE = 2**22  # most bytes of each host in one exchange: all of them pass through each device's memory


class HostFailed(UserError):
    """Another host could not go on; the message says which, and why."""


def initialize(coordinator: str | None, processes: int | None, process: int | None):
    """Joins the hosts of a run, before anything else touches JAX.

    On TPU pods no argument is needed. Elsewhere every process is given the address of the first, their
    number and its own place among them; under Slurm, Open MPI or Kubernetes "auto" finds all three.

    Raises:
      UserError: the arguments do not go together, or the hosts of a TPU pod could not be found.
    """
    if coordinator == "auto":
        jax.distributed.initialize()
    elif coordinator is not None:
        if processes is None or process is None:
            raise UserError("--coordinator=HOST:PORT goes with --processes=N and --process=0 to N-1")
        jax.distributed.initialize(coordinator, processes, process)
    elif processes is not None or process is not None:
        raise UserError("--processes and --process go with --coordinator=HOST:PORT, that of process 0")
    elif _on_tpu():
        _join_tpu_pod()


def _on_tpu() -> bool:
    chosen = jax.config.jax_platforms or ""
    return "cpu" not in chosen.split(",")[:1] and any(a.backend == "tpu" for a in find_accelerators())


def _join_tpu_pod():
    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        # Without the metadata of a Cloud TPU the runtime itself still knows whether it is one of several.
        if jax.process_count() > 1:
            raise UserError(
                f"this is one of {jax.process_count()} hosts of a TPU pod, and they could not be joined "
                f"({error}); give --coordinator=HOST:PORT --processes=N --process=I on every host"
            ) from error


def count() -> int:
    """How many hosts the run has."""
    return jax.process_count()


def index() -> int:
    """The place of this host among the hosts."""
    return jax.process_index()


def is_first() -> bool:
    """Whether this host is the one that writes what is written once."""
    return jax.process_index() == 0


def share(items: list[T], number: Callable[[T], int]) -> list[T]:
    """The part of this host: the items whose number is its own place, modulo the number of hosts."""
    return [item for item in items if number(item) % jax.process_count() == jax.process_index()]


def all_gather(value: T) -> list[T]:
    """What every host passed, in the order of hosts; anything that can be pickled."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(len(data), np.int32)).tolist()
    pieces = []
    for begin in range(0, max(sizes), PIECE):
        # Powers of two, so that the exchanges of a run have few shapes.
        length = min(PIECE, 1 << max(12, (max(sizes) - begin - 1).bit_length()))
        padded = np.zeros(length, np.uint8)
        piece = data[begin : begin + length]
        padded[: len(piece)] = piece
        pieces.append(multihost_utils.process_allgather(padded))
    data_HxN = np.concatenate(pieces, axis=1)
    return [pickle.loads(data_N[:size].tobytes()) for data_N, size in zip(data_HxN, sizes, strict=True)]


def on_all(work: Callable[[], T]) -> T:
    """Does this host's part of something; returns its result once every host has finished its own.

    So all hosts go on, or none.

    Raises:
      Interrupted, HostFailed, RuntimeError: another host was asked to stop, met a UserError, or crashed.
        What this host's own part raises is raised as it is.
    """
    if jax.process_count() == 1:
        return work()
    result = own = None
    try:
        result = work()
    except Exception as error:
        own = error
    outcomes = all_gather(None if own is None else (_kind(own), str(own) or repr(own)))
    if own is not None:
        raise own
    failures = [(*outcome, host) for host, outcome in enumerate(outcomes) if outcome is not None]
    for kind in (RuntimeError, HostFailed, Interrupted):
        for failed, message, host in failures:
            if failed is kind:
                raise kind(f"host {host}: {message}")
    return result


def _kind(error: Exception) -> type[Exception]:
    """What an error on one host is to the others."""
    if isinstance(error, Interrupted):
        return Interrupted
    return HostFailed if isinstance(error, UserError) else RuntimeError


def on_first(work: Callable[[], T]) -> T | None:
    """Does something on the first host while the others wait; None on those. Raises as `on_all`."""
    return on_all(work if is_first() else lambda: None)


def sums(counts: dict[str, float]) -> dict[str, float]:
    """Sums over the hosts, by name."""
    by_host = all_gather(counts)
    return {name: sum(host[name] for host in by_host) for name in counts}


@contextlib.contextmanager
def not_waiting_after_a_crash():
    """Ends the process at once when what is inside crashes: JAX's own exit would wait for the other hosts.

    They are waiting for this one, and are ended by JAX's heartbeat when it is gone.
    """
    try:
        yield
    except (UserError, OSError, KeyboardInterrupt):
        raise
    except Exception:
        if jax.process_count() == 1:
            raise
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
