"""Checkpoints on orbax: one directory a step, written in the background, whole or absent."""

import contextlib
import pathlib
import shutil
from typing import Any

import jax
import orbax.checkpoint as ocp

from taorl_jax.errors import UserError


class CheckpointFailed(UserError):
    """A checkpoint could not be written; the message holds the directory, the free space and the remedy."""


class OtherArchitecture(UserError, ValueError):
    """A checkpoint does not hold the arrays that the config's policy has."""


class Checkpoints:
    """The checkpoints of one run, each holding the device state and the host's.

    The caller flushes the metrics up to a step before it saves that step, so that no checkpoint is ahead
    of its metrics. Directories that a killed process left unfinished are deleted on construction, unless
    it is for reading only.
    """

    def __init__(self, directory: pathlib.Path, keep: int | None):
        """Opens the directory, making it if need be.

        Args:
          directory: absolute, or relative to the current directory.
          keep: how many of the latest checkpoints stay on the disk, at least 1; None: for reading
            only, which leaves alone what a running training is writing in the same directory.
        """
        reading_only = keep is None
        if not reading_only and keep < 1:
            raise ValueError(f"keep is {keep}; at least one checkpoint must be kept to resume from")
        self._directory = pathlib.Path(directory).absolute()
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=ocp.checkpoint_managers.LatestN(keep),
                cleanup_tmp_directories=not reading_only,
                create=not reading_only,
                read_only=reading_only,
            ),
        )

    def latest_step(self) -> int | None:
        """The latest step saved or being saved; None if there is none."""
        return self._manager.latest_step()

    def save(self, step: int, state: Any, host_state: dict) -> None:
        """Copies the state off the devices and returns; the writing goes on in the background.

        Args:
          step: number of updates made, above every step saved before.
          state: pytree of jax arrays.
          host_state: what JSON can hold: state of the data iterator, seed and the like.

        Raises:
          CheckpointFailed: this save or the one before it could not be written.
          ValueError: the step is not above the latest one.
        """
        latest = self.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(f"step {step} does not come after step {latest}, the latest checkpoint")
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state), host_state=ocp.args.JsonSave(host_state)
        )
        with self._explaining_failures():
            self._manager.save(step, args=items)

    def restore(self, step: int, abstract_state: Any) -> tuple[Any, dict]:
        """Reads a checkpoint, every device only its own shards.

        Args:
          step: a step that was saved.
          abstract_state: pytree of `jax.ShapeDtypeStruct` with shardings, of the structure that was saved;
            its shardings may differ from those of the run that saved.

        Returns:
          The state and the host state.

        Raises:
          FileNotFoundError: there is no checkpoint of this step.
          OtherArchitecture: the arrays saved have other names or shapes.
        """
        self._require_shapes(step, abstract_state)
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract_state), host_state=ocp.args.JsonRestore()
        )
        restored = self._manager.restore(step, args=items)
        return restored["state"], restored["host_state"]

    def restore_params(self, step: int, abstract_params: Any) -> Any:
        """Reads the parameters of a checkpoint, every device only its own shards, and nothing else of it.

        Args:
          step: a step that was saved.
          abstract_params: pytree of `jax.ShapeDtypeStruct` with shardings.

        Raises:
          FileNotFoundError: there is no checkpoint of this step.
          OtherArchitecture: the parameters saved have other names or shapes.
        """
        self._require_shapes(step, abstract_params, "params")
        where = jax.tree.map(
            lambda leaf: ocp.ArrayRestoreArgs(
                sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
            ),
            abstract_params,
        )
        wanted = ocp.args.PyTreeRestore(
            {"params": abstract_params}, restore_args={"params": where}, partial_restore=True
        )
        # The manager reads an item in the one way in which it was first saved or read: whole.
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(self._directory / str(step) / "state", args=wanted)["params"]

    def _require_shapes(self, step: int, abstract_tree: Any, part: str | None = None):
        if step not in self._manager.all_steps():
            raise FileNotFoundError(f"{self._directory} has no checkpoint of step {step}")
        tree = ocp.PyTreeCheckpointHandler().metadata(self._directory / str(step) / "state").tree
        saved, wanted = _shapes(tree if part is None else tree[part]), _shapes(abstract_tree)
        different = sorted(
            name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name)
        )
        if different:
            name = different[0]
            raise OtherArchitecture(
                f"step {step} of {self._directory} is of another architecture than policy.checkpoint; of "
                f"{len(different)} differences, {name} is {saved.get(name, 'absent')} there, "
                f"{wanted.get(name, 'absent')} in the config. Name the policy that its run began from"
            )

    def wait(self) -> None:
        """Returns when the last save is on the disk.

        Raises:
          CheckpointFailed: it could not be written.
        """
        with self._explaining_failures():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save and ends the background threads.

        Raises:
          CheckpointFailed: the last save could not be written.
        """
        with self._explaining_failures():
            self._manager.close()

    @contextlib.contextmanager
    def _explaining_failures(self):
        try:
            yield
        # tensorstore, which writes the arrays, raises ValueError for a full or failing disk.
        except (OSError, ValueError) as error:
            # orbax forgets a step at the moment that its successor is begun; the disk knows better.
            self._manager.reload()
            free_mb = shutil.disk_usage(self._directory).free / 2**20
            latest = self.latest_step()
            kept = "no checkpoint is complete yet" if latest is None else f"step {latest} is intact"
            raise CheckpointFailed(
                f"Saving a checkpoint in {self._directory} failed, with {free_mb:,.0f} MB free there; "
                f"{kept}. Make room (or lower the number of checkpoints kept) and give the same command with "
                f"this workdir to go on from it. The cause: {error}"
            ) from error


def abstract(state: Any) -> Any:
    """Shapes, dtypes and shardings of a pytree of jax arrays, as `Checkpoints.restore` takes them."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Names with slashes between -> shapes."""
    leaves = jax.tree.leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves
    }
