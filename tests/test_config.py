"""The config: arms, nearest keys, and a failing example for every check."""

import dataclasses

import pytest
import worlds

from taorl_jax.config import (
    ARMS,
    ConfigError,
    apply_argument,
    base_config,
    describe,
    flatten,
    nearest_key,
    row_tokens,
    validate,
)
from taorl_jax.models.model_config import ModelConfig

MODEL = ModelConfig(320, 32, 48, 2, 4, 2, 8, 256)


def config(**overrides):
    return worlds.make_config("nowhere", **overrides)


def test_a_sound_config_gives_its_derived_sizes():
    sizes = validate(config(), MODEL, devices=1)
    assert sizes["episodes per draw"] == 16
    assert sizes["episodes per step, at most"] == 32
    assert sizes["groups per optimiser update"] == 2
    assert sizes["tokens per micro-batch"] == 4 * 192
    assert "episodes per draw: 16" in describe(config(), sizes)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rollout__prompt_tokens": 191}, r"rollout\.prompt_tokens=191 leaves no room.*context_tokens=192"),
        ({"rollout__context_tokens": 300}, r"context_tokens=300 tokens exceed.*max_position_embeddings=256"),
        ({"mesh__data": 2}, r"= 2 devices, but jax sees 1"),
        ({"rollout__prompts": 5}, r"rollout\.prompts = 5.*train\.minibatches = 2.*\[4, 6\]"),
        ({"train__steps": -1}, r"train\.steps=-1 is negative"),
        ({"rollout__temperature": 0.0}, r"rollout\.temperature=0\.0 must be positive"),
        ({"rollout__slots": 0}, r"rollout\.slots=0 must be positive"),
        (
            {"policy__compute_dtype": "float16"},
            r"policy\.compute_dtype='float16'; use 'float32' or 'bfloat16'",
        ),
        ({"policy__cache_dtype": "int8"}, r"policy\.cache_dtype='int8'"),
        ({"advantage__baseline": "some"}, r"advantage\.baseline='some'; use 'kept' or 'all'"),
        ({"rollout__valid_call": "any"}, r"rollout\.valid_call='any'; use 'sane' or 'released'"),
        (
            {"sandbox__patience_s": 110.0, "sandbox__call_limit_s": 100.0},
            r"call_limit_s=100 must exceed sandbox\.patience_s \+ sandbox\.wall_s = 113: within them",
        ),
        ({"seed": 2**32}, r"seed=4294967296 must be below"),
        ({"reward__memory_mb": 100}, r"reward\.memory_mb=100: the verifier needs 256 MiB"),
        ({"filter__min_group": 5}, r"filter\.min_group=5 exceeds rollout\.samples=4"),
        ({"rollout__observation_tokens": 0}, r"rollout\.observation_tokens=0 must be positive"),
        ({"train__grad_clip": 0.0}, r"train\.grad_clip=0\.0 must be positive"),
        ({"bonus__top_share": 0.0}, r"bonus\.top_share=0\.0 must be in \(0, 1\]"),
        ({"loss__clip_low": 1.0}, r"loss\.clip_low=1\.0 must be below 1"),
        ({"train__row_tokens": 100}, r"train\.row_tokens=100 can't hold an episode of.*context_tokens=192"),
        ({"loss__dual_clip": 1.0}, r"loss\.dual_clip=1\.0 must be above 1"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_by_name(overrides, message):
    with pytest.raises(ConfigError, match=message):
        validate(config(**overrides), MODEL, devices=1)


@pytest.mark.parametrize(
    ("overrides", "sizes", "message"),
    [
        (
            {"mesh__data": 3},
            {},
            r"rollout\.slots = 8 is not divisible by the 3 devices of a host / .* = 3; .*\[6, 9\]",
        ),
        ({"rollout__prefill_rows": 3, "mesh__data": 2}, {}, r"rollout\.prefill_rows = 3"),
        ({"rollout__extend_rows": 3, "mesh__data": 2}, {}, r"rollout\.extend_rows = 3"),
        ({"train__micro_rows": 3, "mesh__data": 2}, {}, r"train\.micro_rows = 3"),
        (
            {"mesh__fsdp": 2},
            {"hidden": 33},
            r"hidden size = 33 is not divisible by mesh\.rules\.embed='fsdp' = 2",
        ),
        ({"mesh__tensor": 8}, {}, r"heads = 4 is not divisible by mesh\.rules\.heads='tensor' = 8"),
        ({"mesh__tensor": 2}, {"mlp": 47}, r"MLP size = 47"),
        ({"mesh__tensor": 2}, {"vocab_size": 321}, r"vocabulary = 321"),
        (
            {"mesh__data": 8, "mesh__rollout_tensor": 3},
            {},
            r"rollout_tensor = 3 does not divide the 8.*\[1, 2, 4\]",
        ),
        ({"mesh__fsdp": 4, "mesh__rollout_tensor": 4}, {"mlp": 46}, r"MLP size = 46.*rollout_tensor = 4"),
        (
            {"mesh__data": 2, "mesh__rules__embed": "data,model"},
            {},
            r"rules\.embed=.*\['model'\] is not one of",
        ),
        ({"mesh__fsdp": 2, "mesh__rules__layers": "fsdp"}, {"layers": 3}, r"layers = 3 .* = 2; .*\[2, 4\]"),
    ],
    ids=str,
)
def test_sizes_that_the_mesh_does_not_divide_are_refused(overrides, sizes, message):
    with pytest.raises(ConfigError, match=message):
        validate(config(**overrides), dataclasses.replace(MODEL, **sizes), devices=8)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"mesh__data": 4}, r"= 4 devices, but the 2 hosts have 8: a run on several hosts uses all of them"),
        ({"mesh__data": 8, "rollout__slots": 6}, r"slots = 6 .*the 4 devices of a host .*\[4, 8\]"),
        ({"mesh__fsdp": 8, "mesh__rollout_tensor": 8}, r"= 8 does not divide the 4 devices.*\[1, 2, 4\]"),
    ],
    ids=str,
)
def test_a_sampler_has_the_devices_of_one_host(overrides, message):
    overrides = {"train__micro_rows": 8, "rollout__slots": 8} | overrides
    with pytest.raises(ConfigError, match=message):
        validate(config(**overrides), MODEL, devices=8, hosts=2)


