"""The base config, the paper's arms as deltas on it, and the checks made before any device work."""

import difflib
import math

from ml_collections import ConfigDict

from taorl_jax.errors import UserError
from taorl_jax.models.model_config import ModelConfig


class ConfigError(UserError, ValueError):
    """A setting that can't work; the message names it and the way out."""


def base_config() -> ConfigDict:
    """Every setting with the paper's value where it has one; experiments override a handful."""
    c = ConfigDict()
    c.name = "taorl"  # of the run; names its directory when no --workdir is given
    c.arm = "taorl"  # which arm of the paper this is: a key of ARMS
    c.seed = 0  # of everything random in the run

    c.policy = ConfigDict()
    c.policy.checkpoint = ""  # folder of the initial policy, Hugging Face layout
    c.policy.compute_dtype = "bfloat16"  # of matrix products; float32 on CPU
    c.policy.cache_dtype = "bfloat16"  # of the KV cache
    c.policy.attention = "auto"  # in training: "xla", "splash" (TPU), "cudnn" (GPU), or by the platform

    c.data = ConfigDict()
    c.data.train = "tasks"  # "tasks" (procedural), a data file, or a mixture, "a.jsonl:3,tasks:1"
    c.data.heldout = "tasks"  # same; evaluated, never trained on
    c.data.prompt = "tool"  # around a problem: "tool" (how to use Python), "plain", or a file with {problem}
    c.data.size = 100_000  # problems in the procedural training split
    c.data.max_refused = 0.0  # share of a file's rows that may be malformed; they are left out and named

    c.rollout = ConfigDict()
    c.rollout.prompts = 256  # groups wanted for one step's update
    c.rollout.samples = 16  # G: episodes of a prompt
    c.rollout.refills = 2  # at most so many further draws when filters leave too few groups
    c.rollout.temperature = 1.0  # T of the sampling distribution softmax(logits / T)
    c.rollout.max_turns = 5  # policy segments in an episode
    c.rollout.prompt_tokens = 4096  # longest prompt; longer ones are dropped and counted
    c.rollout.turn_tokens = 4000  # most tokens that the policy writes in a turn
    c.rollout.episode_tokens = 0  # most that it writes in all turns together; 0: as many as fit
    c.rollout.context_tokens = 8000  # prompt + all turns + observations
    c.rollout.observation_chars = 512  # of a tool's output: its two ends are kept
    c.rollout.observation_tokens = 256  # then cut to so many tokens
    c.rollout.valid_call = "sane"  # "sane": exit code 0; "released": only stdout, and stderr hides it
    c.rollout.slots = 256  # episodes that decode at once
    c.rollout.chunk = 32  # decode steps between two looks of the host
    c.rollout.cache_bucket = 1024  # tokens: least length of the cache, which doubles as episodes grow
    c.rollout.prefill_rows = 16  # prompts prefilled in one call
    c.rollout.prefill_tokens = 256  # tokens of each that one call runs
    c.rollout.extend_rows = 32  # observations appended in one call
    c.rollout.extend_tokens = 64  # tokens of each that one call appends
    c.rollout.rerolls = 1  # of an episode whose snippet the sandbox could not run; then it is dropped

    c.sandbox = ConfigDict()
    c.sandbox.urls = ()  # of running services; empty: one is started and stopped with the command
    c.sandbox.min_isolation = "medium"  # least tier to train with: "strong", "medium" or "weak"
    c.sandbox.lanes = 0  # snippets at once in a service of ours; 0: one a core
    c.sandbox.concurrency = 256  # requests in flight
    c.sandbox.wall_s = 3.0  # seconds that a snippet may run
    c.sandbox.memory_mb = 512  # MiB that a snippet may use
    c.sandbox.patience_s = 120.0  # seconds an outage is waited out before the run stops
    c.sandbox.call_limit_s = 300.0  # seconds, queue included, after which a snippet counts as lost
    c.sandbox.max_failed_share = 0.02  # of a step's episodes dropped for the sandbox's faults; above: stop

    c.reward = ConfigDict()
    c.reward.extraction = "boxed"  # "boxed": the policy's own box; "paper": the released fallbacks
    c.reward.workers = 1  # answers judged at once
    c.reward.wall_s = 5.0  # seconds that judging an answer may take; over them the verdict is unknown
    c.reward.memory_mb = 1024  # MiB that it may take

    c.filter = ConfigDict()
    c.filter.criterion1 = True  # drop episodes whose tool calls all failed
    c.filter.criterion2 = True  # drop groups that are all right or all wrong
    c.filter.drop_void = True  # drop episodes with a turn of neither code nor answer (SimpleTIR)
    c.filter.drop_overlong = True  # drop episodes that ran out of tokens
    c.filter.min_group = 4  # fewest judged, not overlong episodes of a group that counts
    c.filter.max_empty_steps = 5  # steps in a row without any group left, before the run stops

    c.advantage = ConfigDict()
    c.advantage.baseline = "kept"  # mean and std over "kept" or "all" judged episodes of the group

    c.bonus = ConfigDict()
    c.bonus.coefficient = 0.01  # a in A * (1 + a * gate * Z); 0: no bonus
    c.bonus.top_share = 0.2  # q_H: share of an episode's post-tool tokens that the gate lets through

    c.loss = ConfigDict()
    c.loss.clip_low = 0.2  # lower clip of the ratio: 1 - clip_low
    c.loss.clip_high = 0.28  # upper clip of the ratio: 1 + clip_high
    c.loss.dual_clip = 3.0  # bound on the loss of tokens with a negative advantage
    c.loss.aggregation = "token_mean"  # or "sequence_mean", or "constant": by context_tokens (Dr. GRPO)
    c.loss.kl_coefficient = 0.0  # of the divergence from the initial policy
    c.loss.entropy_coefficient = 0.0  # of the policy's entropy, which is raised
    c.loss.importance_cap = 0.0  # truncates trainer/sampler importance weights; 0: no such weights

    c.train = ConfigDict()
    c.train.steps = 100  # rollout + update
    c.train.minibatches = 2  # optimiser updates a step
    c.train.micro_rows = 8  # rows of `row_tokens` in one forward and backward
    c.train.row_tokens = 0  # of a packed row; 0: rollout.context_tokens, from 1,024 on in whole 128
    c.train.learning_rate = 1e-6  # of AdamW, at its highest
    c.train.warmup_updates = 0  # optimiser updates of linear warm-up
    c.train.decay_updates = 0  # updates after it over which the rate falls linearly to 0; 0: constant
    c.train.remat = "full"  # what backward computes again: "none", all but products ("dots"), "full"
    c.train.unroll_layers = False  # slower to compile; faster on CPU
    c.train.head_chunk = 512  # tokens whose logits exist at a time
    c.train.old_logprobs = "recomputed"  # with the step's policy before its updates; or the "sampler"'s own
    c.train.max_nonfinite = 3  # updates in a row with a gradient that is not finite, before the run stops
    c.train.beta1 = 0.9  # decay of the first moment
    c.train.beta2 = 0.99  # decay of the second moment
    c.train.weight_decay = 0.01  # decoupled
    c.train.decay_norms = True  # whether norms and biases decay as well
    c.train.grad_clip = 1.0  # global norm

    c.eval = ConfigDict()
    c.eval.every = 10  # steps; also before the first and after the last; 0: never
    c.eval.problems = 64  # held-out problems, the first of the split
    c.eval.samples = 8  # K
    c.eval.temperature = 1.0  # 0: greedy
    c.eval.top_k = 0  # only the k most likely tokens; 0: all (training always draws from all)
    c.eval.top_p = 1.0  # only the most likely tokens that make up this share; 1: all
    c.eval.min_p = 0.0  # only tokens with this share of the most likely one's probability; 0: all

    c.benchmarks = ConfigDict()  # name -> data file; tools/prepare_data.py fetches and converts them
    c.benchmarks.aime24 = "data/aime24.jsonl"  # 30 problems
    c.benchmarks.aime25 = "data/aime25.jsonl"  # 30 problems
    c.benchmarks.math500 = "data/math500.jsonl"  # 500 problems
    c.benchmarks.olympiadbench = "data/olympiadbench.jsonl"  # 675; olympiadbench500: 500 of them
    c.benchmarks.amc23 = "data/amc23.jsonl"  # 40 problems
    c.benchmarks.hmmt25 = "data/hmmt25.jsonl"  # 30 problems, February
    c.benchmarks.minerva = "data/minerva.jsonl"  # 272 problems
    c.benchmarks.gsm8k = "data/gsm8k.jsonl"  # 1,319 problems, the test split
    c.benchmarks.livecodebench = "data/livecodebench.jsonl"  # a release file; programs

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 10  # steps; also after the last
    c.checkpoint.keep = 2  # newest kept

    c.log = ConfigDict()
    c.log.trajectories_every = 10  # steps between samples of episodes written to trajectories/
    c.log.trajectories = 32  # episodes in such a sample
    c.log.replay_every = 0  # steps between whole steps kept in replay/ (17 bytes a token); 0: none

    c.mesh = ConfigDict()
    c.mesh.data = 1  # copies of the policy; batch rows are spread over data * fsdp
    c.mesh.fsdp = 1  # parameters sharded over it
    c.mesh.tensor = 1  # heads, MLP and vocabulary sharded over it
    c.mesh.rollout_tensor = 0  # devices of a host that share one copy for the sampler; 0: mesh.tensor

    c.mesh.rules = ConfigDict()  # in training: which mesh axes shard a logical axis; commas between
    c.mesh.rules.batch = "data,fsdp"  # rows of activations
    c.mesh.rules.length = ""  # tokens of a row
    c.mesh.rules.activation = ""  # hidden size of activations
    c.mesh.rules.layers = ""  # the stacked layers
    c.mesh.rules.embed = "fsdp"  # hidden size of parameters
    c.mesh.rules.norm = ""  # scales of norms
    c.mesh.rules.vocab = "tensor"  # rows of embedding and unembedding
    c.mesh.rules.heads = "tensor"  # query heads
    c.mesh.rules.kv_heads = "tensor"  # replicated where they do not divide
    c.mesh.rules.head_dim = ""  # inside a head
    c.mesh.rules.mlp = "tensor"  # inner size of the MLP
    return c


