"""One line of JSON for everything that happens, on stderr."""

import json
import sys
import time


def log(event: str, **fields):
    """Writes an event with its fields and the time (seconds since the epoch)."""
    line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}, ensure_ascii=False)
    print(line, file=sys.stderr, flush=True)
