"""What a config.json may say, and what is refused by name."""

import json

import pytest

from taorl_jax.models.model_config import CheckpointError, RopeScaling, read_model_config

QWEN2 = {
    "model_type": "qwen2",
    "vocab_size": 101,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}


def read(tmp_path, raw):
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return read_model_config(tmp_path)


def test_both_forms_of_rope_settings_are_read(tmp_path):
    old = read(tmp_path, QWEN2 | {"rope_scaling": {"type": "linear", "factor": 4.0}})
    new = read(
        tmp_path, QWEN2 | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}}
    )
    assert old == new
    assert (old.rope_theta, old.rope_scaling) == (5000.0, RopeScaling("linear", 4.0))
    assert read(tmp_path, QWEN2 | {"rope_scaling": None}).rope_scaling is None


def test_what_tells_the_families_apart(tmp_path):
    qwen2 = read(tmp_path, QWEN2)
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.query_key_norm, qwen2.head_dim) == (True, False, False, 6)
    qwen3 = read(tmp_path, QWEN2 | {"model_type": "qwen3", "head_dim": 16})
    assert (qwen3.qkv_bias, qwen3.out_bias, qwen3.query_key_norm, qwen3.head_dim) == (False, False, True, 16)
    llama = read(tmp_path, QWEN2 | {"model_type": "llama", "attention_bias": True, "mlp_bias": True})
    assert (llama.qkv_bias, llama.out_bias, llama.mlp_bias, llama.query_key_norm) == (True, True, True, False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "gpt2"),
        ("model_type", None),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention", "full_attention"]),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
        ("rope_scaling", {"type": "dynamic", "factor": 4.0}),
        ("partial_rotary_factor", 0.5),
        ("hidden_act", "gelu"),
        ("attention_dropout", 0.1),
        ("quantization_config", {"bits": 4}),
        ("num_key_value_heads", 4),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, key, value):
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{key}"):
        read(tmp_path, QWEN2 | {key: value})


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps"])
def test_a_missing_key_is_named(tmp_path, key):
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} is missing"):
        read(tmp_path, {name: value for name, value in QWEN2.items() if name != key})


def test_malformed_files_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"policy\.checkpoint: .* has no config\.json"):
        read_model_config(tmp_path / "nowhere")
    for text, reason in (("{", "is no JSON"), ("[]", "holds no settings")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=reason):
            read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "wide"),
        ("num_hidden_layers", 2.5),
        ("num_attention_heads", 0),
        ("vocab_size", True),
        ("rms_norm_eps", [1e-5]),
        ("rope_theta", float("nan")),
        ("head_dim", -8),
        ("tie_word_embeddings", "false"),
        ("rope_scaling", "linear"),
        ("layer_types", 3),
    ],
)
def test_a_malformed_value_is_named(tmp_path, key, value):
    with pytest.raises(CheckpointError, match=rf"config\.json: {key}=.* must be a"):
        read(tmp_path, QWEN2 | {key: value})


@pytest.mark.parametrize("missing", ["factor", "low_freq_factor", "original_max_position_embeddings"])
def test_an_incomplete_scaling_is_named(tmp_path, missing):
    whole = {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 3.0,
        "original_max_position_embeddings": 32,
    }
    assert read(tmp_path, QWEN2 | {"rope_scaling": whole}).rope_scaling.original_positions == 32
    with pytest.raises(CheckpointError, match=rf"config\.json: {missing} is missing"):
        read(tmp_path, QWEN2 | {"rope_scaling": {k: v for k, v in whole.items() if k != missing}})


def test_contradicting_rope_settings_are_refused(tmp_path):
    plain = {"rope_type": "default", "rope_theta": 5000.0}
    with pytest.raises(CheckpointError, match=r"rope_scaling=.* contradicts rope_parameters"):
        read(tmp_path, QWEN2 | {"rope_parameters": plain, "rope_scaling": {"type": "linear", "factor": 4.0}})