def test_an_argument_names_an_arm_and_a_pod():
    pods = {"v5e-8": {"mesh.fsdp": 8}, "v5e-16": {"mesh.fsdp": 16}}
    config = apply_argument(base_config(), "pod=v5e-16,arm=tir", pods)
    assert (config.arm, config.mesh.fsdp, config.filter.criterion1) == ("tir", 16, False)
    with pytest.raises(ConfigError, match=r"pod=v5e-4 is not understood.*:pod= and one of v5e-8, v5e-16"):
        apply_argument(base_config(), "pod=v5e-4", pods)
    with pytest.raises(ConfigError, match="pod=v5e-16 is not understood; write :arm= and one of taorl"):
        apply_argument(base_config(), "pod=v5e-16")


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_changes_what_it_says_and_nothing_else(arm):
    base, changed = flatten(base_config()), flatten(apply_argument(base_config(), f"arm={arm}"))
    differences = {key for key in base if base[key] != changed[key]}
    assert differences - {"arm"} == {key for key, value in ARMS[arm].items() if base[key] != value}
    assert set(ARMS[arm]) <= differences, "an arm must not restate the base"
    assert changed["arm"] == arm


def test_arms_are_those_of_the_paper():
    """Baselines table of the method: which switches each arm turns."""
    switches = ("filter.criterion1", "filter.criterion2", "filter.drop_void", "bonus.coefficient")
    table = {arm: [ARMS[arm].get(s, "base") for s in switches] for arm in ARMS}
    assert table == {
        "taorl": ["base"] * 4,
        "tir": [False, False, False, 0.0],
        "simpletir": [False, "base", "base", 0.0],
        "no_filter": [False, False, "base", "base"],
        "no_bonus": ["base", "base", "base", 0.0],
        "criterion1_only": ["base", False, "base", "base"],
        "criterion2_only": [False, "base", "base", "base"],
    }


@pytest.mark.parametrize("argument", ["arm=sometir", "tir", "seed=3"])
def test_an_unknown_argument_is_answered_with_the_arms(argument):
    with pytest.raises(ConfigError, match="arm= and one of taorl, tir"):
        apply_argument(base_config(), argument)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("train.stps", "train.steps"),
        ("trian.steps", "train.steps"),
        ("learning_rate", "train.learning_rate"),
        ("filter.criterion_1", "filter.criterion1"),
        ("sed", "seed"),
    ],
)
def test_nearest_key(wrong, right):
    assert nearest_key(wrong, base_config()) == right


def test_configs_are_locked():
    with pytest.raises((AttributeError, KeyError)):
        config().train.stps = 3


def test_every_value_is_commented():
    """A setting without a comment is one that users have to look for in the code."""
    import inspect

    lines = [
        line
        for line in inspect.getsource(base_config).splitlines()
        if " = " in line and "ConfigDict" not in line
    ]
    assert [line for line in lines if "  # " not in line] == []


def test_rows_of_long_contexts_are_whole_tiles_of_the_kernels():
    assert row_tokens(config()) == 192
    assert row_tokens(config(rollout__context_tokens=8000)) == 8064  # 63 * 128
    assert row_tokens(config(rollout__context_tokens=8000, train__row_tokens=16_384)) == 16_384
