"""What a snippet may use: the defaults, and the caps that no request can lift."""

import dataclasses

FETCH_BYTES = 1 << 20  # of a file that is sent back
MIN_MEMORY_MB = 64


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one run. A request can set the first four, below the caps.

    Attributes:
      wall_s: seconds from the start of the snippet, the queue not counted.
      cpu_s: seconds of CPU time of all processes together.
      memory_mb: MiB of private memory of a process, and of all processes of the run together.
      output_bytes: bytes kept of stdout, and again of stderr.
      kill_output_bytes: of stdout and stderr together; more of it ends the run.
      processes: processes and threads at once.
      file_bytes: of any file that a snippet writes.
      scratch_bytes, scratch_files: of the scratch directory.
      open_files: descriptors of a process.
    """

    wall_s: float = 5.0
    cpu_s: float = 10.0
    memory_mb: int = 512
    output_bytes: int = 64 << 10
    kill_output_bytes: int = 8 << 20
    processes: int = 64
    file_bytes: int = 16 << 20
    scratch_bytes: int = 32 << 20
    scratch_files: int = 1024
    open_files: int = 256


@dataclasses.dataclass(frozen=True)
class Caps:
    """Bounds on what a request can ask for (units: `Limits`), and on its own size."""

    wall_s: float = 60.0
    cpu_s: float = 120.0
    memory_mb: int = 4096
    output_bytes: int = 64 << 10
    code_bytes: int = 256 << 10
    stdin_bytes: int = 1 << 20
    files_bytes: int = 4 << 20
    batch_items: int = 1024
