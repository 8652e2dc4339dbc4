"""What an evaluation's folder is of: samples of two different evaluations never end up in one table."""

import hashlib
import json
import pathlib

from ml_collections import ConfigDict

from taorl_jax.config import flatten
from taorl_jax.errors import UserError
from taorl_jax.evaluation.benchmarks import Benchmark
from taorl_jax.evaluation.policy import EvaluatedPolicy
from taorl_jax.training.durable_files import write_atomically

# What decides the samples and their verdicts. Not K: a sample is the same whatever their number.
_DECISIVE = ("seed", "policy.", "data.prompt", "rollout.", "reward.extraction", "reward.wall_s")
_DECISIVE += ("reward.memory_mb", "sandbox.wall_s", "sandbox.memory_mb", "eval.temperature")
_DECISIVE += ("eval.top_k", "eval.top_p", "eval.min_p")
_OF_TRAINING = ("rollout.prompts", "rollout.samples", "rollout.refills", "rollout.temperature")
FILE = "evaluation.json"


def identity(config: ConfigDict, policy: EvaluatedPolicy) -> dict:
    """The settings and the policy that an evaluation's samples depend on, by name."""
    decisive = {
        name: value
        for name, value in flatten(config).items()
        if name.startswith(_DECISIVE) and name not in _OF_TRAINING
    }
    return decisive | {"policy": policy.identity()}


def default_folder(config: ConfigDict, policy: EvaluatedPolicy) -> pathlib.Path:
    """`evaluations/<name>-<digest of the identity>`: the same command finds its own folder again."""
    text = json.dumps(identity(config, policy), sort_keys=True, default=str)
    return pathlib.Path("evaluations") / f"{config.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def claim(
    folder: pathlib.Path, config: ConfigDict, policy: EvaluatedPolicy, benchmarks: dict[Benchmark, list[str]]
):
    """Records whose samples a folder holds, or checks that they are of this evaluation.

    Args:
      folder: made if need be.
      config: of the evaluation.
      policy: that is evaluated.
      benchmarks: those of this command, with the ids of problems that are too long to be attempted; a folder
        may gather more over several commands.

    Raises:
      UserError: another evaluation's samples are there; the message names what differs.
    """
    path = folder / FILE
    now = json.loads(json.dumps(identity(config, policy), default=str))
    known = json.loads(path.read_text()) if path.exists() else {"identity": now, "benchmarks": {}}
    differing = [name for name in now if known["identity"].get(name) != now[name]]
    for benchmark in benchmarks:
        before = known["benchmarks"].get(benchmark.name)
        if before is not None and before["digest"] != benchmark.digest:
            differing.append(f"the file of {benchmark.name}")
    if differing:
        raise UserError(
            f"--output {folder} holds samples of another evaluation ({', '.join(differing)} differ): name "
            "another folder"
        )
    for benchmark, not_attempted in benchmarks.items():
        known["benchmarks"][benchmark.name] = {
            "digest": benchmark.digest,
            "problems": [problem.id for problem in benchmark.problems],
            "not_attempted": not_attempted,
        }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(known, indent=2) + "\n").encode())


def read_claim(folder: pathlib.Path) -> dict[str, dict]:
    """Of each benchmark in an evaluation's folder its `digest`, `problems` and `not_attempted`.

    Raises:
      UserError: the folder is none.
    """
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"--baseline {folder} holds no evaluation ({FILE} is missing)")
    return json.loads(path.read_text())["benchmarks"]
