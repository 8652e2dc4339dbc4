"""Which machines are refused, decided on invented device trees."""

import pytest

from taorl_jax.distributed import accelerators
from taorl_jax.distributed.accelerators import Accelerator, complaint_about, find_accelerators

GPU = Accelerator("gpu", "/dev/nvidia0")
TPU = Accelerator("tpu", "/dev/accel0")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A device tree to fill; no program is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "dev").mkdir()
    return tmp_path


def add(root, path, text=""):
    path = root / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("found", "backend", "platforms"),
    [
        ([], "cpu", ""),
        ([GPU], "gpu", ""),
        ([TPU], "tpu", ""),
        ([TPU, GPU], "gpu", ""),
        ([GPU], "cpu", "cpu"),
        ([TPU], "cpu", " CPU "),
    ],
)
def test_accepts(found, backend, platforms):
    assert complaint_about(found, backend, platforms) is None


@pytest.mark.parametrize(("found", "remedy"), [(GPU, "requirements-cuda.txt"), (TPU, "requirements-tpu.txt")])
def test_refuses_the_cpu_with_both_ways_out(found, remedy):
    complaint = complaint_about([found], "cpu", "")
    for part in (found.sign, "cpu backend", remedy, "JAX_PLATFORMS=cpu"):
        assert part in complaint


def test_asking_for_the_accelerator_first_is_no_choice_of_the_cpu():
    assert complaint_about([GPU], "cpu", "cuda,cpu") is not None


def test_finds_nvidia_device_nodes(machine):
    add(machine, "dev/nvidiactl")
    assert find_accelerators(machine) == []
    node = add(machine, "dev/nvidia0")
    assert find_accelerators(machine) == [Accelerator("gpu", str(node))]


def test_finds_a_gpu_that_only_the_driver_tool_shows(machine):
    tool = add(machine, "bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA Test (UUID: 1)'\n")
    tool.chmod(0o755)
    assert find_accelerators(machine) == [Accelerator("gpu", "GPU 0: NVIDIA Test (UUID: 1)")]


def test_a_driver_tool_without_a_gpu_is_none(machine):
    tool = add(machine, "bin/nvidia-smi", "#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    tool.chmod(0o755)
    assert find_accelerators(machine) == []


def test_finds_tpu_device_nodes(machine):
    node = add(machine, "dev/accel0")
    assert find_accelerators(machine) == [Accelerator("tpu", str(node))]


@pytest.mark.parametrize(("vendor", "backends"), [("0x1ae0", ["tpu"]), ("0x10de", [])])
def test_a_vfio_device_is_a_tpu_if_google_made_it(machine, vendor, backends):
    add(machine, "dev/vfio/vfio")
    add(machine, "dev/vfio/3")
    add(machine, "sys/kernel/iommu_groups/3/devices/0000:00:04.0/vendor", vendor + "\n")
    assert [found.backend for found in find_accelerators(machine)] == backends


def test_stops_before_training(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(accelerators, "find_accelerators", lambda: [GPU])
    monkeypatch.setattr(accelerators.jax, "default_backend", lambda: "cpu")
    with pytest.raises(accelerators.AcceleratorNotUsed, match="requirements-cuda"):
        accelerators.require_visible_accelerator()
