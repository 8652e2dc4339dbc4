"""Fetches benchmarks and training sets from the hub, converts data files, and checks them.

    python -m tools.prepare_data fetch aime24 math500 --to data     # from the hub
    python -m tools.prepare_data convert rows.parquet data/own.jsonl
    python -m tools.prepare_data check data/*.jsonl                 # rows, golds, gold = gold

`check` and `convert` read every file as training and evaluation do. What `fetch` writes stands where the
config's section `benchmarks` looks for it.
"""

import argparse
import fnmatch
import json
import pathlib
import shutil
import sys

import httpx
import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from rich.console import Console
from rich.table import Table

from taorl_jax.data.files import DataError
from taorl_jax.data.sources import FileProblems
from taorl_jax.errors import UserError

# name -> (repository on the hub, pattern of the file in it): public copies of what the papers use.
HUB = {
    "aime24": ("math-ai/aime24", "test*"),
    "aime25": ("math-ai/aime25", "test*"),
    "math500": ("HuggingFaceH4/MATH-500", "test.jsonl"),
    "olympiadbench": ("Hothan/OlympiadBench", "OE_TO_maths_en_COMP/*.parquet"),
    "amc23": ("math-ai/amc23", "test*"),
    "hmmt25": ("MathArena/hmmt_feb_2025", "data/*.parquet"),
    "minerva": ("math-ai/minervamath", "test*"),
    "gsm8k": ("openai/gsm8k", "main/test*.parquet"),
    "livecodebench": ("livecodebench/code_generation_lite", "test6.jsonl"),
    "dapo_math_17k": ("BytedTsinghua-SIA/DAPO-Math-17k", "data/*.parquet"),
}


def check(paths: list[str], deduplicate: bool) -> list[tuple[str, str]]:
    """(file, what became of its rows) of each file; the text of an error says which rows are at fault."""
    found = []
    for path in paths:
        try:
            source = FileProblems(path, setting="check", deduplicate=deduplicate, max_refused=1.0)
        except DataError as error:
            found.append((path, str(error)))
            continue
        kinds = "programs with tests" if source[0].tests else "golds, each equal to itself"
        report = source.report
        left_out = f"{report.refused} refused, {report.duplicates} duplicates"
        found.append((path, f"{report.rows} rows, {len(source)} {kinds}, {left_out}"))
    return found


def convert(source: str, target: str, deduplicate: bool, max_refused: float) -> int:
    """Writes a file's problems as JSON Lines with `id`, `problem`, `answer` and `tier`; returns how many.

    Raises:
      UserError: too many rows are malformed, or the file holds programs, whose tests stay in their file.
    """
    problems = FileProblems(source, setting="convert", deduplicate=deduplicate, max_refused=max_refused)
    if problems[0].tests:
        raise UserError(
            f"{source} holds programs; name the release file itself in `benchmarks.livecodebench`"
        )
    with open(target, "w", encoding="utf-8") as file:
        for problem in problems:
            row = {"id": problem.id, "problem": problem.text, "answer": problem.answer}
            row |= {"tier": problem.tier} if problem.tier else {}
            file.write(json.dumps(row) + "\n")
    return len(problems)


def fetch(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Downloads a set and puts it where the config looks for it; returns the path.

    Raises:
      UserError: there is no such set, the hub cannot be reached, or the file is not there any more.
    """
    if name not in HUB:
        raise UserError(f"{name}: no such set; there are {', '.join(HUB)}")
    repository, pattern = HUB[name]
    try:
        files = fnmatch.filter(
            sorted(huggingface_hub.list_repo_files(repository, repo_type="dataset")), pattern
        )
        if not files:
            raise UserError(f"{name}: {repository} has no file {pattern} any more")
        cached = huggingface_hub.hf_hub_download(repository, files[0], repo_type="dataset")
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, httpx.HTTPError) as error:
        raise UserError(
            f"{name}: {repository} cannot be fetched ({type(error).__name__}); get its {pattern} by other "
            f"means, and name it in the config (benchmarks.{name}) or convert it with `convert`"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.jsonl"
    if name == "livecodebench":
        shutil.copyfile(cached, target)
    else:
        convert(cached, str(target), deduplicate=name == "dapo_math_17k", max_refused=0.001)
    return target


def main(arguments: list[str] | None = None):
    """Parses the command line; a UserError ends the process with its message."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deduplicate", action="store_true", help="keep one row of each problem")
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download sets from the hub")
    fetching.add_argument("names", nargs="+", metavar="NAME", help=", ".join(HUB))
    fetching.add_argument("--to", type=pathlib.Path, default=pathlib.Path("data"), help="folder")
    checking = commands.add_parser("check", help="rows, golds, gold = gold")
    checking.add_argument("paths", nargs="+")
    converting = commands.add_parser("convert", help="to JSON Lines")
    converting.add_argument("source")
    converting.add_argument("target")
    converting.add_argument("--max-refused", type=float, default=0.0, help="share that may be malformed")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        if options.command == "fetch":
            for name in options.names:
                console.print(fetch(name, options.to), highlight=False, soft_wrap=True)
        elif options.command == "convert":
            count = convert(options.source, options.target, options.deduplicate, options.max_refused)
            console.print(f"{count} problems in {options.target}", highlight=False)
        else:
            _print(check(options.paths, options.deduplicate), console)
    except UserError as error:
        sys.exit(f"error: {error}")


def _print(found, console):
    table = Table("file", "rows")
    for path, text in found:
        table.add_row(path, text)
    console.print(table)


if __name__ == "__main__":
    main()
