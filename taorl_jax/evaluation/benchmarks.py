"""The benchmarks that a config names: files, and samples of files."""

import dataclasses
import hashlib
import pathlib
import random
import zlib

from ml_collections import ConfigDict

from taorl_jax.data.files import DataError
from taorl_jax.data.problem import Problem
from taorl_jax.data.sources import FileProblems
from taorl_jax.errors import UserError

# name -> (benchmark, problems, seed). The paper drew 500 of OlympiadBench's with seed 42; how is not
# recorded, so these are 500 as well, but hardly the same.
SAMPLES = {"olympiadbench500": ("olympiadbench", 500, 42)}
MAX_PROBLEMS = 1 << 14


@dataclasses.dataclass(frozen=True, eq=False)  # so that it can be a key
class Benchmark:
    """A fixed set of problems.

    Attributes:
      name: as it was asked for.
      problems: in the file's order.
      digest: of the file, to notice that it was changed.
      programs: whether they ask for programs, not answers.
    """

    name: str
    problems: list[Problem]
    digest: str
    programs: bool

    @property
    def first_draw(self) -> int:
        """Number of the first problem in random keys, so that no two benchmarks share random numbers."""
        return (zlib.crc32(self.name.encode()) & 0xFFFF) * MAX_PROBLEMS


def load_benchmark(name: str, benchmarks: ConfigDict) -> Benchmark:
    """Reads a benchmark.

    Args:
      name: a key of the config's section `benchmarks`, or of SAMPLES.
      benchmarks: that section.

    Raises:
      UserError: there is no such benchmark, or its file is missing or malformed.
    """
    file_name, count, seed = SAMPLES.get(name, (name, None, None))
    if file_name not in benchmarks:
        raise UserError(f"--benchmarks {name}: there are {', '.join([*benchmarks, *SAMPLES])}")
    setting = f"benchmarks.{file_name}"
    problems = list(FileProblems(benchmarks[file_name], setting=setting))
    if count is not None and count < len(problems):
        chosen = sorted(random.Random(seed).sample(range(len(problems)), count))
        problems = [problems[index] for index in chosen]
    kinds = {bool(problem.tests) for problem in problems}
    if len(kinds) > 1 or len(problems) > MAX_PROBLEMS:
        raise DataError(f"{setting}: wants answers or programs, not both, and at most {MAX_PROBLEMS} of them")
    digest = hashlib.sha256(pathlib.Path(benchmarks[file_name]).read_bytes()).hexdigest()
    return Benchmark(name, problems, digest, kinds.pop())
