"""The safetensors files of a folder: which there are, which tensor is in which, and whether they fit."""

import contextlib
import json
import pathlib
import re
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import safetensors

from taorl_jax.models.model_config import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}

# Tables that old Llama checkpoints carry along; they follow from config.json, which alone is believed.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_COMPARED_ROWS = 4096


class Weights:
    """The tensors of a folder, mapped into memory and read part by part."""

    def __init__(self, folder, handles: dict[pathlib.Path, safetensors.safe_open]):
        """Takes open files; a tensor in two of them raises CheckpointError."""
        self._folder = folder
        self._handles = handles
        self.file_of: dict[str, pathlib.Path] = {}
        for path, handle in handles.items():
            for name in handle.keys():  # noqa: SIM118 (a handle is no mapping)
                if name in self.file_of:
                    raise CheckpointError(
                        f"policy.checkpoint: {name} is in both {self.file_of[name]} and {path.name}; "
                        "remove the file that does not belong to this checkpoint"
                    )
                self.file_of[name] = path

    def __getitem__(self, name: str):
        """The tensor, sliceable; its parts are read when they are asked for."""
        return self._handles[self.file_of[name]].get_slice(name)

    def dtype(self, name: str) -> np.dtype:
        """Type of a tensor that `require` has let pass."""
        return jnp.dtype(DTYPES[self[name].get_dtype()])

    def require(self, wanted: dict[str, tuple[int, ...]]):
        """Raises CheckpointError unless the tensors are those of `wanted`, in a float type that we read.

        Two extras are let pass: rotary tables, and in a tied checkpoint a copy of the embedding under the
        unembedding's name.
        """
        extra = {name for name in self.file_of.keys() - wanted if not _DERIVED.fullmatch(name)}
        if "lm_head.weight" in extra and "model.embed_tokens.weight" in wanted:
            self._require_tied()
            extra.remove("lm_head.weight")
        faults = {
            "missing": sorted(wanted.keys() - self.file_of),
            "unknown": sorted(extra),
            "of another shape": [
                f"{name} {tuple(self[name].get_shape())}, not {shape}"
                for name, shape in wanted.items()
                if name in self.file_of and tuple(self[name].get_shape()) != shape
            ],
            "of a type other than bfloat16, float16 and float32": [
                f"{name} {self[name].get_dtype()}"
                for name in wanted
                if name in self.file_of and self[name].get_dtype() not in DTYPES
            ],
        }
        told = [f"{kind}: {some(names)}" for kind, names in faults.items() if names]
        if told:
            raise CheckpointError(
                f"policy.checkpoint: {self._folder} does not fit its config.json; {'; '.join(told)}"
            )

    def _require_tied(self):
        embedding, copy = self["model.embed_tokens.weight"], self["lm_head.weight"]
        rows = embedding.get_shape()[0]
        cuts = [slice(i, min(i + _COMPARED_ROWS, rows)) for i in range(0, rows, _COMPARED_ROWS)]
        same = embedding.get_shape() == copy.get_shape() and all(
            np.array_equal(embedding[cut], copy[cut]) for cut in cuts
        )
        if not same:
            raise CheckpointError(
                f"policy.checkpoint: {self._folder} has an lm_head.weight that differs from its embedding, "
                'but its config.json ties the two; set "tie_word_embeddings": false in it'
            )


@contextlib.contextmanager
def open_weights(folder) -> Iterator[Weights]:
    """Opens every file of a folder: those that its index names, or else all `*.safetensors`.

    Raises:
      CheckpointError: there is none, one is missing, cut short or no safetensors file, or a tensor is not
        in the file that the index says, or in two.
    """
    folder = pathlib.Path(folder)
    index = _read_index(folder)
    files = sorted(folder.glob("*.safetensors")) if index is None else sorted(set(index.values()))
    if not files:
        raise CheckpointError(
            f"policy.checkpoint: {folder} has no *.safetensors file; save the model with "
            "`save_pretrained`, or convert it with `python -m tools.policy convert`"
        )
    with contextlib.ExitStack() as stack:
        weights = Weights(folder, {path: stack.enter_context(_open(path)) for path in files})
        for name, path in (index or {}).items():
            if weights.file_of.get(name) != path:
                raise CheckpointError(
                    f"policy.checkpoint: {INDEX} of {folder} puts {name} into {path.name}, "
                    "where it is not; copy the checkpoint again"
                )
        yield weights


def _read_index(folder: pathlib.Path) -> dict[str, pathlib.Path] | None:
    """Tensor name -> file; None without an index."""
    path = folder / INDEX
    if not path.is_file():
        return None
    try:
        index = {name: folder / file for name, file in json.loads(path.read_text())["weight_map"].items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"policy.checkpoint: {path} is no index of tensors ({error!r})") from error
    if (folder / SINGLE).is_file() and folder / SINGLE not in index.values():
        raise CheckpointError(
            f"policy.checkpoint: {folder} has both {SINGLE} and {INDEX}, which does not name it; remove one"
        )
    return index


def _open(path: pathlib.Path):
    if not path.is_file():
        raise CheckpointError(f"policy.checkpoint: {path}, which {INDEX} names, is missing; copy it too")
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError) as error:
        with open(path, "rb") as file:
            pointer = file.read(40).startswith(b"version https://git-lfs")
        remedy = "it is a Git LFS pointer: `git lfs pull` fetches the file" if pointer else "copy it again"
        raise CheckpointError(f"policy.checkpoint: {path} can't be read ({error}); {remedy}") from error


def some(names: list[str], shown: int = 5) -> str:
    """The first few of a list, and how many more there are."""
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest
