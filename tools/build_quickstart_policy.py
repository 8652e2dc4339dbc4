"""Builds the quickstart policy: a tiny Qwen2 checkpoint that uses a Python tool, often wrongly.

    python -m tools.build_quickstart_policy --out experiments/quickstart_policy

Everything is made on the spot (tokenizer, traces, weights) from fixed seeds; some minutes on 2 cores.
"""

import argparse
import json
import pathlib
import random

from taorl_jax.data.tasks import make_instance
from taorl_jax.models.checkpoint import save_params
from taorl_jax.models.model_config import ModelConfig, read_model_config
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.tool_use.observation import format_observation
from tools.quickstart_card import write_card
from tools.quickstart_tokenizer import train_tokenizer
from tools.quickstart_traces import make_trace
from tools.quickstart_warm_start import OBSERVATION_LIMIT, warm_start

SEED = 7
STEPS = 1400
VOCABULARY = 512
TOKENIZER_TRACES = 4000
ROLES = ("user\n", "assistant\n")


def corpus(seed: int):
    """What the tokenizer learns from: problems, turns, observations, and the template's roles as often."""
    for index in range(TOKENIZER_TRACES):
        instance = make_instance(index, "train", seed)
        yield from (instance.problem.text, *ROLES)
        for turn, result in make_trace(instance, random.Random(f"tokenizer/{seed}/{index}")):
            yield turn
            if result is not None:
                yield format_observation(result, OBSERVATION_LIMIT)


def model_config(tokenizer) -> dict:
    """`config.json` of the policy."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "float32",
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def generation_config(tokenizer) -> dict:
    """`generation_config.json`: both end tokens stop a turn."""
    return {
        "do_sample": True,
        "temperature": 1.0,
        "eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id],
        "pad_token_id": tokenizer.pad_token_id,
    }


def write_json(path: pathlib.Path, value: dict):
    """Writes indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def build(out: pathlib.Path, steps: int, seed: int) -> ModelConfig:
    """Writes the checkpoint folder, all but its model card."""
    out.mkdir(parents=True, exist_ok=True)
    hf_tokenizer = train_tokenizer(corpus(seed), VOCABULARY)
    hf_tokenizer.save_pretrained(out)
    write_json(out / "config.json", model_config(hf_tokenizer))
    write_json(out / "generation_config.json", generation_config(hf_tokenizer))
    config = read_model_config(out)
    params = warm_start(config, Tokenizer.load(out), hf_tokenizer.eos_token_id, steps, seed)
    save_params(params, config, out, like=out)
    return config


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("experiments/quickstart_policy"))
    parser.add_argument("--steps", type=int, default=STEPS, help="warm-start steps")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--no-card", action="store_true", help="don't measure it, write no README.md")
    arguments = parser.parse_args()
    config = build(arguments.out, arguments.steps, arguments.seed)
    if not arguments.no_card:
        write_card(
            arguments.out,
            parameters=config.parameters,
            vocabulary=config.vocab_size,
            steps=arguments.steps,
        )


if __name__ == "__main__":
    main()
