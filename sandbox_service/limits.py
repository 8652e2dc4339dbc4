"""What a snippet may use: the defaults, and the bounds that no request can lift."""

import dataclasses

KILL_OUTPUT_BYTES = 8 << 20  # of stdout and stderr together; more of it ends the run
PROCESSES = 64  # of one run, at once
FILE_BYTES = 16 << 20  # of any file that a snippet writes
FETCH_BYTES = 1 << 20  # of a file that is sent back
OPEN_FILES = 256
CODE_BYTES = 256 << 10
STDIN_BYTES = 1 << 20

MAX_WALL_S = 60.0
MAX_CPU_S = 120.0
MIN_MEMORY_MB, MAX_MEMORY_MB = 64, 4096
MAX_OUTPUT_BYTES = 64 << 10


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one run.

    Attributes:
      wall_s: seconds from the start of the process, the queue not counted.
      cpu_s: seconds of CPU time of a process, rounded up to whole ones.
      memory_mb: MiB of private memory of a process, and of all processes of the run together.
      output_bytes: bytes kept of stdout, and again of stderr.
    """

    wall_s: float = 5.0
    cpu_s: float = 10.0
    memory_mb: int = 512
    output_bytes: int = MAX_OUTPUT_BYTES
