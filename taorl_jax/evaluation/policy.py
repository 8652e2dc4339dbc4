"""Which policy is evaluated: a Hugging Face folder, a run's latest checkpoint, or one of its checkpoints."""

import contextlib
import dataclasses
import pathlib

from ml_collections import ConfigDict

from taorl_jax.errors import UserError
from taorl_jax.training.checkpoints import Checkpoints
from taorl_jax.training.learner import Learner


@dataclasses.dataclass(frozen=True)
class EvaluatedPolicy:
    """Where the weights are.

    Attributes:
      folder: Hugging Face folder of the shape, the tokenizer and, without a run, the weights.
      checkpoints: folder of a run's checkpoints; None: the weights are those of `folder`.
      step: of the checkpoint; 0 without a run.
    """

    folder: str
    checkpoints: pathlib.Path | None = None
    step: int = 0

    def __str__(self) -> str:
        return self.folder if self.checkpoints is None else f"step {self.step} of {self.checkpoints.parent}"

    def identity(self) -> str:
        """Differs between policies; for files also their sizes and times of change."""
        if self.checkpoints is not None:
            return f"{self.checkpoints.absolute()}/{self.step}"
        weights = sorted(pathlib.Path(self.folder).glob("*.safetensors"))
        states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in weights]
        return f"{pathlib.Path(self.folder).absolute()} {states}"

    def params(self, learner: Learner):
        """The parameters, in their training placement."""
        if self.checkpoints is None:
            return learner.load(self.folder).params
        with contextlib.closing(Checkpoints(self.checkpoints, keep=None)) as checkpoints:
            return checkpoints.restore_params(self.step, learner.abstract_state().params)


def find_policy(checkpoint: str | None, config: ConfigDict) -> EvaluatedPolicy:
    """The policy that a path names.

    Args:
      checkpoint: a Hugging Face folder, a run's folder, or `<run>/checkpoints/<step>`; None: the config's
        initial policy.
      config: of the run, for the policy's shape and tokenizer.

    Raises:
      UserError: the path is none of these, or the run has no finished checkpoint.
    """
    if checkpoint is None:
        return EvaluatedPolicy(config.policy.checkpoint)
    path = pathlib.Path(checkpoint)
    if (path / "tokenizer.json").is_file():
        return EvaluatedPolicy(checkpoint)
    if path.parent.name == "checkpoints" and path.name.isdigit() and path.is_dir():
        return EvaluatedPolicy(config.policy.checkpoint, path.parent, int(path.name))
    if not (path / "checkpoints").is_dir():
        raise UserError(
            f"--checkpoint {checkpoint} is no Hugging Face folder (with tokenizer.json), no run (with "
            "checkpoints/) and no <run>/checkpoints/<step>"
        )
    with contextlib.closing(Checkpoints(path / "checkpoints", keep=None)) as checkpoints:
        step = checkpoints.latest_step()
    if step is None:
        raise UserError(f"--checkpoint {checkpoint} has no finished checkpoint yet")
    return EvaluatedPolicy(config.policy.checkpoint, path / "checkpoints", step)
