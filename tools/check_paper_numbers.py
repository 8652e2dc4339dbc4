"""Checks the arithmetic of the paper's main table (Qwen2.5-7B, Avg@16 / Pass@16 in percent).

    python tools/check_paper_numbers.py

With N problems and 16 samples each, Avg@16 is a multiple of 1/(16 N) and Pass@16 one of 1/N, and a printed
difference is that of two printed cells. What breaks these rules is listed.
"""

import dataclasses

SAMPLES = 16
PROBLEMS = {
    "AIME24": 30, "AIME25": 30, "MATH500": 500, "Olympiad": 500, "AMC23": 40, "HMMT25": 30, "Minerva": 272,
}  # fmt: skip
# Rows of the table, (Avg@16, Pass@16) in the order of PROBLEMS.
TABLE = {
    "base": (
        (5.00, 36.67),
        (3.96, 26.67),
        (31.99, 88.00),
        (13.80, 55.00),
        (21.56, 80.00),
        (6.67, 26.67),
        (5.00, 36.67),
    ),
    "TIR": (
        (10.63, 40.00),
        (10.42, 20.00),
        (42.11, 79.80),
        (20.88, 49.80),
        (28.91, 70.00),
        (11.04, 23.33),
        (7.95, 30.51),
    ),
    "AEPO": (
        (16.67, 50.00),
        (10.21, 33.33),
        (57.20, 92.40),
        (29.35, 63.60),
        (41.25, 85.00),
        (14.17, 40.00),
        (13.79, 38.24),
    ),
    "SimpleTIR": (
        (33.33, 66.67),
        (21.04, 46.67),
        (77.51, 93.40),
        (42.95, 66.60),
        (68.75, 92.50),
        (16.66, 36.67),
        (21.23, 39.34),
    ),
    "TAO-RL": (
        (35.42, 73.33),
        (23.96, 46.67),
        (78.80, 95.60),
        (46.99, 70.00),
        (69.06, 97.50),
        (18.33, 46.67),
        (23.12, 40.81),
    ),
}
# Printed under the last row: TAO-RL minus SimpleTIR, as the caption has it.
DELTAS = ((2.09, 6.66), (2.92, 20.00), (1.29, 2.20), (4.04, 3.40), (0.31, 5.00), (1.67, 6.67), (1.89, 1.47))


@dataclasses.dataclass(frozen=True)
class Finding:
    """One cell that cannot be right; `what` says why, in words."""

    row: str
    benchmark: str
    metric: str
    printed: float
    what: str


def possible_counts(printed: float, cases: int) -> list[int]:
    """Numbers of successes out of `cases` whose percentage rounds to the printed one, halves either way."""
    around = round(printed * cases / 100)
    return [n for n in (around - 1, around, around + 1) if abs(100 * n / cases - printed) < 0.005 + 1e-9]


def check_cells() -> list[Finding]:
    """Cells that no number of successes can give."""
    findings = []
    for row, cells in TABLE.items():
        for (benchmark, problems), pair in zip(PROBLEMS.items(), cells, strict=True):
            for metric, printed, cases in zip(
                (f"Avg@{SAMPLES}", f"Pass@{SAMPLES}"), pair, (problems * SAMPLES, problems), strict=True
            ):
                if possible_counts(printed, cases):
                    continue
                near = 100 * round(printed * cases / 100) / cases
                what = f"no multiple of 1/{cases}; the nearest is {near:.2f}"
                copies = [
                    other
                    for other, cell in zip(PROBLEMS, cells, strict=True)
                    if other != benchmark and cell == pair
                ]
                findings.append(Finding(row, benchmark, metric, printed, what + _pasted(copies)))
    return findings


def _pasted(copies):
    return f"; the whole cell is that of {', '.join(copies)}" if copies else ""


def check_deltas() -> list[Finding]:
    """Printed differences that are not TAO-RL minus SimpleTIR, and whose difference they are."""
    findings = []
    for place, benchmark in enumerate(PROBLEMS):
        for metric, name in enumerate((f"Avg@{SAMPLES}", f"Pass@{SAMPLES}")):
            printed, ours = DELTAS[place][metric], TABLE["TAO-RL"][place][metric]
            differences = {row: ours - cells[place][metric] for row, cells in TABLE.items()}
            # One unit of the last place, for rounding before subtracting.
            rows = [row for row, difference in differences.items() if abs(difference - printed) < 0.015]
            if "SimpleTIR" not in rows:
                true, others = differences["SimpleTIR"], " or ".join(rows) or "no row"
                what = f"TAO-RL minus SimpleTIR is {true:+.2f}; this is TAO-RL minus {others}"
                findings.append(Finding("delta", benchmark, name, printed, what))
    return findings


def main():
    """Prints the findings."""
    for finding in check_cells() + check_deltas():
        cell = f"{finding.row:10} {finding.benchmark:9} {finding.metric:8}"
        print(f"{cell} {finding.printed:6.2f}  {finding.what}")


if __name__ == "__main__":
    main()
