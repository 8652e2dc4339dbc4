"""What a compiled program sends between chips, read from its optimised HLO, with loops counted out."""

import math
import re
from collections import Counter

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_BITS = {"pred": 8, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_OPERATION = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(-start)?\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")


def collectives(hlo: str, trips: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Kind -> (how often it runs, bytes that it leaves on one chip, in all).

    Args:
      hlo: text of the compiled program.
      trips: turns of the loops whose number is data, from the outermost in; loops deeper inside count once.
    """
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in hlo.splitlines():
        if found := _COMPUTATION.match(line):
            name = found[1]
            bodies[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name:
            bodies[name].append(line)
    counts, sizes = Counter(), Counter()

    def visit(computation, times, depth):
        for line in bodies.get(computation, ()):
            if found := _OPERATION.search(line):
                counts[found[2]] += times
                sizes[found[2]] += times * _result_bytes(found[2], found[1], bool(found[3]))
            turns, inside = times, depth
            if " while(" in line and (known := _TRIPS.search(line)):
                turns = times * int(known[1])
            elif " while(" in line:
                turns, inside = times * (trips[depth] if depth < len(trips) else 1), depth + 1
            for called in _CALLED.findall(line):
                visit(called, turns, inside)

    visit(entry, 1, 0)
    return {kind: (counts[kind], sizes[kind]) for kind in KINDS if counts[kind]}


def _result_bytes(kind: str, shapes: str, asynchronous: bool) -> int:
    """Of a result; that of an asynchronous start lists the operands first, and a permute's also its flags."""
    sizes = [
        math.prod(int(n) for n in extent.split(",") if n) * _BITS[dtype] // 8
        for dtype, extent in _SHAPE.findall(shapes)
        if dtype in _BITS
    ]
    if kind == "collective-permute":
        return max(sizes, default=0)
    return sum(sizes[len(sizes) // 2 :] if asynchronous else sizes)
