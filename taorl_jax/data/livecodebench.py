"""LiveCodeBench's release files: programming problems with public and compressed private tests."""

import base64
import binascii
import io
import json
import pickle
import zlib

from taorl_jax.data.problem import CodeTest

MAX_TESTS_BYTES = 512 << 20  # of one problem's tests, unpacked


class _TextUnpickler(pickle.Unpickler):
    """Reads plain values only: every global, and with it every call, is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"the tests want to load {module}.{name}")

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("the tests refer to an object outside")


def decode_tests(packed: str) -> list[dict]:
    """Test cases as the release stores them: JSON, or base64 of zlib of a pickle of JSON text.

    The pickle cannot run anything: an unpickler that knows no globals can build nothing but plain values.

    Raises:
      ValueError: it is neither, it is too large, or the pickle asks for more than text.
    """
    if packed.lstrip().startswith("["):
        return json.loads(packed)
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(packed, validate=True), MAX_TESTS_BYTES)
        if inflate.unconsumed_tail:
            raise ValueError(f"tests of more than {MAX_TESTS_BYTES >> 20} MiB")
        text = _TextUnpickler(io.BytesIO(data)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, IndexError, KeyError) as error:
        raise ValueError(f"tests that cannot be unpacked: {error}") from error
    if not isinstance(text, (str, bytes)):
        raise ValueError(f"tests that hold a {type(text).__name__}, not text")
    return json.loads(text)


def problem_text(row: dict) -> str:
    """The question with what the program has to look like; one python block is asked for."""
    starter = row.get("starter_code") or ""
    form = (
        f"Complete this code:\n```\n{starter.strip()}\n```\n"
        if starter.strip()
        else "The program reads from stdin and prints to stdout.\n"
    )
    return (
        f"{row['question_content'].strip()}\n\n{form}"
        "Write the whole program in one ```python block; explain in comments."
    )


def read_tests(row: dict) -> tuple[CodeTest, ...]:
    """All tests of a release row, public ones first.

    Raises:
      ValueError: there are none, or they are malformed.
    """
    metadata = row.get("metadata") or "{}"
    function = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("func_name") or ""
    tests = []
    for field in ("public_test_cases", "private_test_cases"):
        for case in decode_tests(row.get(field) or "[]"):
            tests.append(_read_test(case, function))
    if not tests:
        raise ValueError("no tests")
    return tuple(tests)


def _read_test(case, function):
    if not isinstance(case, dict) or not all(isinstance(case.get(key), str) for key in ("input", "output")):
        raise ValueError("a test without `input` and `output` text")
    kind = case.get("testtype", "stdin")
    if kind not in ("stdin", "functional"):
        raise ValueError(f"testtype {kind!r} is neither stdin nor functional")
    if kind == "functional" and not function:
        raise ValueError("a functional test, and no `func_name` in the metadata")
    test = CodeTest(case["input"], case["output"], function if kind == "functional" else "")
    if test.function:
        test.arguments(), test.returned()  # what can't be read is a fault of the row, found before any run
    return test
