"""Whether a compiled program fits a chip, its least time, and what to change if it does not fit."""

import dataclasses

import jax

from taorl_jax.distributed.chips import Chip
from taorl_jax.distributed.cost import Cost


@dataclasses.dataclass(frozen=True)
class Fit:
    """One program on one chip; bytes a chip, seconds.

    Attributes:
      name: of the program.
      arguments, results, temporaries, code: memory by kind; results leave out what reuses an argument.
      beside: what else lives on the chip while it runs.
      compute_s, memory_s, network_s: least time by peak operations, bandwidth and links; None: not counted.
      cost: operations and bytes over all chips; None: not counted.
      mfu: useful operations by the longest of the three times, over the peak.
      collectives: kind -> (count, bytes).
    """

    name: str
    arguments: int
    results: int
    temporaries: int
    code: int
    beside: int
    cost: Cost | None
    compute_s: float | None
    memory_s: float | None
    network_s: float
    mfu: float | None
    collectives: dict[str, tuple[int, int]]

    @property
    def total(self) -> int:
        """Bytes a chip needs."""
        return self.arguments + self.results + self.temporaries + self.code + self.beside

    @property
    def seconds(self) -> float | None:
        """Least time, if compute, memory and network overlap perfectly."""
        return None if self.cost is None else max(self.compute_s, self.memory_s, self.network_s)


def measure(
    name: str, compiled: jax.stages.Compiled, cost: Cost | None, chips: int, chip: Chip, traffic, beside=0
) -> Fit:
    """The figures of a program; `traffic` is what `hlo.collectives` found in it."""
    memory = compiled.memory_analysis()
    network_s = sum(size for _, size in traffic.values()) / chip.interconnect
    times = (
        (None, None)
        if cost is None
        else (cost.flops / chips / chip.flops, cost.bytes / chips / chip.bandwidth)
    )
    mfu = None if cost is None else cost.useful / chips / chip.flops / max(*times, network_s)
    return Fit(
        name,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes - memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        beside,
        cost,
        *times,
        network_s,
        mfu,
        traffic,
    )


def advice(fit: Fit, sampler: bool) -> str:
    """What to change where a program does not fit."""
    if sampler:
        return "fewer rollout.slots, a larger mesh.rollout_tensor, or shorter rollout.context_tokens"
    if fit.temporaries > fit.arguments:
        return "fewer train.micro_rows, train.remat='full', a smaller train.head_chunk, or more mesh.tensor"
    return "more chips along mesh.fsdp, over which parameters and optimiser state are spread"
