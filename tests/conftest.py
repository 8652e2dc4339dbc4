"""Fixtures shared by all tests."""

import os
import tempfile

import jax
import pytest
import worlds

# One compilation cache for all tests and the processes that they start: most compile the same programs.
_CACHE = tempfile.TemporaryDirectory(prefix="taorl-test-cache-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
jax.config.update("jax_compilation_cache_dir", _CACHE.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory):
    """Folder of a random policy with a real tokenizer."""
    return worlds.make_policy(tmp_path_factory.mktemp("tiny_policy"))
