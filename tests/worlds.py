"""Tiny worlds for tests: a random policy with a real tokenizer, and configs around it."""

import concurrent.futures
import copy
import json
import pathlib
import random
import threading

import jax
import jax.numpy as jnp

from taorl_jax.config import base_config
from taorl_jax.models import checkpoint
from taorl_jax.models.model_config import read_model_config
from taorl_jax.models.transformer import Decoder
from taorl_jax.tool_use.result import SandboxResult
from tools.quickstart_tokenizer import train_tokenizer

TEXTS = (
    "What is 12 * 7 + 5?\n",
    "```python\nprint(12 * 7)\n```",
    "\nCode execution result: 84\n",
    "The answer is \\boxed{89}.",
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def make_policy(folder: pathlib.Path, seed: int = 0) -> pathlib.Path:
    """A Hugging Face folder with a randomly initialised Qwen2 policy, large enough weights to be peaked."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(TEXTS * 20, 320)
    tokenizer.save_pretrained(folder)
    vocabulary = -(-len(tokenizer) // 8) * 8
    raw = SIZES | {"model_type": "qwen2", "vocab_size": vocabulary, "tie_word_embeddings": True}
    raw |= {"architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6}
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(raw))
    config = read_model_config(folder)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = Decoder(config).init(jax.random.key(seed), tokens, tokens)["params"]
    params = jax.tree.map(lambda box: box.value * 5, params, is_leaf=lambda box: hasattr(box, "names"))
    checkpoint.save_params(params, config, folder, like=folder)
    return folder


def make_config(policy: pathlib.Path, **overrides):
    """The base config shrunk to a tiny world; `overrides` are dotted names with __ for the dot."""
    c = base_config()
    c.policy.checkpoint = str(policy)
    c.policy.compute_dtype = c.policy.cache_dtype = "float32"
    c.data.prompt = "plain"
    c.rollout.prompts, c.rollout.samples, c.rollout.refills = 4, 4, 1
    c.rollout.max_turns, c.rollout.prompt_tokens, c.rollout.turn_tokens = 3, 96, 32
    c.rollout.context_tokens, c.rollout.observation_tokens = 192, 32
    c.rollout.slots, c.rollout.chunk, c.rollout.prefill_rows = 8, 4, 4
    c.rollout.prefill_tokens = 96
    c.rollout.extend_rows, c.rollout.extend_tokens = 4, 8
    c.train.steps, c.train.micro_rows, c.train.learning_rate = 2, 4, 1e-3
    c.eval.every, c.eval.problems, c.eval.samples = 2, 4, 2
    c.checkpoint.every = 1
    c.sandbox.patience_s, c.sandbox.lanes = 20.0, 2
    c.sandbox.min_isolation = "weak"
    c.update_from_flattened_dict({name.replace("__", "."): value for name, value in overrides.items()})
    return c.lock()


# What the ids of a talkative tokenizer spell: random ids form code blocks, of this language and of others.
SPELLINGS = (
    *(b"```python\n", b"\n```", b"print(7)", b"\n", b"```\n", b"\n```py\nx\n```", b"`", b"``", b"```cpp\n"),
    *(b"\n\n", b"\xc3", b"\n```\n", b" ", b"1\n``", b"a", b"b", b"c", b"d", b"\\boxed{7}"),
    *(b"x%d" % i for i in range(20)),
)


def talkative(tokenizer):
    """The tokenizer with SPELLINGS in turn in place of its own, so that a random policy calls its tool often.

    Observations are encoded as before; special tokens stay special.
    """
    other = copy.copy(tokenizer)
    other.token_bytes = [
        SPELLINGS[i % len(SPELLINGS)] if spelling is not None else None
        for i, spelling in enumerate(tokenizer.token_bytes)
    ]
    return other


def result_of(code: str) -> SandboxResult:
    """What the tool of a tiny world says: any outcome, output of any length, always the same of a code."""
    rng = random.Random(code)
    stdout = "".join(rng.choices("7 ab\n`", k=rng.choice([0, 1, 5, 40, 300])))
    outcome = rng.choice(["ok", "ok", "ok", "exception", "timeout"])
    stderr = rng.choice(["", "Warning: old\n", "Traceback\nNameError: x\n"])
    return SandboxResult(outcome, stdout, stderr, rng.choice([None] * 9 + ["7"]), 1.0)


class DelayedTool:
    """Answers `result_of` after a random time; a context manager that waits for its timers."""

    def __init__(self, longest_s: float = 0.0, seed: int = 0):
        self._longest_s, self._random, self._timers = longest_s, random.Random(seed), []
        self.calls = 0

    def submit(self, code):
        self.calls += 1
        future = concurrent.futures.Future()
        if not self._longest_s:
            future.set_result(result_of(code))
            return future
        timer = threading.Timer(self._random.uniform(0, self._longest_s), _answer, [future, result_of(code)])
        self._timers.append(timer)
        timer.start()
        return future

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for timer in self._timers:
            timer.join()


def _answer(future, result):
    if future.set_running_or_notify_cancel():
        future.set_result(result)
