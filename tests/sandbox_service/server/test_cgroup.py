"""Control groups on stand-ins of both file trees; the real ones are tested by attacks on them."""

import pytest

from sandbox_service.server.cgroup import open_groups


@pytest.fixture
def v2(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
    return tmp_path


def fill_v2(folder, oom_kills=0):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.events").write_text(f"low 0\noom 1\noom_kill {oom_kills}\noom_group_kill 0\n")
    (folder / "memory.swap.max").write_text("max")


def test_version_2(v2):
    fill_v2(v2 / "name" / "probe")
    groups, reason = open_groups("name", v2)
    assert groups is not None, reason
    assert groups.version == "v2"
    assert (v2 / "name" / "cgroup.subtree_control").read_text() == "+memory +pids"
    group, folder = groups.group(3), v2 / "name" / "lane-3"
    fill_v2(folder, oom_kills=7)
    group.add(1234)
    group.limit(512, 64)
    assert (folder / "cgroup.procs").read_text() == "1234"
    assert int((folder / "memory.max").read_text()) == (512 + 96) << 20
    assert (folder / "memory.swap.max").read_text() == "0"
    assert int((folder / "pids.max").read_text()) == 64 + 4
    assert group.oom_kills() == 7


def test_version_1(tmp_path):
    for controller in ("memory", "pids"):
        probe = tmp_path / controller / "name" / "probe"
        probe.mkdir(parents=True)
        (tmp_path / controller / "cgroup.procs").write_text("")
    (tmp_path / "memory/name/probe/memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"
    )
    groups, reason = open_groups("name", tmp_path)
    assert groups is not None, reason
    assert groups.version == "v1"
    group = groups.group(0)
    (tmp_path / "memory/name/lane-0/memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    )
    group.add(99)
    group.limit(100, 10)
    assert (tmp_path / "memory/name/lane-0/cgroup.procs").read_text() == "99"
    assert (tmp_path / "pids/name/lane-0/cgroup.procs").read_text() == "99"
    assert int((tmp_path / "memory/name/lane-0/memory.limit_in_bytes").read_text()) == (100 + 96) << 20
    assert int((tmp_path / "pids/name/lane-0/pids.max").read_text()) == 10 + 4
    assert group.oom_kills() == 2


def test_why_there_are_none(tmp_path):
    assert open_groups("name", tmp_path) == (None, "no memory and pids controllers are mounted")
