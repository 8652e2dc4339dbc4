import dataclasses

import pytest

from sandbox_service.isolation import Mechanisms, layers, report, tier

ALL = Mechanisms(
    namespaces=("mount", "pid", "net", "ipc", "uts"),
    jail=True,
    own_uid=True,
    seccomp=True,
    landlock=6,
    cgroup="v2",
)
CONTAINER = Mechanisms(
    own_uid=True, seccomp=True, landlock=6, missing={"mount": "EPERM", "cgroup": "read-only"}
)


def test_the_three_tiers():
    assert tier(ALL) == "strong"
    assert tier(CONTAINER) == "medium"
    assert tier(Mechanisms()) == "weak"


@pytest.mark.parametrize(
    ("change", "lowered_to"),
    [
        ({"cgroup": ""}, "medium"),
        ({"jail": False}, "medium"),
        ({"namespaces": ("mount", "pid")}, "medium"),
        ({"namespaces": ("mount", "net")}, "medium"),
        ({"jail": False, "landlock": 0}, "weak"),
        ({"seccomp": False}, "weak"),
        ({"own_uid": False}, "weak"),
        ({"own_uid": False, "nested_user": True}, "strong"),
    ],
)
def test_what_each_mechanism_is_worth(change, lowered_to):
    assert tier(dataclasses.replace(ALL, **change)) == lowered_to


def test_the_report_says_why_a_layer_is_not_better():
    told = report(CONTAINER)
    assert set(told) == set(layers(CONTAINER))
    assert told["filesystem"]["active"] and "mount: EPERM" in told["filesystem"]["missing"]
    assert told["memory"]["missing"] == "cgroup: read-only"
    assert told["syscalls"] == {"active": True, "means": "allow-list (seccomp)", "missing": ""}
    assert not report(Mechanisms())["network"]["active"]
