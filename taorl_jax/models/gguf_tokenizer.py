"""The tokenizer inside a GGUF file, as a Hugging Face tokenizer."""

from collections.abc import Callable

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from taorl_jax.models.model_config import CheckpointError

# `tokenizer.ggml.token_type`: what is not plain text. An unused id is padding of the table.
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5

_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(digits: str):
    pieces = pre_tokenizers.Split(Regex(_PIECES.replace("DIGITS", digits)), "isolated")
    return [pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


# `tokenizer.ggml.pre` -> how text is split before it is merged; llama.cpp's names of the rules.
_PRE_TOKENIZERS = {
    "smollm": lambda: [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ],
    "qwen2": lambda: _split(""),
    "llama-bpe": lambda: _split("{1,3}"),
}


def build_tokenizer(get: Callable) -> PreTrainedTokenizerFast:
    """Byte-level BPE from the vocabulary, the merges and the token types of a GGUF file.

    Args:
      get: (name below `tokenizer.`, default) -> value.

    Raises:
      CheckpointError: another kind of tokenizer, or an unknown rule of splitting, by name.
    """
    kind, rule = get("ggml.model"), get("ggml.pre", None)
    if kind != "gpt2":
        raise CheckpointError(f"tokenizer.ggml.model={kind!r} is not supported; byte-level BPE (gpt2) is")
    if rule not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"tokenizer.ggml.pre={rule!r} is not supported; the rules known are {', '.join(_PRE_TOKENIZERS)}"
        )
    tokens, types = get("ggml.tokens"), get("ggml.token_type")
    vocabulary = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    merges = [tuple(merge.split(" ")) for merge in get("ggml.merges")]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rule == "llama-bpe"))
    backend.normalizer = normalizers.NFC() if rule == "qwen2" else None
    backend.pre_tokenizer = pre_tokenizers.Sequence(_PRE_TOKENIZERS[rule]())
    backend.decoder = decoders.ByteLevel()
    for token, index in vocabulary.items():
        if types[index] in (CONTROL, USER_DEFINED):
            added = AddedToken(token, special=types[index] == CONTROL, normalized=False)
            (backend.add_special_tokens if added.special else backend.add_tokens)([added])
    named = {
        f"{role}_token": tokens[index]
        for role, name in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
        if (index := get(f"ggml.{name}_token_id", None)) is not None
    }
    if get("ggml.add_bos_token", False):
        first = named["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, vocabulary[first])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=get("chat_template", None), **named
    )
