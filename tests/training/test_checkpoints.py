"""Checkpoints of a real optimiser state: round trips, kills, full disks."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from taorl_jax.training.checkpoints import Checkpoints, OtherArchitecture, abstract

REPOSITORY = pathlib.Path(__file__).parents[2]
HOST_STATE = {"iterator": {"position": 7, "epoch": 1}, "seed": 3, "names": ["a", "b"]}


def make_state(seed, size=16):
    params = {"w": jax.random.normal(jax.random.key(seed), (size, 4)), "b": jnp.zeros(4, jnp.bfloat16)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    _, opt_state = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
    return {"params": params, "opt": opt_state, "step": jnp.int32(seed)}


def assert_equal_states(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture
def open_checkpoints(tmp_path):
    opened = []

    def opener(keep=2):
        opened.append(Checkpoints(tmp_path / "checkpoints", keep))
        return opened[-1]

    yield opener
    for checkpoints in opened:
        checkpoints.close()


def test_restores_bit_for_bit_with_types_kept(open_checkpoints):
    state = make_state(5)
    writer = open_checkpoints()
    writer.save(5, state, HOST_STATE)
    writer.wait()
    restored, host_state = open_checkpoints().restore(5, abstract(state))
    assert_equal_states(restored, state)
    assert host_state == HOST_STATE


def test_an_empty_directory_has_no_latest_step(open_checkpoints):
    assert open_checkpoints().latest_step() is None


def test_keeps_the_latest(open_checkpoints, tmp_path):
    checkpoints = open_checkpoints(keep=2)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, make_state(step), {})
    checkpoints.wait()
    assert checkpoints.latest_step() == 4
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]


def test_a_step_is_saved_once(open_checkpoints):
    checkpoints = open_checkpoints()
    checkpoints.save(2, make_state(2), {})
    with pytest.raises(ValueError, match="step 2 does not come after step 2"):
        checkpoints.save(2, make_state(2), {})


def test_a_reader_leaves_a_running_training_alone(open_checkpoints):
    training = open_checkpoints()
    training.save(1, make_state(1), {"at": 1})
    training.wait()
    training.save(2, make_state(2, size=500_000), {"at": 2})
    reader = open_checkpoints(keep=None)
    assert reader.restore(1, abstract(make_state(1)))[1] == {"at": 1}
    training.wait()
    assert training.latest_step() == 2


def test_a_missing_step_is_no_silent_fresh_start(open_checkpoints):
    with pytest.raises(FileNotFoundError):
        open_checkpoints().restore(9, abstract(make_state(9)))


def test_refuses_other_shapes(open_checkpoints):
    checkpoints = open_checkpoints()
    checkpoints.save(1, make_state(1, size=16), {})
    checkpoints.wait()
    told = r"step 1 of .*another architecture.* of 3 differences, opt/1/0/mu/w is \(16, 4\) there, \(8, 4\)"
    with pytest.raises(OtherArchitecture, match=told):
        checkpoints.restore(1, abstract(make_state(1, size=8)))
    with pytest.raises(OtherArchitecture, match=r"w is \(16, 4\) there, \(8, 4\) in the config"):
        checkpoints.restore_params(1, abstract(make_state(1, size=8))["params"])


def test_refuses_a_state_of_other_parts(open_checkpoints):
    checkpoints = open_checkpoints()
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    state = abstract(make_state(1))
    more = state | {"params": state["params"] | {"bias": state["step"]}}
    with pytest.raises(OtherArchitecture, match=r"params/bias is absent there, \(\) in the config"):
        checkpoints.restore(1, more)


def test_parameters_alone_are_read_without_the_rest(open_checkpoints):
    checkpoints = open_checkpoints()
    state = make_state(1)
    checkpoints.save(1, state, {})
    checkpoints.wait()
    params = checkpoints.restore_params(1, abstract(state)["params"])
    assert_equal_states(params, state["params"])
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 9"):
        checkpoints.restore_params(9, abstract(state)["params"])


def test_refuses_to_keep_nothing(tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        Checkpoints(tmp_path, keep=0)


def run_python(program, *args, xla_flags=""):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY), "XLA_FLAGS": xla_flags}
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, args)]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120)


def test_a_failed_save_reaches_the_next_save(tmp_path):
    program = """
        import resource, signal, sys, jax, jax.numpy as jnp
        from taorl_jax.training.checkpoints import CheckpointFailed, Checkpoints
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        checkpoints = Checkpoints(sys.argv[1], keep=2)
        checkpoints.save(1, {"w": jax.random.normal(jax.random.key(0), (1_000_000,))}, {})
        try:
            checkpoints.save(2, {"w": jnp.ones(8)}, {})
        except CheckpointFailed as error:
            print(error)
        checkpoints.close()
    """
    done = run_python(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no checkpoint is complete yet" in done.stdout


def test_a_killed_save_is_ignored_and_cleaned_up(tmp_path, open_checkpoints):
    program = """
        import os, pathlib, signal, sys, jax, jax.numpy as jnp
        from taorl_jax.training.checkpoints import Checkpoints
        checkpoints = Checkpoints(sys.argv[1], keep=2)
        checkpoints.save(1, {"w": jnp.ones(8)}, {"at": 1})
        checkpoints.wait()
        checkpoints.save(2, {"w": jax.random.normal(jax.random.key(0), (8_000_000,))}, {"at": 2})
        while not list(pathlib.Path(sys.argv[1]).glob("2*")):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    """
    directory = tmp_path / "checkpoints"
    assert run_python(program, directory).returncode == -signal.SIGKILL
    assert [path.name for path in directory.iterdir() if "tmp" in path.name]
    checkpoints = open_checkpoints()
    assert checkpoints.latest_step() == 1
    assert checkpoints.restore(1, {"w": jax.ShapeDtypeStruct((8,), jnp.float32)})[1] == {"at": 1}
    checkpoints.save(2, {"w": jnp.zeros(8)}, {"at": 2})
    checkpoints.wait()
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2"]


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path, open_checkpoints):
    # A limit on the size of files refuses the write inside the kernel, as a full disk does.
    program = """
        import resource, signal, sys, jax, jax.numpy as jnp
        from taorl_jax.training.checkpoints import CheckpointFailed, Checkpoints
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        checkpoints = Checkpoints(sys.argv[1], keep=1)
        checkpoints.save(1, {"w": jnp.ones(8)}, {"at": 1})
        checkpoints.save(2, {"w": jax.random.normal(jax.random.key(0), (1_000_000,))}, {"at": 2})
        try:
            checkpoints.wait()
        except CheckpointFailed as error:
            print(error)
        checkpoints.save(3, {"w": jnp.full(8, 3.0)}, {"at": 3})
        checkpoints.close()
    """

    directory = tmp_path / "checkpoints"
    done = run_python(program, directory)
    assert done.returncode == 0, done.stderr
    for part in (str(directory), "MB free", "step 1 is intact", "same command"):
        assert part in done.stdout
    checkpoints = open_checkpoints()
    assert checkpoints.latest_step() == 3
    state, host_state = checkpoints.restore(3, {"w": jax.ShapeDtypeStruct((8,), jnp.float32)})
    np.testing.assert_array_equal(state["w"], np.full(8, 3.0))
    assert host_state == {"at": 3}


def test_restores_straight_into_the_shards_of_another_mesh(tmp_path):
    program = """
        import sys, jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from taorl_jax.training.checkpoints import Checkpoints
        saved = jax.make_mesh((8,), ("fsdp",))
        rows = jax.device_put(jnp.arange(64.0).reshape(16, 4), NamedSharding(saved, P("fsdp")))
        checkpoints = Checkpoints(sys.argv[1], keep=1)
        checkpoints.save(1, {"w": rows}, {})
        checkpoints.wait()
        target = NamedSharding(jax.make_mesh((2, 4), ("fsdp", "tensor")), P("fsdp", "tensor"))
        abstract_rows = jax.ShapeDtypeStruct((16, 4), jnp.float32, sharding=target)
        restored, _ = checkpoints.restore(1, {"w": abstract_rows})
        assert restored["w"].sharding == target
        assert {shard.data.shape for shard in restored["w"].addressable_shards} == {(8, 1)}
        np.testing.assert_array_equal(restored["w"], np.arange(64.0).reshape(16, 4))
        checkpoints.close()
    """
    done = run_python(program, tmp_path, xla_flags="--xla_force_host_platform_device_count=8")
    assert done.returncode == 0, done.stderr
