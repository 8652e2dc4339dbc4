"""The first run: a tiny policy learns to use a Python tool by TAO-RL, on a laptop's CPU, in minutes.

`--config experiments/quickstart.py` trains TAO-RL; `--config experiments/quickstart.py:arm=tir` a baseline.
"""

from taorl_jax.config import apply_argument, base_config


def get_config(argument=""):
    """The quickstart; `argument` is empty or `arm=NAME`."""
    c = base_config()
    c.name = "quickstart"
    c.policy.checkpoint = "experiments/quickstart_policy"
    c.policy.compute_dtype = "float32"
    c.policy.cache_dtype = "float32"
    c.data.prompt = "plain"  # the policy was made for these problems

    c.rollout.prompts = 16
    c.rollout.samples = 16
    c.rollout.refills = 1
    c.rollout.max_turns = 4
    c.rollout.prompt_tokens = 64
    c.rollout.turn_tokens = 64
    c.rollout.context_tokens = 192
    c.rollout.observation_tokens = 48
    c.rollout.slots = 32
    c.rollout.chunk = 8
    c.rollout.prefill_tokens = 64
    c.rollout.extend_rows = 16
    c.rollout.extend_tokens = 16

    c.sandbox.min_isolation = "weak"  # a first run works in any container, and prints the tier it got

    c.bonus.coefficient = 0.2  # strong enough to matter in a run this short

    c.train.steps = 20
    c.train.minibatches = 4
    c.train.micro_rows = 8
    c.train.remat = "none"  # memory is no matter at this size
    c.train.unroll_layers = True
    c.train.learning_rate = 3e-4
    c.train.decay_updates = 84

    c.eval.every = 5
    c.checkpoint.every = 5
    c.log.trajectories_every = 5
    return apply_argument(c, argument)
