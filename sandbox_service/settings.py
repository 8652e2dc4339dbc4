"""The settings of a service: the defaults, a TOML file, and the command line, in rising order."""

import dataclasses
import os
import tomllib

from sandbox_service.isolation import TIERS
from sandbox_service.limits import Caps, Limits


class SettingsError(ValueError):
    """A setting that can't work; the message names it."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a service runs.

    Attributes:
      lanes: snippets at once; 0: one a core.
      queue: requests that may wait.
      queue_s: longest wait of a request that names no deadline, seconds.
      min_isolation: the tier below which the service does not start.
      cgroups: whether to use control groups where they can be had.
      layers: whether to isolate at all; off only to measure what it costs.
      grace_s: seconds that running snippets get at the end.
      overload_status: answer of `/run_code` when overloaded; verl's client retries 504 and nothing else.
      limits, caps: of a run.
    """

    lanes: int = 0
    queue: int = 1024
    queue_s: float = 60.0
    min_isolation: str = "medium"
    cgroups: bool = True
    layers: bool = True
    grace_s: float = 1.0
    overload_status: int = 504
    limits: Limits = dataclasses.field(default_factory=Limits)
    caps: Caps = dataclasses.field(default_factory=Caps)

    def __post_init__(self):
        """Refuses values that can't work."""
        for name in ("lanes", "queue", "queue_s", "grace_s"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name}={getattr(self, name)} must not be negative")
        if self.min_isolation not in TIERS:
            raise SettingsError(f"min_isolation={self.min_isolation!r}; use one of {', '.join(TIERS)}")
        for name in ("wall_s", "cpu_s", "memory_mb", "output_bytes"):
            default, cap = getattr(self.limits, name), getattr(self.caps, name)
            if not 0 < default <= cap:
                raise SettingsError(f"limits.{name}={default} must be above 0 and at most caps.{name}={cap}")

    @property
    def lane_count(self) -> int:
        """Lanes, with the default filled in."""
        return self.lanes or os.cpu_count() or 1


def _typed(kind, values: dict, where: str):
    fields = {field.name: getattr(kind(), field.name) for field in dataclasses.fields(kind)}
    for name, value in values.items():
        if name not in fields:
            raise SettingsError(f"{where}{name} is no setting; there are {', '.join(fields)}")
        wanted = (int, float) if isinstance(fields[name], float) else type(fields[name])
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise SettingsError(f"{where}{name}={value!r} should be like {fields[name]!r}")
    return kind(**values)


def read(path: str | None, **command_line) -> Settings:
    """Settings of a TOML file (None: none) under those of the command line that are not None.

    Raises:
      SettingsError: naming the setting.
      OSError: the file can't be read.
    """
    values = {}
    if path:
        with open(path, "rb") as file:
            try:
                values = tomllib.load(file)
            except tomllib.TOMLDecodeError as error:
                raise SettingsError(f"{path} is no TOML: {error}") from error
    for name, kind in (("limits", Limits), ("caps", Caps)):
        values[name] = _typed(kind, values.get(name, {}), f"{name}.")
    values |= {name: value for name, value in command_line.items() if value is not None}
    return _typed(Settings, values, "")
