"""A slot: room for one snippet at a time, with a lane for each profile, a user id and a control group."""

import asyncio
import contextlib
import json
import os
import signal
import socket

from sandbox_service.answer import failed
from sandbox_service.server.cgroup import Group
from sandbox_service.server.template import Template, TemplateFailed, host_pid

_GRACE_S = 15.0  # beyond its wall limit, before a lane counts as hung
_CLOSING_S = 5.0
_ANSWER_BYTES = 64 << 20
_RUNS_OF_A_LANE = 2000


class LaneDied(Exception):
    """The process of a lane ended or hung in the middle of a run, or could not be started."""


class Lane:
    """One lane process; started on its first run, and again after it died."""

    def __init__(self, template: Template, uid: int, workdir: str, group: Group | None):
        self._template, self._uid, self._workdir, self._group = template, uid, workdir, group
        self._writer: asyncio.StreamWriter | None = None
        self.runs = 0

    async def start(self):
        """Has the process forked, unless it is there."""
        if self._writer is not None:
            return
        ours, theirs = socket.socketpair()
        try:
            self._pidfd = await self._template.fork_lane(theirs, self._uid, self._workdir)
        except TemplateFailed:
            ours.close()
            raise
        finally:
            theirs.close()
        if self._group:
            self._group.add(host_pid(self._pidfd))
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=_ANSWER_BYTES)
        self.runs = 0

    async def run(self, job: dict) -> dict:
        """Answers one job.

        Raises:
          LaneDied: the lane is gone (and is started anew by the next call).
        """
        try:
            await self.start()
            self.runs += 1
            self._writer.write(json.dumps(job).encode() + b"\n")
            line = await asyncio.wait_for(self._reader.readline(), job["limits"]["wall_s"] + _GRACE_S)
            if not line.endswith(b"\n"):
                raise LaneDied("a lane ended in the middle of a run")
            return json.loads(line)
        except (TimeoutError, OSError, ValueError, TemplateFailed) as error:
            raise LaneDied(f"a lane failed in the middle of a run: {error!r}") from error

    async def close(self):
        """Lets the process end in order (its snippet dies, its directory goes); kills it if it hangs."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_ended(self._pidfd), _CLOSING_S)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)


async def _ended(pidfd: int):
    """Returns when the process of a pidfd has ended."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(pidfd)


class Slot:
    """Runs one job at a time, on the lane of its profile."""

    def __init__(self, lanes: dict[str, Lane], group: Group | None):
        self._lanes, self._group = lanes, group
        self.recycled = self.deaths = self.oom_kills = 0

    async def start(self):
        """Starts every lane."""
        for lane in self._lanes.values():
            await lane.start()

    async def run(self, profile: str, job: dict) -> dict:
        """Runs a job; the death of the lane is an answer too (`infra_error`)."""
        lane = self._lanes[profile]
        try:
            return await self._run(lane, job)
        except LaneDied as error:
            self.deaths += 1
            await lane.close()
            return failed("infra_error", str(error))
        except asyncio.CancelledError:  # the answer that is still to come belongs to nobody
            await asyncio.shield(lane.close())
            raise

    async def _run(self, lane: Lane, job: dict) -> dict:
        if self._group is None:
            return await self._recycled(lane, await lane.run(job))
        self._group.limit(job["limits"]["memory_mb"], job["limits"]["processes"])
        before = self._group.oom_kills()
        try:
            answer = await lane.run(job)
        except LaneDied:
            if self._group.oom_kills() == before:
                raise
            answer = failed("memory_limit", "killed: out of memory")
        if self._group.oom_kills() > before:
            self.oom_kills += 1
            return await self._recycled(lane, {**answer, "outcome": "memory_limit"}, now=True)
        return await self._recycled(lane, answer)

    async def _recycled(self, lane: Lane, answer: dict, now: bool = False) -> dict:
        if now or lane.runs >= _RUNS_OF_A_LANE:
            self.recycled += 1
            await lane.close()
        return answer

    async def close(self):
        """Ends the lanes."""
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))
