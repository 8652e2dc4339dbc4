"""What separates a snippet from the machine, and what does not, as `/health` reports it."""

from sandbox_service.process_tree import LINUX, tracks_descendants

TIER = "weak"


def _layer(active: bool, reason: str) -> dict:
    return {"active": True} if active else {"active": False, "missing": reason}


def layers() -> dict[str, dict]:
    """Every layer: active, or missing and why."""
    unbuilt = "this version runs snippets as ordinary processes of the service's user"
    return {
        "filesystem": _layer(False, unbuilt + "; only the working directory is their own"),
        "network": _layer(False, unbuilt),
        "syscalls": _layer(False, unbuilt),
        "identity": _layer(False, unbuilt),
        "process_tree": _layer(tracks_descendants(), "needs Linux with CONFIG_PROC_CHILDREN"),
        "process_count": _layer(tracks_descendants(), "needs Linux with CONFIG_PROC_CHILDREN"),
        "memory": _layer(LINUX, "RLIMIT_DATA and RLIMIT_AS are only enforced on Linux"),
        "wall_time": _layer(True, ""),
        "cpu_time": _layer(True, ""),
        "output": _layer(True, ""),
        "environment": _layer(True, ""),
    }
