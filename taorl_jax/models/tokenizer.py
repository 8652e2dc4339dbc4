"""The policy's tokenizer: ids of prompts and observations, and the exact bytes of every token.

Text from outside (problems, tool output) is always split as plain text: the characters `<|im_end|>`
in it become ordinary tokens, so nobody but the policy and the chat template writes special tokens.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from taorl_jax.errors import MissingFile
from taorl_jax.models.model_config import CheckpointError

STOP_TOKENS = ("<|im_end|>", "<|endoftext|>")
# Stands for the problem while the chat template is taken apart: a private-use character.
PLACEHOLDER = "\ue000"


class Tokenizer:
    """A byte-level BPE tokenizer in Hugging Face layout.

    Attributes:
      size: largest token id + 1; the policy's vocabulary may be larger (padding), never smaller.
      stop_ids: sorted ids that end a turn: the tokenizer's end token, `<|im_end|>` and
        `<|endoftext|>` where they exist, and `eos_token_id` of `generation_config.json`.
      token_bytes: by id, the exact bytes of a token; None for special tokens, the UTF-8 text for
        added tokens that are not special, b"" for ids that name no token.
    """

    def __init__(self, hf_tokenizer: PreTrainedTokenizerFast, folder: Path):
        self._hf = hf_tokenizer
        self._folder = folder
        _check_byte_level(hf_tokenizer, folder)
        self.token_bytes: list[bytes | None] = _token_bytes(hf_tokenizer)
        self.size: int = len(self.token_bytes)
        self.stop_ids: tuple[int, ...] = _stop_ids(hf_tokenizer, folder)

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Reads the tokenizer of a checkpoint folder, from local files only.

        Raises:
          MissingFile: there is no such folder, or no `tokenizer.json` in it.
          CheckpointError: it is no byte-level BPE tokenizer, or it has no stop token.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise MissingFile(
                f"policy.checkpoint: no folder {str(folder)!r}; name a checkpoint in Hugging Face layout"
            )
        if not (folder / "tokenizer.json").is_file():
            raise MissingFile(
                f"policy.checkpoint: {str(folder)!r} holds no tokenizer.json; copy the model's tokenizer "
                "files into it, or save them with `save_pretrained`"
            )
        # AutoTokenizer would, by the model's type, put its own splitting rules in place of the file's.
        return cls(PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True), folder)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text: no special token is added, and none is recognised in it.

        Lone surrogates, which have no UTF-8 form, are read as "?".
        """
        text = text.encode("utf-8", errors="replace").decode("utf-8")
        return self._hf.encode(text, add_special_tokens=False, split_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Text for people and for the scorer, special tokens included; broken UTF-8 becomes U+FFFD."""
        return self._hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def prompt_ids(self, problem_text: str) -> list[int]:
        """Token ids of the chat template over one user message, with the generation prompt.

        The ids equal those of the rendered template unless the problem spells a special token: only
        the template's own special tokens are read as such, those in the problem are split as text.

        Raises:
          CheckpointError: the tokenizer has no chat template, or it does not render the message once, whole.
        """
        before, problem, after = self._render(problem_text)
        head = self._encode_template(before)
        tail = self._encode_template(after)
        # Text of the template that touches the problem is split together with it, as BPE would.
        end = max((stop for _, (_, stop), special in head if special), default=0)
        start = min((begin for _, (begin, _), special in tail if special), default=len(after))
        middle = self.encode(before[end:] + problem + after[:start])
        head_ids = [token for token, (_, stop), _ in head if stop <= end]
        tail_ids = [token for token, (begin, _), _ in tail if begin >= start]
        return head_ids + middle + tail_ids

    def _render(self, problem_text: str) -> tuple[str, str, str]:
        """The rendered template, cut into what precedes the problem, the problem, and what follows."""
        if not self._hf.chat_template:
            raise CheckpointError(
                f"policy.checkpoint: the tokenizer of {str(self._folder)!r} has no chat template; add "
                "`chat_template` to its tokenizer_config.json (or a chat_template.jinja file)"
            )
        render = lambda content: self._hf.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        before, *rest = render(PLACEHOLDER).split(PLACEHOLDER)
        rendered = render(problem_text)
        fits = len(rest) == 1 and rendered.startswith(before) and rendered[len(before) :].endswith(rest[0])
        if not fits:
            raise CheckpointError(
                f"policy.checkpoint: the chat template of {str(self._folder)!r} must show the user's message "
                "exactly once, between fixed texts"
            )
        after = rest[0]
        return before, rendered[len(before) : len(rendered) - len(after)], after

    def _encode_template(self, text: str) -> list[tuple[int, tuple[int, int], bool]]:
        """(id, [start, stop) in characters, is special) of each token of trusted text."""
        encoded = self._hf(
            text, add_special_tokens=False, split_special_tokens=False, return_offsets_mapping=True
        )
        ids, spans = encoded["input_ids"], encoded["offset_mapping"]
        special = [self.token_bytes[token] is None for token in ids]
        return list(zip(ids, spans, special, strict=True))


def _check_byte_level(hf_tokenizer: PreTrainedTokenizerFast, folder: Path):
    backend = hf_tokenizer.backend_tokenizer
    if not (isinstance(backend.model, models.BPE) and isinstance(backend.decoder, decoders.ByteLevel)):
        raise CheckpointError(
            f"policy.checkpoint: the tokenizer of {str(folder)!r} is not byte-level BPE, as Qwen's and "
            "Llama 3's are; code blocks are found in the bytes of tokens, so no other kind can be used"
        )


def byte_of_char() -> dict[str, int]:
    """The alphabet of byte-level BPE (GPT-2): printable Latin-1 stands for itself, the rest is 256 + n."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _token_bytes(hf_tokenizer: PreTrainedTokenizerFast) -> list[bytes | None]:
    bytes_of = byte_of_char()
    vocabulary = hf_tokenizer.get_vocab()
    added = hf_tokenizer.added_tokens_decoder
    table: list[bytes | None] = [b""] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        if index in added:
            table[index] = None if added[index].special else added[index].content.encode()
        elif set(token) <= bytes_of.keys():
            table[index] = bytes(bytes_of[char] for char in token)
        else:
            raise CheckpointError(
                f"policy.checkpoint: token {index} ({token!r}) is outside the byte-level alphabet"
            )
    return table


def _stop_ids(hf_tokenizer: PreTrainedTokenizerFast, folder: Path) -> tuple[int, ...]:
    vocabulary = hf_tokenizer.get_vocab()
    stops = {vocabulary[token] for token in STOP_TOKENS if token in vocabulary}
    if hf_tokenizer.eos_token_id is not None:
        stops.add(hf_tokenizer.eos_token_id)
    generation_config = folder / "generation_config.json"
    if generation_config.is_file():
        configured = json.loads(generation_config.read_text()).get("eos_token_id")
        if configured is not None:
            stops.update(configured if isinstance(configured, list) else [configured])
    if not stops:
        raise CheckpointError(
            f"policy.checkpoint: {str(folder)!r} names no end token; set `eos_token` in "
            "tokenizer_config.json or `eos_token_id` in generation_config.json"
        )
    return tuple(sorted(stops))