# What each arm changes (paper, baselines and ablations); everything else stays equal.
ARMS = {
    "taorl": {},
    "tir": {
        "filter.criterion1": False,
        "filter.criterion2": False,
        "filter.drop_void": False,
        "bonus.coefficient": 0.0,
    },
    "simpletir": {"filter.criterion1": False, "bonus.coefficient": 0.0},
    "no_filter": {"filter.criterion1": False, "filter.criterion2": False},
    "no_bonus": {"bonus.coefficient": 0.0},
    "criterion1_only": {"filter.criterion2": False},
    "criterion2_only": {"filter.criterion1": False},
}


# Budgets and sampling of an evaluation (`--preset`), as deltas on the config.
PRESETS = {
    "paper": {  # tool mode of the paper: top-p is 1 in effect
        "rollout.turn_tokens": 12_000,
        "rollout.context_tokens": 36_000,
        "rollout.max_turns": 10,
        "eval.temperature": 1.0,
        "eval.samples": 16,
    },
    "training": {  # the budgets that the paper trains with
        "rollout.turn_tokens": 4000,
        "rollout.context_tokens": 8000,
        "rollout.max_turns": 5,
        "eval.temperature": 1.0,
        "eval.samples": 16,
    },
    "greedy": {"eval.temperature": 0.0, "eval.samples": 1},
}


