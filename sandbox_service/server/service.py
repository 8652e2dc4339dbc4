"""The service without HTTP: it starts, runs jobs on slots, and cleans up after itself."""

import asyncio
import contextlib
import dataclasses
import os
import re
import time

from sandbox_service import isolation
from sandbox_service.answer import failed
from sandbox_service.limits import Limits
from sandbox_service.server import instance
from sandbox_service.server.admission import Admission, Refused
from sandbox_service.server.cgroup import open_groups
from sandbox_service.server.log import log
from sandbox_service.server.metrics import Metrics
from sandbox_service.server.slot import Lane, Slot
from sandbox_service.server.template import Template, TemplateFailed
from sandbox_service.settings import Settings
from sandbox_service.zygote import process_tree
from sandbox_service.zygote.warm import PROFILES

_SELF_TEST = "import fractions, wsgiref.headers\nprint('ready')"  # the second is imported by nobody before
# Also inside a string that the code executes, where its line breaks are escaped.
_IMPORTS_SCIPY = re.compile(r"(?:import|from)\s+scipy\b|import_module\(.scipy\b")
_DROP_LOOK_S = 0.5  # between two looks at whether the client of a run is still there


class NotFit(Exception):
    """The service can't run snippets here, or not as safely as it is told to."""


def job(code: str, limits: Limits, *, stdin="", files=None, fetch_files=(), mode="warm") -> dict:
    """A job for a lane."""
    return {
        "code": code,
        "stdin": stdin,
        "files": files or {},
        "fetch_files": list(fetch_files),
        "mode": mode,
        "limits": dataclasses.asdict(limits),
    }


