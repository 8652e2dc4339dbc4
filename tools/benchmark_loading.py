"""Measures what loading a checkpoint costs beside the parameters themselves, on one CPU device.

    python -m tools.benchmark_loading --gigabytes 2

A synthetic Qwen2 checkpoint of that size in bfloat16 is written to a temporary folder and loaded as
bfloat16. Printed as JSON: its size, by how much anonymous resident memory grew at most and in the end
(`RssAnon`; mapped pages of the file are not counted), and the best of three times for loading and for
reading the files into memory, all with the files in the page cache.

On one core of an AMD EPYC: 2.139 GB of files, memory 2.128 GB more at most, loaded in 0.84 s, read in 0.98 s.
"""

import argparse
import contextlib
import gc
import json
import math
import pathlib
import tempfile
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

from taorl_jax.models.checkpoint import load_params
from taorl_jax.models.checkpoint.names import torch_shapes
from taorl_jax.models.checkpoint.write import Tensor, replaced_checkpoint, write_json, write_weights
from taorl_jax.models.model_config import read_model_config
from taorl_jax.models.transformer import abstract_params

LAYERS = 12
SPARE = 2**20


def config_of(size: int) -> dict:
    """A `config.json` with about `size` bytes of bfloat16 weights, in the proportions of Qwen2.5-1.5B."""
    # A layer has 2 * (1 + 1/6) * hidden^2 values in its attention and 3 * 5.83 * hidden^2 in its MLP.
    hidden = 192 * max(1, round(math.sqrt(size / 2 / LAYERS / 20) / 192))
    return {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": int(5.83 * hidden),
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }


def write_checkpoint(folder: pathlib.Path, size: int):
    """Random bits of moderate exponent; two files, so that the index is used."""
    with replaced_checkpoint(folder) as path_of:
        write_json(path_of("config.json"), config_of(size))
    config = read_model_config(folder)
    shapes = torch_shapes(abstract_params(config)[0], config.layers)
    rng = np.random.default_rng(0)

    def values(shape):
        return rng.integers(0x3C00, 0x3E00, shape, dtype=np.uint16).view(jnp.bfloat16)

    tensors = [Tensor(n, s, jnp.dtype(jnp.bfloat16), lambda s=s: values(s)) for n, s in shapes.items()]
    total = sum(tensor.bytes for tensor in tensors)
    with replaced_checkpoint(folder) as path_of:
        write_json(path_of("config.json"), config_of(size))
        write_weights(path_of, tensors, max_bytes=total // 2 + SPARE)


def load(folder: pathlib.Path):
    """The parameters as bfloat16 on the first device."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes, _ = abstract_params(read_model_config(folder))
    return jax.block_until_ready(load_params(folder, jax.tree.map(lambda _: device, shapes), jnp.bfloat16))


def anonymous_bytes() -> int:
    """Resident memory of this process that is no file's."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


@contextlib.contextmanager
def watched_memory():
    """Yields a list whose only entry is the most anonymous memory seen within the block, in bytes."""
    peak, done = [anonymous_bytes()], threading.Event()

    def watch():
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        peak[0] = max(peak[0], anonymous_bytes())


def seconds(action) -> float:
    """How long it takes, the best of three times."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return round(min(times), 3)


def measure(size: int) -> dict:
    """Writes, loads and reads a checkpoint of `size` bytes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_checkpoint(folder, size)
        files = list(folder.glob("*.safetensors"))
        jax.devices()
        gc.collect()
        before = anonymous_bytes()
        with watched_memory() as peak:
            params = load(folder)
        after = anonymous_bytes()
        del params
        return {
            "file_bytes": sum(path.stat().st_size for path in files),
            "peak_growth_bytes": peak[0] - before,
            "final_growth_bytes": after - before,
            "load_seconds": seconds(lambda: load(folder)),
            "read_seconds": seconds(lambda: [path.read_bytes() for path in files]),
        }


def main():
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    print(json.dumps(measure(int(parser.parse_args().gigabytes * 1e9))))


if __name__ == "__main__":
    main()