def apply_presets(config: ConfigDict, names: str) -> ConfigDict:
    """A copy of the config under presets, `paper` or `paper,greedy`; later ones win.

    Raises:
      ConfigError: there is no such preset.
    """
    config = config.copy_and_resolve_references()
    for name in filter(None, names.split(",")):
        if name not in PRESETS:
            raise ConfigError(f"--preset {name}: there are {', '.join(PRESETS)}")
        config.update_from_flattened_dict(PRESETS[name])
    return config.lock()


def apply_argument(config: ConfigDict, argument: str, pods: dict[str, dict] | None = None) -> ConfigDict:
    """Applies what stands behind the colon of `--config file.py:arm=NAME,pod=NAME`, and locks the config.

    Args:
      config: the config so far.
      argument: may be empty.
      pods: name of a machine -> what the config changes for it; None: the config is for any machine.
    """
    choices = {"arm": ARMS} | ({"pod": pods} if pods else {})
    for part in filter(None, argument.split(",")):
        key, _, name = part.partition("=")
        if name not in choices.get(key, ()):
            known = "; or ".join(f":{key}= and one of {', '.join(names)}" for key, names in choices.items())
            raise ConfigError(f"--config ...:{part} is not understood; write {known}")
        if key == "arm":
            config.arm = name
        with config.unlocked():
            config.update_from_flattened_dict(choices[key][name])
    return config.lock()


