"""The samples of an evaluation on the disk: appended one by one, so that a killed evaluation continues."""

import dataclasses
import fcntl
import json
import pathlib
import threading

from taorl_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sample:
    """One attempt at one problem.

    Attributes:
      benchmark, problem, sample: which; `problem` is its id, `sample` counts from 0.
      outcome, reason: of the verdict.
      answer: what was judged; None if nothing could be extracted.
      end: why the episode ended.
      prompt_tokens, response_tokens, observation_tokens: by author; the response is what the policy wrote.
      turns, calls, valid_calls, code_lines: policy segments, executed blocks, those that ran to exit code 0,
        and the lines of all blocks (blank ones and comments included, as the paper counts).
      text: prompt, response and observations, for people.
    """

    benchmark: str
    problem: str
    sample: int
    outcome: str
    reason: str
    answer: str | None
    end: str
    prompt_tokens: int
    response_tokens: int
    observation_tokens: int
    turns: int
    calls: int
    valid_calls: int
    code_lines: int
    text: str

    @property
    def key(self) -> tuple[str, str, int]:
        """Which sample it is."""
        return self.benchmark, self.problem, self.sample


class SampleLog:
    """An append-only JSON Lines file of samples; a context manager that one process holds at a time.

    A last line that a killed process left unfinished is cut off.

    Attributes:
      samples: by key.

    Raises (on entry):
      UserError: another process is writing it.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._lock = threading.Lock()
        self.samples: dict[tuple[str, str, int], Sample] = {}

    def __enter__(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise UserError(f"{self._path}: another evaluation is writing it; wait for it") from error
        samples, whole = read_samples(self._path)
        self._file.truncate(whole)
        self.samples = samples
        return self

    def __exit__(self, *_):
        self._file.close()

    def append(self, sample: Sample):
        """Writes a sample, whole, before it returns; safe from any thread."""
        # Escaped to ASCII: what a snippet printed may hold code points that UTF-8 cannot.
        line = json.dumps(dataclasses.asdict(sample)).encode() + b"\n"
        with self._lock:
            if sample.key in self.samples:
                raise ValueError(f"{sample.key} was sampled twice")
            self._file.write(line)
            self._file.flush()
            self.samples[sample.key] = sample


def read_samples(path: pathlib.Path) -> tuple[dict[tuple[str, str, int], Sample], int]:
    """(samples by key, bytes of their lines); an unfinished last line is not among them.

    Raises:
      UserError: the file is no file of samples.
    """
    samples, whole = {}, 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            sample = Sample(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}:{number}: no sample of an evaluation ({error})") from error
        samples[sample.key] = sample
        whole += len(line)
    return samples, whole
