"""The decoder's cached and packed forms against one forward over everything; what grows with depth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch", reason="the oracle is installed on Python 3.11 only")

from models.oracles import VOCABULARY, load, make_oracle

from taorl_jax.models import kv_cache, presets, transformer
from taorl_jax.models.model_config import ModelConfig


@pytest.fixture(scope="module", params=["qwen3", "llama3-biased"])
def oracle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    return folder, make_oracle(request.param, folder)


forward = jax.jit(transformer.forward, static_argnums=0, static_argnames=("remat", "unroll"))


def tokens_and_positions(rows=2, length=17):
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (rows, length))
    return tokens, np.broadcast_to(np.arange(length), (rows, length))


def test_prefill_decode_and_extend_equal_one_forward(oracle):
    """A ragged batch: five tokens at once, then one by one, then three appended to one row only."""
    folder, _ = oracle
    config, params = load(folder)
    unrolled = transformer.unstack_layers(params)
    tokens, positions = (jnp.array(x) for x in tokens_and_positions(rows=3, length=12))
    expected, _ = forward(config, params, tokens, positions)

    cache = kv_cache.empty_cache(config, rows=3, blocks=3, block=4)
    lengths = jnp.array([5, 3, 4])
    order = jnp.arange(5)
    inside = order < lengths[:, None]
    hidden, cache = forward(config, unrolled, tokens[:, :5], jnp.where(inside, order, 12), cache=cache)
    np.testing.assert_allclose(hidden[inside], expected[:, :5][inside], atol=1e-5)
    for _ in range(4):
        step = tokens[jnp.arange(3), lengths][:, None]
        hidden, cache = forward(config, unrolled, step, lengths[:, None], cache=cache)
        np.testing.assert_allclose(hidden[:, 0], expected[jnp.arange(3), lengths], atol=1e-5)
        lengths += 1
    row = jnp.array([2])
    hidden, cache = forward(
        config, unrolled, tokens[2:, 8:11], jnp.arange(8, 11)[None], cache=cache, rows_B=row
    )
    np.testing.assert_allclose(hidden[0], expected[2, 8:11], atol=1e-5)


def test_packed_segments_do_not_see_each_other(oracle):
    folder, _ = oracle
    config, params = load(folder)
    tokens, positions = (jnp.array(x) for x in tokens_and_positions(rows=2, length=6))
    apart, _ = forward(config, params, tokens, positions)
    packed, _ = forward(
        config,
        params,
        tokens.reshape(1, 12),
        positions.reshape(1, 12),
        segment_ids_BxT=jnp.repeat(jnp.array([1, 2]), 6)[None],
    )
    np.testing.assert_allclose(packed.reshape(apart.shape), apart, atol=1e-5)


@pytest.mark.parametrize(("remat", "unroll"), [("dots", False), ("full", False), ("full", True)])
def test_rematerialised_and_unrolled_layers_have_the_same_gradient(oracle, remat, unroll):
    config, params = load(oracle[0])
    tokens, positions = (jnp.array(x) for x in tokens_and_positions())

    def grad(**options):
        def loss(params):
            return jnp.sum(transformer.forward(config, params, tokens, positions, **options)[0] ** 2)

        return jax.jit(jax.grad(loss))(params)

    for got, expected in zip(
        jax.tree.leaves(grad(remat=remat, unroll=unroll)), jax.tree.leaves(grad()), strict=True
    ):
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("preset", "published"),
    [("qwen2.5-1.5b", 1_543_714_304), ("qwen3-4b-base", 4_022_468_096), ("qwen2.5-7b", 7_615_616_512)],
)
def test_presets_have_the_published_number_of_parameters(preset, published):
    config = presets.PRESETS[preset]
    shapes, _ = transformer.abstract_params(config)
    assert config.parameters == sum(leaf.size for leaf in jax.tree.leaves(shapes)) == published


def test_the_training_program_does_not_grow_with_depth():
    def program(layers):
        config = ModelConfig(64, 16, 32, layers, 2, 1, 8, 64)
        shapes, _ = transformer.abstract_params(config)

        def loss(params, tokens):
            return transformer.forward(config, params, tokens, tokens)[0].sum()

        lowered = jax.jit(jax.grad(loss)).lower(shapes, jax.ShapeDtypeStruct((2, 8), jnp.int32))
        return lowered.as_text().count("\n")

    assert program(36) == program(4)


def test_decoding_needs_less_temporary_memory_than_one_layers_cache():
    """Over donated caches: nothing as large as a layer's keys and values is copied or rebuilt."""
    config = ModelConfig(64, 32, 32, 3, 4, 2, 8, 1024)
    shapes, _ = transformer.abstract_params(config)
    params = jax.eval_shape(transformer.unstack_layers, shapes)
    cache = jax.eval_shape(lambda: kv_cache.empty_cache(config, rows=16, blocks=4, block=256))

    def step(params, tokens, positions, cache):
        hidden, cache = transformer.forward(config, params, tokens, positions, cache=cache)
        return transformer.unembed(params, hidden), cache

    tokens = jax.ShapeDtypeStruct((16, 1), jnp.int32)
    compiled = jax.jit(step, donate_argnums=3).lower(params, tokens, tokens, cache).compile()
    one_layer = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache[0]))
    assert compiled.memory_analysis().temp_size_in_bytes < one_layer
