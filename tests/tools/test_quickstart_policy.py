import json
import pathlib
import random
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from transformers import AutoTokenizer

from taorl_jax.data.tasks import SPLITS, make_instance, make_problem
from taorl_jax.models.checkpoint import load_params
from taorl_jax.models.model_config import read_model_config
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.models.transformer import abstract_params, forward, unembed
from taorl_jax.rewards.extraction import last_boxed
from taorl_jax.tool_use.code_block import find_code
from taorl_jax.tool_use.observation import format_observation
from tools.quickstart_card import measure
from tools.quickstart_traces import FENCE, SOLVERS, execute, make_trace
from tools.quickstart_warm_start import encode_trace

ROOT = pathlib.Path(__file__).parents[2]
POLICY = ROOT / "experiments" / "quickstart_policy"
LIMITS = {"prompt": 48, "turn": 48, "observation": 40, "context": 160}  # tokens


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(POLICY)


@pytest.fixture(scope="module")
def traces():
    """A thousand (instance, trace)."""
    instances = [make_instance(index, "train", seed=3) for index in range(1000)]
    return [(instance, make_trace(instance, random.Random(k))) for k, instance in enumerate(instances)]


def params_of(folder):
    shapes, _ = abstract_params(read_model_config(folder))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return load_params(folder, jax.tree.map(lambda _: device, shapes))


def test_the_committed_folder_is_small_and_complete():
    names = {path.name for path in POLICY.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "README.md"} <= names
    assert {"tokenizer.json", "tokenizer_config.json"} <= names
    assert sum(path.stat().st_size for path in POLICY.iterdir()) <= 4 * 2**20


def test_transformers_computes_the_same_logits(tokenizer):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    ids = tokenizer.prompt_ids(make_problem(0, "heldout", 0).text)
    model = AutoModelForCausalLM.from_pretrained(POLICY, local_files_only=True)
    with torch.no_grad():
        oracle_TxV = model(torch.tensor([ids])).logits[0].numpy()
    tokens_1xT = np.array([ids], np.int32)
    params = params_of(POLICY)
    hidden, _ = forward(read_model_config(POLICY), params, tokens_1xT, np.arange(len(ids))[None])
    np.testing.assert_allclose(unembed(params, hidden)[0], oracle_TxV, atol=1e-4)
    assert model.config.model_type == "qwen2" and model.generation_config.eos_token_id == [
        *tokenizer.stop_ids[::-1]
    ]


def test_the_prompt_is_chatml_with_one_user_message(tokenizer):
    text = tokenizer.decode(tokenizer.prompt_ids("What is 12 + 3?"))
    assert text == "<|im_start|>user\nWhat is 12 + 3?<|im_end|>\n<|im_start|>assistant\n"
    rendered = AutoTokenizer.from_pretrained(POLICY).apply_chat_template(
        [{"role": "user", "content": "What is 12 + 3?"}], add_generation_prompt=True, tokenize=False
    )
    assert rendered == text


def test_every_byte_has_a_token_and_digits_stand_alone(tokenizer):
    single = {token for token in tokenizer.token_bytes if token is not None and len(token) == 1}
    assert single == {bytes([byte]) for byte in range(256)}
    with_digit = [t for t in tokenizer.token_bytes if t and any(48 <= byte <= 57 for byte in t)]
    assert sorted(with_digit) == [bytes([byte]) for byte in b"0123456789"]
    assert tokenizer.size <= 512


def test_fences_and_labels_are_few_tokens(tokenizer):
    fence = [
        tokenizer.decode([token]) for token in tokenizer.encode(f"Run it:\n{FENCE}python\nprint(1)\n{FENCE}")
    ]
    assert fence[-1] == FENCE and fence[3:6] == [FENCE, "python", "\n"]
    assert len(tokenizer.encode("\nCode execution result: ")) <= 6


@pytest.mark.parametrize("split", SPLITS)
def test_prompts_fit_the_budget(tokenizer, split):
    lengths = [len(tokenizer.prompt_ids(make_problem(i, split, 0).text)) for i in range(300)]
    assert max(lengths) <= LIMITS["prompt"]


def test_traces_fit_the_budgets_and_are_what_a_rollout_builds(tokenizer, traces):
    end = tokenizer.encode("")  # no token at all: the end token is added by its id
    assert end == []
    (end,) = [i for i in tokenizer.stop_ids if tokenizer.decode([i]) == "<|im_end|>"]
    for instance, trace in traces:
        ids, mask = encode_trace(tokenizer, instance.problem.text, trace, end)
        assert len(ids) == len(mask) <= LIMITS["context"]
        spoken = tokenizer.decode([token for token, policy in zip(ids, mask, strict=True) if policy])
        assert spoken == "".join(turn for turn, _ in trace) + "<|im_end|>"
        for turn, result in trace:
            assert len(tokenizer.encode(turn)) <= LIMITS["turn"]
            block = find_code([tokenizer.token_bytes[token] for token in tokenizer.encode(turn)])
            assert (block is None) == (result is None)
            if result is not None:
                assert turn.endswith(FENCE)  # the device stops right there
                assert execute(block.code) == result
                shown = format_observation(result, 256)
                assert len(tokenizer.encode(shown)) <= LIMITS["observation"]


def test_every_kind_of_problem_has_right_traces_but_the_one_out_of_reach(traces):
    right = {name: [] for name in SOLVERS}
    for instance, trace in traces:
        right[instance.template].append(last_boxed(trace[-1][0]) == instance.problem.answer)
    shares = {name: np.mean(hits) for name, hits in right.items()}
    assert shares.pop("primes") == 0.0
    assert shares.pop("sum") > 0.97  # groups that are all right need a family without flaws
    assert all(0.15 < share < 0.85 for share in shares.values()), shares


def test_every_flaw_is_frequent_enough_to_learn_from(traces):
    outcomes = [[result.outcome == "ok" for _, result in trace if result] for _, trace in traces]
    ends = [trace[-1][0] for _, trace in traces]
    assert np.mean([not all(calls) for calls in outcomes]) > 0.06
    assert np.mean([calls != sorted(calls, reverse=True) for calls in outcomes]) > 0.05  # failed, then valid
    assert np.mean([last_boxed(end) is None for end in ends]) > 0.05


def test_a_build_is_complete_and_reproducible(tmp_path):
    for name in ("first", "second"):
        options = f"--steps 2 --no-card --out {tmp_path / name}"
        command = [sys.executable, "-m", "tools.build_quickstart_policy", *options.split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name
    # The committed tokenizer is the one that this code builds.
    assert (tmp_path / "first" / "tokenizer.json").read_bytes() == (POLICY / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "first" / "config.json").read_text()) == json.loads(
        (POLICY / "config.json").read_text()
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params_of(tmp_path / "first")))


def test_the_policy_is_what_its_card_says_and_what_the_method_needs():
    """Measured anew, but for the held-out success, which takes longer; the shares are those of the card."""
    measured = measure(POLICY, heldout=2)
    card = (POLICY / "README.md").read_text()
    for name, share in measured.items():
        if not name.startswith("held-out"):
            assert f"| {name} | {100 * share:.1f} % |" in card
    for kind in ("all right", "all wrong", "mixed"):
        assert measured[f"training groups {kind}"] > 0
    for flaw in (
        "training trajectories with a failed call",
        "with a valid call after a failed one",
        "with a void turn",
    ):
        assert measured[flaw] >= 0.05
    heldout = float(re.search(r"held-out success, sampled \| ([\d.]+) %", card)[1])
    assert heldout <= 50
