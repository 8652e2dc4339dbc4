"""Safetensors files written tensor by tensor, into folders that hold a whole checkpoint or none."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator

import jax.numpy as jnp
import numpy as np

from taorl_jax.models.checkpoint.files import DTYPES, INDEX, SINGLE
from taorl_jax.training.durable_files import sync

GIGABYTE = 10**9
MAX_SHARD_BYTES = 5 * GIGABYTE
_UNFINISHED = ".unfinished"
_CONFIG = "config.json"
_CODES = {jnp.dtype(name): code for code, name in DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor to be written; `read` makes it when its turn has come."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    @property
    def bytes(self) -> int:
        """Size in the file."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


@contextlib.contextmanager
def replaced_checkpoint(folder) -> Iterator[Callable[[str], pathlib.Path]]:
    """Within it, files are written under names that no reader looks for; at its end they get their own.

    A folder that is cut off while files are written holds what it held before; one cut off while they are
    renamed has no config.json, without which nothing loads. Weights of the earlier checkpoint are removed.

    Yields:
      A function: name of a file -> the path to write it to.

    Raises:
      OSError: as the writing did, with the unfinished files removed.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _remove(folder.glob(f"*{_UNFINISHED}"))
    try:
        yield lambda name: folder / (name + _UNFINISHED)
        written = sorted(folder.glob(f"*{_UNFINISHED}"))
        for path in written:
            sync(path)
    except BaseException:
        _remove(folder.glob(f"*{_UNFINISHED}"))
        raise
    _remove([folder / _CONFIG, folder / INDEX, *folder.glob("*.safetensors")])
    for path in sorted(written, key=lambda path: path.name == _CONFIG + _UNFINISHED):
        path.rename(path.with_name(path.name.removesuffix(_UNFINISHED)))
    sync(folder)


def write_weights(
    path_of: Callable[[str], pathlib.Path], tensors: list[Tensor], max_bytes: int = MAX_SHARD_BYTES
):
    """Writes one file or, above `max_bytes`, several with an index, each tensor read as it is written."""
    files = [[]]
    for tensor in tensors:
        if files[-1] and sum(t.bytes for t in files[-1]) + tensor.bytes > max_bytes:
            files.append([])
        files[-1].append(tensor)
    if len(files) == 1:
        _write_file(path_of(SINGLE), tensors)
        return
    names = [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    for name, part in zip(names, files, strict=True):
        _write_file(path_of(name), part)
    index = {
        "metadata": {"total_size": sum(tensor.bytes for tensor in tensors)},
        "weight_map": {t.name: name for name, part in zip(names, files, strict=True) for t in part},
    }
    write_json(path_of(INDEX), index)


def write_json(path: pathlib.Path, value):
    """Indented JSON, as transformers writes it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_file(path: pathlib.Path, tensors: list[Tensor]):
    """The format: length of the header in eight bytes, header in JSON, then the tensors end to end."""
    header, start = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        offsets = [start, start := start + tensor.bytes]
        header[tensor.name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors:
            value = np.ascontiguousarray(tensor.read())
            if value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise ValueError(f"{tensor.name} is {value.dtype} {value.shape}, announced as {tensor}")
            file.write(value.reshape(-1).view(np.uint8))


def _remove(paths: Iterable[pathlib.Path]):
    for path in paths:
        path.unlink(missing_ok=True)
