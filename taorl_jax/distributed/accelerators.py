"""Refuses to train on the CPU of a machine whose accelerator JAX does not use.

Without the matching plugin JAX falls back to the CPU with one warning at most, and a run that should
take minutes takes days.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import jax

from taorl_jax.errors import UserError

GOOGLE_PCI_VENDOR = "0x1ae0"


class AcceleratorNotUsed(UserError):
    """The machine has an accelerator and JAX runs on something else; the message holds the remedy."""


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """An accelerator that the machine shows.

    Attributes:
      backend: JAX's name for it, "gpu" or "tpu".
      sign: what gave it away, for people.
    """

    backend: str
    sign: str


def require_visible_accelerator() -> None:
    """Returns if JAX uses the machine's accelerator, if there is none, or if the user chose the CPU.

    Initialises JAX's default backend, so on several hosts it comes after `jax.distributed.initialize`.

    Raises:
      AcceleratorNotUsed: the message names the accelerator, the backend in use and both ways out.
    """
    complaint = complaint_about(
        find_accelerators(), jax.default_backend(), os.environ.get("JAX_PLATFORMS", "")
    )
    if complaint:
        raise AcceleratorNotUsed(complaint)


def complaint_about(accelerators: list[Accelerator], backend: str, jax_platforms: str) -> str | None:
    """What is wrong with running on `backend`, or None.

    Args:
      accelerators: those the machine shows.
      backend: name of JAX's default backend.
      jax_platforms: value of the environment variable JAX_PLATFORMS; "" if unset.
    """
    if not accelerators or jax_platforms.strip().lower() == "cpu":
        return None
    if backend in {accelerator.backend for accelerator in accelerators}:
        return None
    accelerator = accelerators[0]
    requirements = {"gpu": "requirements-cuda.txt", "tpu": "requirements-tpu.txt"}[accelerator.backend]
    return (
        f"This machine has a {accelerator.backend.upper()} ({accelerator.sign}), but JAX {jax.__version__} "
        f"runs on its {backend} backend. Install JAX for it in this environment:\n"
        f"  {sys.executable} -m pip install -r {requirements}\n"
        "or train on the CPU on purpose: set the environment variable JAX_PLATFORMS=cpu."
    )


def find_accelerators(root: pathlib.Path = pathlib.Path("/")) -> list[Accelerator]:
    """The accelerators that this process can reach, TPUs first.

    Args:
      root: where `dev` and `sys` stand.
    """
    tpu = _tpu_sign(root)
    gpu = _nvidia_sign(root)
    found = []
    if tpu:
        found.append(Accelerator("tpu", tpu))
    if gpu:
        found.append(Accelerator("gpu", gpu))
    return found


def _nvidia_sign(root):
    nodes = _numbered(root / "dev", "nvidia")
    if nodes:
        return nodes[0]
    # Under WSL there is no device node, but the driver's tool answers.
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (FileNotFoundError, PermissionError, subprocess.TimeoutExpired):
        return None
    lines = listing.stdout.splitlines()
    return lines[0] if listing.returncode == 0 and lines and lines[0].startswith("GPU") else None


def _tpu_sign(root):
    nodes = _numbered(root / "dev", "accel")
    if nodes:
        return nodes[0]
    # Later generations stand behind VFIO, which serves any kind of device: its IOMMU group tells whose.
    for node in _numbered(root / "dev/vfio", ""):
        group = root / "sys/kernel/iommu_groups" / pathlib.Path(node).name
        for vendor in sorted(group.glob("devices/*/vendor")):
            if vendor.read_text().strip() == GOOGLE_PCI_VENDOR:
                return node
    return None


def _numbered(folder, prefix):
    """Paths of `<prefix><number>` in a folder, sorted; none if there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(str(path) for path in folder.iterdir() if re.fullmatch(rf"{prefix}\d+", path.name))
