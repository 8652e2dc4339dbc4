"""A checkpoint folder into sharded device arrays, one shard of one parameter at a time."""

import collections
import concurrent.futures
import functools
import itertools
import math
import os

import jax
import numpy as np
from jax.sharding import Sharding

from taorl_jax.models.checkpoint.files import Weights, open_weights
from taorl_jax.models.checkpoint.names import Stored, stored, torch_shapes
from taorl_jax.models.model_config import read_model_config
from taorl_jax.models.transformer import abstract_params

# Read at once: small enough that the allocator gives the same memory again and again.
_PIECE_BYTES = 4 * 2**20
# A transposing copy is fastest when it writes whole cache lines and its rows stay in the cache.
_TRANSPOSED_ROWS = 32
_ALIGNMENT = 64


def load_params(folder, shardings, dtype=np.float32):
    """Loads a policy; every process reads only the shards of its own devices.

    The host holds one device's shard of one parameter at a time, in the type of the file, and fills it
    from the file piece by piece. A CPU device takes that memory over without copying it.

    Args:
      folder: Hugging Face layout (config.json, one or more *.safetensors of bfloat16, float16 or float32).
      shardings: a pytree of jax.sharding.Sharding like the scanned decoder's parameters.
      dtype: of the arrays made; casting happens on the devices.

    Raises:
      CheckpointError: a missing, unknown, mis-shaped or unreadable tensor or file, by name.
    """
    config = read_model_config(folder)
    shapes, _ = abstract_params(config)
    threads = concurrent.futures.ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0))))
    with open_weights(folder) as weights, threads:
        weights.require(torch_shapes(shapes, config.layers))

        def load(path, leaf, sharding):
            kind = stored(path, leaf.shape, config.layers)
            array = _load(weights, kind, leaf.shape, sharding, threads)
            return array if array.dtype == dtype else _cast(array, dtype)

        return jax.tree.map_with_path(load, shapes, shardings)


def _load(weights: Weights, kind: Stored, shape, sharding: Sharding, threads) -> jax.Array:
    """One parameter, in the type of its file; devices that hold the same shard share one reading of it."""
    devices_of = collections.defaultdict(list)
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(cut.indices(size)[:2] for cut, size in zip(index, shape, strict=True))
        devices_of[bounds].append(device)
    shards = []
    for bounds, devices in devices_of.items():
        part = _read(weights, kind, tuple(slice(*bound) for bound in bounds), threads)
        copies = [jax.device_put(part, device) for device in devices]
        shards += jax.block_until_ready(copies)
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def _read(weights: Weights, kind: Stored, index: tuple[slice, ...], threads) -> np.ndarray:
    """The part `index` of a parameter (its leading axis counts the layers if it is stacked)."""
    names, inner = (kind.names[index[0]], index[1:]) if kind.stacked else (kind.names, index)
    cut = kind.cut(inner)
    types = {weights.dtype(name) for name in names}
    part = _empty([axis.stop - axis.start for axis in index], types.pop() if len(types) == 1 else np.float32)
    places = dict(zip(names, map(kind.as_torch, part if kind.stacked else [part]), strict=True))
    rows = cut[0]
    row_bytes = part.nbytes // len(names) // (rows.stop - rows.start)
    step = max(_TRANSPOSED_ROWS, _PIECE_BYTES // row_bytes)

    def fill(piece):
        name, start = piece
        source = weights[name][(slice(start, min(start + step, rows.stop)), *cut[1:])]
        _copy(source, places[name][start - rows.start :][: len(source)])

    for _ in threads.map(fill, itertools.product(names, range(rows.start, rows.stop, step))):
        pass
    return part


def _copy(source: np.ndarray, target: np.ndarray):
    """Some rows at a time, since `target` may be transposed."""
    for start in range(0, len(source), _TRANSPOSED_ROWS):
        rows = slice(start, start + _TRANSPOSED_ROWS)
        target[rows] = source[rows]


def _empty(shape, dtype) -> np.ndarray:
    """Uninitialised memory, aligned so that a CPU device can take it as it is."""
    dtype = np.dtype(dtype)
    memory = np.empty(math.prod(shape) * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : len(memory) - _ALIGNMENT + start].view(dtype).reshape(shape)


@functools.partial(jax.jit, static_argnums=1)
def _cast(array, dtype):
    return array.astype(dtype)
