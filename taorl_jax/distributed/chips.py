"""TPU chips by their published peak figures, as the roofline of a compiled program uses them."""

import dataclasses

from taorl_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip (Google Cloud's "TPU system architecture" pages).

    Attributes:
      hbm: bytes of memory.
      flops: bfloat16 operations a second.
      bandwidth: bytes a second from memory.
      interconnect: bytes a second over all of its inter-chip links together.
    """

    hbm: float
    flops: float
    bandwidth: float
    interconnect: float


CHIPS = {
    "v5e": Chip(16 * 2**30, 197e12, 819e9, 200e9),
    "v5p": Chip(95 * 2**30, 459e12, 2765e9, 600e9),
    "v6e": Chip(32 * 2**30, 918e12, 1640e9, 448e9),
}


def chip_of(topology: str) -> Chip:
    """The chip of a topology such as "v5e:8x8".

    Raises:
      UserError: the figures of this kind are not known.
    """
    kind = topology.partition(":")[0]
    if kind not in CHIPS:
        raise UserError(f"--topology {topology}: write one of {', '.join(CHIPS)}, a colon and its extent")
    return CHIPS[kind]