def flatten(config: ConfigDict) -> dict:
    """Dotted name -> value."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            flat |= {f"{key}.{name}": inner for name, inner in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def arm_delta(config: ConfigDict) -> str:
    """What the config's arm changes, for people."""
    changes = ARMS[config.arm]
    return ", ".join(f"{key}={value}" for key, value in changes.items()) or "nothing: the method itself"


def row_tokens(config: ConfigDict) -> int:
    """Tokens of a packed row; kernels tile long ones by 128."""
    tokens = config.train.row_tokens or config.rollout.context_tokens
    return tokens if config.train.row_tokens or tokens < 1024 else -(-tokens // 128) * 128


def mesh_axes(rule: str) -> tuple[str, ...]:
    """The mesh axes that a value of `mesh.rules` names."""
    return tuple(axis.strip() for axis in rule.split(",") if axis.strip())


def nearest_key(name: str, config: ConfigDict) -> str:
    """The existing dotted name that is most like `name`."""
    keys = list(flatten(config))
    by_leaf = [key for key in keys if key.split(".")[-1] == name.split(".")[-1]]
    return (by_leaf or difflib.get_close_matches(name, keys, n=1, cutoff=0.0))[0]


# Numbers that may not be 0; none may be negative.
POSITIVE = (
    "rollout.prompts",
    "rollout.samples",
    "rollout.temperature",
    "rollout.max_turns",
    "rollout.turn_tokens",
    "rollout.slots",
    "rollout.chunk",
    "rollout.cache_bucket",
    "rollout.prefill_rows",
    "rollout.prefill_tokens",
    "rollout.extend_rows",
    "rollout.extend_tokens",
    "rollout.observation_tokens",
    "loss.clip_low",
    "loss.clip_high",
    "train.grad_clip",
    "sandbox.memory_mb",
    "sandbox.patience_s",
    "sandbox.concurrency",
    "sandbox.wall_s",
    "reward.workers",
    "reward.wall_s",
    "reward.memory_mb",
    "filter.max_empty_steps",
    "train.minibatches",
    "train.micro_rows",
    "train.head_chunk",
    "train.max_nonfinite",
    "eval.problems",
    "eval.samples",
    "checkpoint.every",
    "checkpoint.keep",
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
)


# Settings that are one of a few words.
CHOICES = {
    "policy.compute_dtype": ("float32", "bfloat16"),
    "policy.cache_dtype": ("float32", "bfloat16"),
    "policy.attention": ("auto", "xla", "splash", "cudnn"),
    "advantage.baseline": ("kept", "all"),
    "reward.extraction": ("boxed", "paper"),
    "rollout.valid_call": ("sane", "released"),
    "loss.aggregation": ("token_mean", "sequence_mean", "constant"),
    "train.remat": ("none", "dots", "full"),
    "train.old_logprobs": ("recomputed", "sampler"),
    "sandbox.min_isolation": ("weak", "medium", "strong"),
}


def _require(condition, message):
    if not condition:
        raise ConfigError(message)


def _check_values(c: ConfigDict):
    for name, value in flatten(c).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            _require(value >= 0, f"{name}={value} is negative")
    for name in POSITIVE:
        value = flatten(c)[name]
        _require(value > 0, f"{name}={value} must be positive")
    for name, choices in CHOICES.items():
        value = flatten(c)[name]
        _require(value in choices, f"{name}={value!r}; use {' or '.join(map(repr, choices))}")
    _require(
        not (c.loss.importance_cap and c.train.old_logprobs == "sampler"),
        f"loss.importance_cap={c.loss.importance_cap} compares the trainer's log-probs with the sampler's; "
        "it needs train.old_logprobs='recomputed'",
    )
    longest = c.sandbox.patience_s + c.sandbox.wall_s
    _require(
        c.sandbox.call_limit_s > longest,
        f"sandbox.call_limit_s={c.sandbox.call_limit_s:g} must exceed sandbox.patience_s + sandbox.wall_s = "
        f"{longest:g}: within them the sandbox may still answer",
    )
    _require(c.seed < 2**32, f"seed={c.seed} must be below 2**32")
    _require(c.reward.memory_mb >= 256, f"reward.memory_mb={c.reward.memory_mb}: the verifier needs 256 MiB")
    _require(
        c.filter.min_group <= c.rollout.samples,
        f"filter.min_group={c.filter.min_group} exceeds rollout.samples={c.rollout.samples}: no group counts",
    )
    _require(0 < c.eval.top_p <= 1, f"eval.top_p={c.eval.top_p} must be in (0, 1]; 1 truncates nothing")
    _require(c.eval.min_p <= 1, f"eval.min_p={c.eval.min_p} must be in [0, 1]; 0 truncates nothing")
    _require(0 < c.bonus.top_share <= 1, f"bonus.top_share={c.bonus.top_share} must be in (0, 1]")
    _require(c.loss.clip_low < 1, f"loss.clip_low={c.loss.clip_low} must be below 1")
    _require(c.loss.dual_clip > 1, f"loss.dual_clip={c.loss.dual_clip} must be above 1")


def _check_mesh(c: ConfigDict, model: ModelConfig, devices: int, hosts: int) -> int:
    """Refuses sizes that the mesh does not divide; returns the number of devices used."""
    axes = {"data": c.mesh.data, "fsdp": c.mesh.fsdp, "tensor": c.mesh.tensor}
    used = c.mesh.data * c.mesh.fsdp * c.mesh.tensor
    product = f"mesh.data * mesh.fsdp * mesh.tensor = {used} devices"
    _require(used <= devices, f"{product}, but jax sees {devices}")
    _require(
        hosts == 1 or used == devices,
        f"{product}, but the {hosts} hosts have {devices}: a run on several hosts uses all of them",
    )
    shards = {}
    for name, rule in c.mesh.rules.items():
        unknown = [axis for axis in mesh_axes(rule) if axis not in axes]
        _require(not unknown, f"mesh.rules.{name}={rule!r}: {unknown} is not one of {list(axes)}")
        shards[name] = f"mesh.rules.{name}={rule!r}", math.prod(axes[axis] for axis in mesh_axes(rule))
    own, tensor = used // hosts, c.mesh.rollout_tensor or c.mesh.tensor
    sharing = (
        "mesh.rollout_tensor" if c.mesh.rollout_tensor else "mesh.tensor, as mesh.rollout_tensor=0 says,"
    )
    fitting = [n for n in range(1, own + 1) if own % n == 0 and model.heads % n == 0 and model.mlp % n == 0]
    _require(
        own % tensor == 0,
        f"{sharing} = {tensor} does not divide the {own} devices of a host; mesh.rollout_tensor may be one "
        f"of {[n for n in fitting if model.vocab_size % n == 0]}",
    )
    copies = f"the {own} devices of a host / {sharing}", own // tensor
    minibatches = "train.minibatches", c.train.minibatches
    for name, size, (by, parts) in (
        ("rollout.prompts", c.rollout.prompts, minibatches),
        ("rollout.slots", c.rollout.slots, copies),
        ("rollout.prefill_rows", c.rollout.prefill_rows, copies),
        ("rollout.extend_rows", c.rollout.extend_rows, copies),
        ("train.micro_rows", c.train.micro_rows, shards["batch"]),
        ("the policy's hidden size", model.hidden, shards["embed"]),
        ("the policy's layers", model.layers, shards["layers"]),
        ("the policy's head size", model.head_dim, shards["head_dim"]),
        *(
            (f"the policy's {what}", size, way)
            for axis, what, size in (
                ("heads", "heads", model.heads),
                ("mlp", "MLP size", model.mlp),
                ("vocab", "vocabulary", model.vocab_size),
            )
            for way in (shards[axis], (sharing, tensor))
        ),
    ):
        near = sorted({max(parts, size // parts * parts), -(-size // parts) * parts})
        _require(
            size % parts == 0,
            f"{name} = {size} is not divisible by {by} = {parts}; nearest sizes that are: {near}",
        )
    return used


def validate(c: ConfigDict, model: ModelConfig, devices: int, hosts: int = 1) -> dict:
    """Checks sizes and budgets against each other, the model and the machine.

    Args:
      c: the config.
      model: the policy's sizes.
      devices: of all hosts.
      hosts: of the run, with equally many devices each.

    Returns:
      Derived sizes, for printing and for the run directory.

    Raises:
      ConfigError: naming the setting, its value, and what would work.
    """
    _check_values(c)
    r = c.rollout
    _require(
        r.prompt_tokens + 1 < r.context_tokens,
        f"rollout.prompt_tokens={r.prompt_tokens} leaves no room in "
        f"rollout.context_tokens={r.context_tokens}",
    )
    _require(
        r.context_tokens <= model.max_positions,
        f"rollout.context_tokens={r.context_tokens} tokens exceed the policy's max_position_embeddings="
        f"{model.max_positions}",
    )
    _require(
        row_tokens(c) >= r.context_tokens,
        f"train.row_tokens={c.train.row_tokens} can't hold an episode of "
        f"rollout.context_tokens={r.context_tokens}",
    )
    used = _check_mesh(c, model, devices, hosts)
    return {
        "model parameters": model.parameters,
        "episodes per draw": r.prompts * r.samples,
        "episodes per step, at most": r.prompts * r.samples * (1 + r.refills),
        "groups per optimiser update": r.prompts // c.train.minibatches,
        "optimiser updates": c.train.steps * c.train.minibatches,
        "tokens per micro-batch": c.train.micro_rows * row_tokens(c),
        "episodes per evaluation": c.eval.problems * c.eval.samples,
        "devices used": used,
    }


def describe(config: ConfigDict, sizes: dict) -> str:
    """The resolved config and its derived sizes, one line a section."""

    def line(name, values):
        return f"{name:<11}" + "  ".join(f"{key}={value}" for key, value in values.items())

    sections = {name: value for name, value in config.items() if isinstance(value, ConfigDict)}
    top = {name: value for name, value in config.items() if name not in sections}
    lines = [line("run", top), f"arm        {config.arm} changes {arm_delta(config)}"]
    lines += [line(name, dict(section)) for name, section in sections.items() if name != "benchmarks"]
    return "\n".join([*lines, "sizes      " + "  ".join(f"{name}: {n:,}" for name, n in sizes.items())])
