"""A lane: a small process that runs one snippet at a time for the service.

Jobs come in on stdin and answers go out on stdout, one JSON object a line. The lane is single-threaded and
adopts every orphan of its snippet, so what it finds below itself belongs to that snippet and to no other.
When its stdin is closed (the service went away, in whatever manner), it kills the snippet, removes its
directory and ends.
"""

import contextlib
import json
import os
import signal
import sys

from sandbox_service.box import remove
from sandbox_service.process_tree import adopt_orphans
from sandbox_service.runner import failed, run_snippet
from sandbox_service.supervisor import Aborted, ChildAlarm


def _jobs():
    """Yields the jobs; none comes before the last one is answered, so a run meets only the end of stdin."""
    pending = bytearray()
    while data := os.read(0, 1 << 20):
        pending += data
        while (end := pending.find(b"\n")) >= 0:
            yield json.loads(pending[:end])
            del pending[: end + 1]


def _serve(workdir: str, alarm: ChildAlarm):
    for job in _jobs():
        try:
            answer = run_snippet(job, workdir, alarm, control=0)
        except OSError as error:
            answer = failed("infra_error", f"the sandbox could not run this: {error}")
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main(workdir: str):
    """Serves jobs until stdin ends; `workdir` is this lane's own directory."""
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the service closes stdin
    alarm = ChildAlarm()
    try:
        with contextlib.suppress(Aborted):
            _serve(workdir, alarm)
    finally:
        remove(workdir)
        with contextlib.suppress(OSError):  # other lanes are still there
            os.rmdir(os.path.dirname(workdir))


if __name__ == "__main__":
    main(sys.argv[1])
