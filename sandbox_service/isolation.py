"""What isolates a snippet on this machine: which mechanisms work, what layers they make, and the tier."""

import dataclasses

TIERS = ("weak", "medium", "strong")


@dataclasses.dataclass(frozen=True)
class Mechanisms:
    """What was found to work by doing it.

    Attributes:
      user_namespace: the others below are had by way of one; otherwise as root.
      namespaces: those of "mount", "pid", "net", "ipc" and "uts" that can be made.
      jail: a root directory of its own.
      own_uid: a snippet runs under a user id that nothing else has.
      nested_user: a snippet runs in a user namespace of its own.
      seccomp: the filter of system calls.
      landlock: version; 0: none.
      cgroup: "v1", "v2", or "" for none.
      missing: mechanism -> why it does not work.
    """

    user_namespace: bool = False
    namespaces: tuple[str, ...] = ()
    jail: bool = False
    own_uid: bool = False
    nested_user: bool = False
    seccomp: bool = False
    landlock: int = 0
    cgroup: str = ""
    missing: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def pid_namespace(self) -> bool:
        """Whether each run has its own list of processes."""
        return "pid" in self.namespaces


@dataclasses.dataclass(frozen=True)
class Layer:
    """One thing that a snippet is kept from.

    Attributes:
      grade: 2: by the best means there is; 1: by lesser ones; 0: not at all.
      means: what keeps it.
      needs: the mechanisms that a better grade needs.
    """

    grade: int
    means: str
    needs: tuple[str, ...] = ()


def layers(m: Mechanisms) -> dict[str, Layer]:
    """The layers that a tier depends on, from what works."""
    return {
        "filesystem": _filesystem(m),
        "processes": _processes(m),
        "network": _network(m),
        "syscalls": Layer(2, "allow-list (seccomp)") if m.seccomp else Layer(0, "", ("seccomp",)),
        "identity": _identity(m),
        "memory": _memory(m),
    }


def _filesystem(m: Mechanisms) -> Layer:
    if m.jail:
        return Layer(2, "read-only root of its own, scratch in memory")
    if m.landlock:
        return Layer(1, f"Landlock (ABI {m.landlock})", ("mount", "jail"))
    return Layer(0, "", ("mount", "jail", "landlock"))


def _processes(m: Mechanisms) -> Layer:
    if m.pid_namespace:
        return Layer(2, "PID namespace")
    if m.own_uid:
        return Layer(1, "user id of its own, swept after each run", ("pid",))
    return Layer(0, "", ("pid", "own_uid"))


def _network(m: Mechanisms) -> Layer:
    if m.seccomp and "net" in m.namespaces:
        return Layer(2, "no sockets (seccomp), empty network namespace")
    if m.seccomp:
        return Layer(1, "no sockets (seccomp)", ("net",))
    if "net" in m.namespaces:
        return Layer(1, "empty network namespace", ("seccomp",))
    return Layer(0, "", ("net", "seccomp"))


def _identity(m: Mechanisms) -> Layer:
    if m.own_uid:
        return Layer(2, "user id of its own, no capabilities, no_new_privs")
    if m.nested_user:
        return Layer(2, "user namespace of its own, no capabilities, no_new_privs")
    return Layer(0, "", ("own_uid", "nested_user"))


def _memory(m: Mechanisms) -> Layer:
    if m.cgroup:
        return Layer(2, f"cgroup {m.cgroup}")
    return Layer(1, "limit per process, and a watchdog for their sum", ("cgroup",))


def tier(m: Mechanisms) -> str:
    """`strong`: every layer by the best means; `medium`: every layer by some means; `weak`: less."""
    return TIERS[min(layer.grade for layer in layers(m).values())]


def report(m: Mechanisms) -> dict[str, dict]:
    """The layers for people: active or not, by what means, and why not by better ones."""
    return {
        name: {
            "active": layer.grade > 0,
            "means": layer.means,
            "missing": "; ".join(f"{need}: {m.missing.get(need, 'not to be had')}" for need in layer.needs),
        }
        for name, layer in layers(m).items()
    }
