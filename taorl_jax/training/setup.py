"""From a config to the parts that training and evaluation share, checked before anything is built."""

import dataclasses
import functools

import jax
from ml_collections import ConfigDict

from taorl_jax.config import validate
from taorl_jax.data.files import DataError
from taorl_jax.data.mixture import Mixture, parse_mixture
from taorl_jax.data.pipeline import heldout_prompts
from taorl_jax.data.prompt_format import PromptFormat, read_template
from taorl_jax.data.sources import FileProblems
from taorl_jax.data.tasks import ProceduralProblems
from taorl_jax.distributed.mesh import make_mesh, rollout_mesh
from taorl_jax.evaluation.heldout import HeldOut
from taorl_jax.models.model_config import ModelConfig, read_model_config
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.rollout.engine import Engine
from taorl_jax.rollout.sampling import Truncation
from taorl_jax.rollout.stopping import build_stop_table


@dataclasses.dataclass(frozen=True)
class Setup:
    """What stands before the first parameter is loaded."""

    config: ConfigDict
    model: ModelConfig
    sizes: dict
    mesh: jax.sharding.Mesh
    tokenizer: Tokenizer
    prompt_format: PromptFormat

    @functools.cached_property
    def engine(self) -> Engine:
        """The sampler."""
        c = self.config
        table = build_stop_table(self.tokenizer.token_bytes, self.model.vocab_size)
        mesh = rollout_mesh(self.mesh, c.mesh.rollout_tensor or c.mesh.tensor)
        truncation = Truncation(c.eval.top_k, c.eval.top_p, c.eval.min_p)
        return Engine(self.model, mesh, c.rollout, c.policy, table, self.tokenizer.stop_ids, truncation)

    @functools.cached_property
    def train_problems(self):
        """Random-access source of the training problems."""
        return _source(self.config, "train")

    @functools.cached_property
    def heldout(self) -> HeldOut:
        """The first `eval.problems` held-out problems."""
        source = _First(_source(self.config, "heldout"), self.config.eval.problems)
        return HeldOut(*heldout_prompts(source, self.prompt_format, self.config.rollout.prompt_tokens))


def prepare(config: ConfigDict) -> Setup:
    """Reads the policy's shape, tokenizer and data, and checks the config against them.

    Raises:
      UserError: naming the setting that can't work, and what would.
    """
    setup = prepare_policy(config)
    setup.sizes.update(
        {"training problems": len(setup.train_problems), "held-out problems": len(setup.heldout.prompts)}
    )
    return setup


def prepare_policy(config: ConfigDict) -> Setup:
    """The same without the data of a run: for benchmarks, which bring their own.

    Raises:
      UserError: naming the setting that can't work, and what would.
    """
    model = read_model_config(config.policy.checkpoint)
    sizes = validate(config, model, jax.device_count(), jax.process_count())
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    tokenizer = Tokenizer.load(config.policy.checkpoint)
    prompt_format = PromptFormat(tokenizer, read_template(config.data.prompt))
    return Setup(config, model, sizes, mesh, tokenizer, prompt_format)


def _source(config, split):
    setting = f"data.{split}"
    named = parse_mixture(config.data[split], setting)
    sources = tuple(_one_source(config, split, name, setting) for name, _ in named)
    return sources[0] if len(sources) == 1 else Mixture(sources, tuple(weight for _, weight in named))


def _one_source(config, split, name, setting):
    if name != "tasks":
        training = split == "train"
        source = FileProblems(
            name, setting=setting, deduplicate=training, max_refused=config.data.max_refused
        )
        if source[0].tests:
            raise DataError(
                f"{setting}: {name} holds programs, which --benchmarks evaluates; train on answers"
            )
        return source
    size = config.data.size if split == "train" else config.eval.problems
    return ProceduralProblems(split, size, seed=0)  # the same problems whatever the run's seed


class _First:
    """The first problems of a source."""

    def __init__(self, source, count: int):
        self._source, self._count = source, min(count, len(source))

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        return self._source[index]
