"""What a killed service leaves behind is swept by the next; what a running one holds is not."""

import os
import socket

from sandbox_service.server.instance import PREFIX, is_stale


def test_a_number_is_stale_when_nobody_holds_it():
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    held.bind(f"\0{PREFIX}70001")  # beyond the numbers that services draw
    assert not is_stale(f"{PREFIX}70001-abc")
    held.close()
    assert is_stale(f"{PREFIX}70001-abc")
    assert not is_stale(f"{PREFIX}of-someone-else")


def test_the_next_service_removes_the_directory_of_a_killed_one(start_service, wait_until):
    killed = start_service("--lanes", "1")
    killed.run("print(1)")
    (left,) = killed.scratch.iterdir()
    below = killed.processes()
    killed.process.kill()
    killed.process.wait()
    wait_until(lambda: is_stale(left.name))
    assert left.is_dir()

    beside = start_service("--lanes", "1", environment={"TMPDIR": str(killed.scratch)})
    (own,) = killed.scratch.iterdir()
    assert own != left
    third = start_service("--lanes", "1", environment={"TMPDIR": str(killed.scratch)})
    assert own.is_dir()  # of a service that runs
    assert third.run("print(2)")["stdout"] == beside.run("print(2)")["stdout"] == "2\n"
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