class Service:
    """Runs snippets on the slots of one machine."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.metrics = Metrics()
        self._wide: asyncio.Task | None = None
        self._given_up = asyncio.Event()  # what still runs is to be killed
        self.ready = False

    async def start(self):
        """Starts everything and tests it.

        Raises:
          NotFit: naming what is missing.
        """
        process_tree.adopt_orphans()
        instance.sweep()
        self._instance = instance.Instance()
        self._groups, why_not = (
            open_groups(self._instance.name)
            if self.settings.cgroups and self.settings.layers
            else (None, "turned off")
        )
        self._templates = {profile: self._template(profile) for profile in PROFILES}
        try:
            found = await self._templates["narrow"].start()
        except TemplateFailed as error:
            raise NotFit(str(error)) from error
        missing = {**found.missing, **({} if self._groups else {"cgroup": why_not})}
        version = self._groups.version if self._groups else ""
        self.mechanisms = dataclasses.replace(found, cgroup=version, missing=missing)
        self.tier = isolation.tier(self.mechanisms)
        self._require_tier()
        self.slots = [self._slot(k) for k in range(self.settings.lane_count)]
        self.admission = Admission(self.slots, self.settings.queue)
        await asyncio.gather(*(self._self_test(slot) for slot in self.slots))
        self.ready = True
        log("ready", tier=self.tier, lanes=len(self.slots), instance=self._instance.name)

    @property
    def template_starts(self) -> int:
        """How often a template process was started."""
        return sum(template.starts for template in self._templates.values())

    def _template(self, profile: str) -> Template:
        mountpoint = os.path.join(self._instance.folder, f"root-{profile}")
        os.mkdir(mountpoint)
        return Template(profile, mountpoint, self._instance.uid(255), self.settings.layers)

    def _slot(self, number: int) -> Slot:
        group = self._groups.group(number) if self._groups else None
        lanes = {}
        for profile, template in self._templates.items():
            workdir = os.path.join(self._instance.folder, f"lane-{number}-{profile}")
            lanes[profile] = Lane(template, self._instance.uid(number), workdir, group)
        return Slot(lanes, group)

    def _require_tier(self):
        wanted = self.settings.min_isolation
        if isolation.TIERS.index(self.tier) < isolation.TIERS.index(wanted):
            report = isolation.report(self.mechanisms)
            lacking = "; ".join(
                f"{name} ({layer['missing']})" for name, layer in report.items() if layer["missing"]
            )
            raise NotFit(
                f"the isolation to be had here is {self.tier}, --min-isolation asks for {wanted}. "
                f"Lacking: {lacking}. "
                f"Mend these, or accept less with --min-isolation {self.tier}"
            )

    async def _self_test(self, slot: Slot):
        limits = dataclasses.replace(self.settings.limits, wall_s=60.0, cpu_s=60.0)
        answer = await slot.run("narrow", job(_SELF_TEST, limits))
        if (answer["outcome"], answer["stdout"]) != ("ok", "ready\n"):
            reason = f"{answer['outcome']}: {answer['stderr'].strip()}"
            raise NotFit(f"a test snippet does not run here: {reason}")

    def _profile(self, code: str) -> str:
        """The profile for a snippet; the wide one is first started when it is first asked for."""
        if not _IMPORTS_SCIPY.search(code):
            return "narrow"
        if self._wide is None:
            self._wide = asyncio.create_task(self._start_wide())
        return "wide" if self._wide.done() and self._wide.result() else "narrow"

    async def _start_wide(self) -> bool:
        try:
            await self._templates["wide"].start()
        except TemplateFailed as error:
            log("no wide template", reason=str(error))
            return False
        return True

    async def run(self, work: dict, *, client: str, wait_s: float, gone=None) -> tuple[dict, float]:
        """Runs an admitted job.

        Args:
          work: the job.
          client: whose turn it takes.
          wait_s: longest wait for a slot, seconds.
          gone: coroutine function that tells whether nobody waits for the answer any more.

        Returns:
          The answer and the seconds spent in the queue.

        Raises:
          Refused: there was no room.
        """
        arrived = time.monotonic()
        async with self.admission.slot(client, wait_s) as slot:
            started = time.monotonic()
            if gone and await gone():
                answer = failed("infra_error", "the client went away while its request waited")
                self.metrics.count("dropped", 1)
            else:
                answer = await self._unless_gone(slot.run(self._profile(work["code"]), work), gone)
                if answer["outcome"] == "infra_error":
                    self._sweep_orphans()
                self.admission.observe(time.monotonic() - started)
        return answer, started - arrived

    async def _unless_gone(self, run, gone) -> dict:
        """The answer of a run, which is cancelled once nobody waits for it or the service has to stop."""
        task, given_up = asyncio.ensure_future(run), asyncio.ensure_future(self._given_up.wait())
        try:
            while True:
                done, _ = await asyncio.wait(
                    {task, given_up}, timeout=_DROP_LOOK_S, return_when="FIRST_COMPLETED"
                )
                if task in done:
                    return task.result()
                if given_up in done:
                    raise Refused("stopping", "the service is stopping", 1.0)
                if gone and await gone():
                    return failed("infra_error", "the client went away")
        finally:
            given_up.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _sweep_orphans(self):
        """Kills and reaps what a dead lane left to us: we adopt the orphans of those that no longer can."""
        ours = {template.pid for template in self._templates.values()}
        for pid in set(process_tree.children(os.getpid())) - ours:
            process_tree.kill([pid])
            os.waitpid(pid, 0)

    def drain(self):
        """Refuses what waits and what comes; what runs may go on for `grace_s`."""
        self.ready = False
        self.admission.stop()
        asyncio.get_running_loop().call_later(self.settings.grace_s, self._given_up.set)

    async def close(self):
        """Kills what runs and removes everything that is ours."""
        self.ready = False
        if hasattr(self, "slots"):
            await asyncio.gather(*(slot.close() for slot in self.slots))
        if hasattr(self, "_templates"):
            for template in self._templates.values():
                template.close()
            if self._wide:
                await self._wide
        process_tree.kill_all_descendants()
        if getattr(self, "_groups", None):
            self._groups.remove()
        self._instance.close()
        log("stopped")
