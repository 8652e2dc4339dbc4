import pytest

from taorl_jax.tool_use.sandbox_replicas import Replica, Replicas


def urls(replicas, count, avoid=None):
    chosen = []
    for _ in range(count):
        with replicas.lend(avoid) as replica:
            chosen.append(replica.url)
    return chosen


def test_equals_take_turns():
    assert urls(Replicas(["a", "b", "c"]), 6) == ["a", "b", "c", "a", "b", "c"]


def test_the_least_busy_is_chosen():
    replicas = Replicas(["a", "b"])
    with replicas.lend(None) as first, replicas.lend(None) as second:
        assert {first.url, second.url} == {"a", "b"}
        with replicas.lend(avoid="a") as third:
            assert third.url == "b"
            assert urls(replicas, 3) == ["a", "a", "a"]
    assert (first.outstanding, second.outstanding) == (0, 0)


def test_a_retry_goes_elsewhere_if_there_is_an_elsewhere():
    assert urls(Replicas(["a", "b"]), 3, avoid="a") == ["b", "b", "b"]
    assert urls(Replicas(["a"]), 2, avoid="a") == ["a", "a"]


@pytest.mark.parametrize(("faults", "rest_s"), [(1, 0), (2, 0), (3, 1), (4, 2), (5, 4), (30, 30)])
def test_a_row_of_faults_opens_the_breaker(faults, rest_s):
    replica = Replica("a")
    for _ in range(faults):
        replica.failed(now=100.0)
    assert replica.rests_until == (100.0 + rest_s if rest_s else 0.0)
    replica.answered()
    assert (replica.faults, replica.rests_until) == (0, 0.0)


def test_what_rests_is_spared_unless_all_rest():
    replicas = Replicas(["a", "b"])
    with replicas.lend(None) as a:
        pass
    for _ in range(3):
        a.failed(now=1e12)
    assert urls(replicas, 4) == ["b"] * 4
    with replicas.lend(None) as b:
        pass
    for _ in range(4):
        b.failed(now=1e12)
    assert urls(replicas, 2) == ["a", "a"]
