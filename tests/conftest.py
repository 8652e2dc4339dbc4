"""Fixtures shared by all tests."""

import pytest
import worlds


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory):
    """Folder of a random policy with a real tokenizer."""
    return worlds.make_policy(tmp_path_factory.mktemp("tiny_policy"))
