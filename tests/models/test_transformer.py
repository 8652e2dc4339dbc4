"""The decoder against transformers + torch, and its cached forms against one forward over everything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taorl_jax.models import checkpoint, kv_cache, transformer
from taorl_jax.models.model_config import CheckpointError, read_model_config

torch = pytest.importorskip("torch", reason="the oracle is installed on Python 3.11 only")
transformers = pytest.importorskip("transformers")

DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def oracle(request, tmp_path_factory):
    """(folder, torch model): odd sizes, every weight, bias and norm random."""
    config = transformers.Qwen2Config(
        vocab_size=101,
        hidden_size=36,
        intermediate_size=52,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=request.param,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if "norm" in name else 0.0))
    folder = tmp_path_factory.mktemp("policy")
    model.save_pretrained(folder)
    return folder, model


def load(folder):
    config = read_model_config(folder)
    shapes, _ = transformer.abstract_params(config)
    return config, checkpoint.load_params(folder, jax.tree.map(lambda _: DEVICE, shapes))


def tokens_and_positions(rows=2, length=17):
    tokens = np.random.default_rng(1).integers(0, 101, (rows, length))
    return tokens, np.broadcast_to(np.arange(length), (rows, length))


def test_logits_equal_those_of_transformers(oracle):
    folder, model = oracle
    config, params = load(folder)
    tokens, positions = tokens_and_positions()
    hidden, _ = transformer.forward(config, params, jnp.array(tokens), jnp.array(positions))
    expected = model(torch.tensor(tokens)).logits.detach().numpy()
    np.testing.assert_allclose(
        transformer.unembed(params, hidden), expected, atol=1e-4 * np.abs(expected).max()
    )


def test_gradient_equals_that_of_torch(oracle):
    folder, model = oracle
    config, params = load(folder)
    tokens, positions = tokens_and_positions()

    def loss(params):
        hidden, _ = transformer.forward(config, params, jnp.array(tokens), jnp.array(positions))
        logprobs = jax.nn.log_softmax(transformer.unembed(params, hidden[:, :-1]))
        return -jnp.take_along_axis(logprobs, jnp.array(tokens)[:, 1:, None], axis=-1).mean()

    grad = jax.grad(loss)(params)["layers"]["mlp"]["up_kernel"][1]
    model.zero_grad()
    logits = model(torch.tensor(tokens)).logits[:, :-1]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(tokens)[:, 1:].flatten()).backward()
    expected = model.model.layers[1].mlp.up_proj.weight.grad.numpy().T
    np.testing.assert_allclose(grad, expected, atol=1e-4 * np.abs(expected).max())


def test_parameter_count_and_published_sizes(oracle):
    folder, model = oracle
    assert read_model_config(folder).parameters == sum(p.numel() for p in model.parameters())


def test_round_trip_is_bit_equal_and_loads_in_transformers(oracle, tmp_path):
    folder, model = oracle
    config, params = load(folder)
    checkpoint.save_params(params, config, tmp_path, like=folder)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    weights = again.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, weights[name]), name


def test_prefill_decode_and_extend_equal_one_forward(oracle):
    """A ragged batch: five tokens at once, then one by one, then three appended to one row only."""
    folder, _ = oracle
    config, params = load(folder)
    unrolled = transformer.unstack_layers(params)
    tokens, positions = (jnp.array(x) for x in tokens_and_positions(rows=3, length=12))
    expected, _ = transformer.forward(config, params, tokens, positions)

    cache = kv_cache.empty_cache(config, rows=3, length=12)
    lengths = jnp.array([5, 3, 4])
    order = jnp.arange(5)
    inside = order < lengths[:, None]
    hidden, cache = transformer.forward(
        config, unrolled, tokens[:, :5], jnp.where(inside, order, 12), cache=cache
    )
    np.testing.assert_allclose(hidden[inside], expected[:, :5][inside], atol=1e-5)
    for _ in range(4):
        step = tokens[jnp.arange(3), lengths][:, None]
        hidden, cache = transformer.forward(config, unrolled, step, lengths[:, None], cache=cache)
        np.testing.assert_allclose(hidden[:, 0], expected[jnp.arange(3), lengths], atol=1e-5)
        lengths += 1
    row = jnp.array([2])
    hidden, cache = transformer.forward(
        config, unrolled, tokens[2:, 8:11], jnp.arange(8, 11)[None], cache=cache, rows_B=row
    )
    np.testing.assert_allclose(hidden[0], expected[2, 8:11], atol=1e-5)


def test_packed_segments_do_not_see_each_other(oracle):
    folder, _ = oracle
    config, params = load(folder)
    tokens, positions = (jnp.array(x) for x in tokens_and_positions(rows=2, length=6))
    apart, _ = transformer.forward(config, params, tokens, positions)
    packed, _ = transformer.forward(
        config,
        params,
        tokens.reshape(1, 12),
        positions.reshape(1, 12),
        segment_ids_BxT=jnp.repeat(jnp.array([1, 2]), 6)[None],
    )
    np.testing.assert_allclose(packed.reshape(apart.shape), apart, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "gpt2"),
        ("use_sliding_window", True),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
        ("hidden_act", "gelu"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(oracle, tmp_path, key, value):
    import json

    raw = json.loads((oracle[0] / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=key):
        read_model_config(tmp_path)


def test_broken_checkpoints_are_refused_by_name(oracle, tmp_path):
    import shutil

    import safetensors.numpy

    with pytest.raises(CheckpointError, match=r"policy\.checkpoint"):
        read_model_config(tmp_path / "nowhere")
    shutil.copytree(oracle[0], tmp_path / "broken")
    file = tmp_path / "broken" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((3, 36), np.float32)
    tensors["stranger"] = np.zeros(1, np.float32)
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*stranger.*up_proj.*\(3, 36\)"):
        load(tmp_path / "broken")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors can't be read"):
        load(tmp_path / "broken")
