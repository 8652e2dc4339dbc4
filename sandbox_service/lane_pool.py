"""The lanes: as many snippets at once as there are lanes, the others wait in a bounded queue."""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from sandbox_service import process_tree
from sandbox_service.runner import failed

_GRACE_S = 15.0  # beyond its wall limit, before a lane counts as hung
_CLOSING_S = 5.0
_ANSWER_BYTES = 64 << 20
_PACKAGE_PARENT = Path(__file__).resolve().parents[1]
# Snippets can read their parents' environments, so a lane's holds nothing of the service's.
_LANE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}


class QueueFull(Exception):
    """As many requests wait as may wait."""


class LaneDied(Exception):
    """The process of a lane ended or hung in the middle of a run."""


class Lane:
    """One lane process; started on its first run, and again after it died."""

    def __init__(self, workdir: str):
        self._workdir = workdir
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id while the process lives."""
        return self._process.pid if self._process else None

    async def run(self, job: dict) -> dict:
        """Answers one job.

        Raises:
          LaneDied: the lane is gone (and is started anew by the next call).
        """
        try:
            if self._process is None:
                self._process = await _start_lane(self._workdir)
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            line = await asyncio.wait_for(self._process.stdout.readline(), job["limits"]["wall_s"] + _GRACE_S)
            if not line.endswith(b"\n"):
                raise LaneDied("a lane ended in the middle of a run")
            return json.loads(line)
        except (TimeoutError, OSError, ValueError) as error:
            raise LaneDied(f"a lane failed in the middle of a run: {error!r}") from error

    async def kill(self):
        """Ends the process at once, and everything it ran."""
        process, self._process = self._process, None
        if process is None:
            return
        trees = process_tree.descendants(process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process_tree.kill(trees)
        await process.wait()
        shutil.rmtree(self._workdir, ignore_errors=True)

    async def close(self):
        """Lets the process end in order."""
        if self._process is None:
            return
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _CLOSING_S)
        await self.kill()


async def _start_lane(workdir: str):
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-s", "-m", "sandbox_service.lane", workdir),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_ANSWER_BYTES,
        cwd=_PACKAGE_PARENT,
        env=_LANE_ENVIRONMENT,
        start_new_session=True,
    )


class LanePool:
    """Runs jobs on `lanes` processes, with at most `queue` jobs waiting."""

    def __init__(self, lanes: int, queue: int):
        self.lanes, self.queue = lanes, queue
        self.waiting = 0
        self._base = tempfile.mkdtemp(prefix="sandbox-service-")
        self._all = [Lane(os.path.join(self._base, f"lane-{k}")) for k in range(lanes)]
        self._idle = asyncio.Queue()
        for lane in self._all:
            self._idle.put_nowait(lane)

    @contextlib.asynccontextmanager
    async def lane(self):
        """Waits for a free lane and holds it.

        Raises:
          QueueFull: too many wait already.
        """
        if self._idle.empty() and self.waiting >= self.queue:
            raise QueueFull
        self.waiting += 1
        try:
            lane = await self._idle.get()
        finally:
            self.waiting -= 1
        try:
            yield lane
        finally:
            self._idle.put_nowait(lane)

    async def run(self, lane: Lane, job: dict) -> dict:
        """Runs a job on a held lane; the death of the lane is an answer too (`infra_error`)."""
        try:
            return await lane.run(job)
        except LaneDied as error:
            await lane.kill()
            self._sweep()
            return failed("infra_error", str(error))
        except asyncio.CancelledError:  # the answer that is still to come belongs to nobody
            await lane.kill()
            self._sweep()
            raise

    def _sweep(self):
        """Kills what a dead lane left to us: we adopt the orphans of a lane that no longer can."""
        lanes = {lane.pid for lane in self._all}
        deadline = time.monotonic() + 1.0
        while process_tree.LINUX and time.monotonic() < deadline:
            strays = [pid for pid in process_tree.children(os.getpid()) if pid not in lanes]
            if not strays:
                return
            process_tree.kill(strays)
            for pid in strays:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)

    async def close(self):
        """Ends every lane, and what it runs, and removes the scratch directories."""
        await asyncio.gather(*(lane.close() for lane in self._all))
        self._sweep()
        shutil.rmtree(self._base, ignore_errors=True)
