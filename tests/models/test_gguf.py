"""GGUF files written by the gguf library itself, against transformers on the same dequantised weights."""

import json

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

pytest.importorskip("torch", reason="the oracle is installed on Python 3.11 only")

import torch
import transformers
from models.oracles import load
from worlds import TEXTS

from taorl_jax.models import transformer
from taorl_jax.models.gguf_folder import convert_gguf
from taorl_jax.models.model_config import CheckpointError
from taorl_jax.models.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEADS, KV_HEADS, LAYERS = 4, 2, 2
NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"tie_word_embeddings": True}),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {"tie_word_embeddings": False}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {"tie_word_embeddings": True}),
}


@pytest.fixture(scope="module")
def backend():
    """Split as SmolLM2 splits; the special tokens come first, as there."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 20, trainer)
    return backend


def to_gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def interleaved(rows, heads):
    """llama.cpp's order of a head's rows: 0, d/2, 1, d/2 + 1, ..."""
    order = np.arange(len(rows)).reshape(heads, -1)
    half = order.shape[1] // 2
    return rows[np.stack([order[:, :half], order[:, half:]], axis=2).reshape(-1)]


def writer_of(path, family, backend, *, pre="smollm", **changes):
    """A writer that holds all that is no tensor."""
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    vocabulary = backend.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    merges = json.loads(backend.to_str())["model"]["merges"]
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, value in changes.items():
        getattr(writer, name)(*(value if isinstance(value, tuple) else (value,)))
    return writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(path, family, backend, kinds, **changes):
    """A file of random weights; returns the torch model with what they are after quantisation."""
    config_class, model_class, settings = FAMILIES[family]
    config = config_class(
        vocab_size=backend.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=16,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        **settings,
    )
    torch.manual_seed(0)
    model = model_class(config).float().eval()
    if family == "qwen3":
        changes |= {"add_key_length": 16, "add_value_length": 16}
    writer = writer_of(path, family, backend, **changes)
    for i, (name, weight) in enumerate(model.named_parameters()):
        values = torch.randn_like(weight).numpy() * 0.3 + (1.0 if "norm" in name else 0.0)
        values = values.astype(np.float32)
        kind = kinds[i % len(kinds)] if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = quantize(values, kind)
        with torch.no_grad():
            weight.copy_(torch.tensor(dequantize(packed, kind)))
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            packed = interleaved(packed, HEADS if "q_proj" in name else KV_HEADS)
        writer.add_tensor(to_gguf_name(name), packed, raw_dtype=kind)
    finish(writer)
    return model


Q = gguf.GGMLQuantizationType


@pytest.mark.parametrize(
    ("family", "kinds"),
    [("llama", [Q.Q4_1, Q.Q8_0]), ("qwen2", [Q.F16, Q.Q5_0]), ("qwen3", [Q.BF16, Q.Q4_0, Q.F32])],
)
def test_the_folder_holds_the_dequantised_weights(tmp_path, backend, family, kinds):
    model = write_model(tmp_path / "model.gguf", family, backend, kinds)
    convert_gguf(tmp_path / "model.gguf", tmp_path / "folder", max_bytes=50_000)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, expected[name]), name
    config, params = load(tmp_path / "folder")
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 40))
    positions = np.broadcast_to(np.arange(40), tokens.shape)
    hidden, _ = transformer.forward(config, params, jnp.array(tokens), jnp.array(positions))
    logits = model(torch.tensor(tokens)).logits.detach().numpy()
    np.testing.assert_allclose(transformer.unembed(params, hidden), logits, atol=1e-4 * np.abs(logits).max())
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}


def test_the_tokenizer_gives_the_same_ids(tmp_path, backend):
    write_model(tmp_path / "model.gguf", "llama", backend, [Q.Q8_0])
    convert_gguf(tmp_path / "model.gguf", tmp_path / "folder")
    tokenizer = Tokenizer.load(tmp_path / "folder")
    for text in (*TEXTS, "1234 56", "  é\n\n中\t", "a<b>\r\nc"):
        assert tokenizer.encode(text) == backend.encode(text).ids
        assert b"".join(tokenizer.token_bytes[i] for i in tokenizer.encode(text)) == text.encode()
    assert tokenizer.stop_ids == (0, 2)
    assert [i for i, token in enumerate(tokenizer.token_bytes) if token is None] == [0, 1, 2]
    rendered = "<|im_start|>user\n6 * 7?<|im_end|>\n"
    assert tokenizer.prompt_ids("6 * 7?") == backend.encode(rendered).ids
    generation = json.loads((tmp_path / "folder" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 2}


@pytest.mark.parametrize(
    ("family", "changes", "told"),
    [
        ("gemma3", {}, r"model\.gguf: general\.architecture='gemma3' is not supported"),
        ("llama", {"pre": "deepseek-llm"}, r"tokenizer\.ggml\.pre='deepseek-llm'"),
        ("llama", {"add_tokenizer_model": "llama"}, r"tokenizer\.ggml\.model='llama'"),
        ("llama", {"add_rope_scaling_type": gguf.RopeScalingType.YARN}, r"yarn"),
        ("llama", {"add_sliding_window": 64}, r"llama\.attention\.sliding_window=64"),
        ("llama", {"add_expert_count": 8}, r"llama\.expert_count=8"),
        ("llama", {"add_uint16": ("split.count", 3)}, r"split\.count is above 1"),
        ("llama", {"add_rope_dimension_count": 8}, r"llama\.rope\.dimension_count=8"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, backend, family, changes, told):
    writer = writer_of(tmp_path / "model.gguf", family, backend, **changes)
    names = ["token_embd", "output_norm"]
    layer = ["attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output"]
    layer += ["ffn_gate", "ffn_up", "ffn_down"]
    shapes = dict(token_embd=(backend.get_vocab_size(), 64), output_norm=(64,), attn_norm=(64,))
    shapes |= dict(ffn_norm=(64,), attn_q=(64, 64), attn_k=(32, 64), attn_v=(32, 64), attn_output=(64, 64))
    shapes |= dict(ffn_gate=(96, 64), ffn_up=(96, 64), ffn_down=(64, 96))
    for name in [*names, *(f"blk.{i}.{part}" for i in range(LAYERS) for part in layer)]:
        shape = shapes[name.rsplit(".", 1)[-1]]
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    finish(writer)
    with pytest.raises(CheckpointError, match=told):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "folder")
    assert not (tmp_path / "folder").exists() or not list((tmp_path / "folder").iterdir())


def test_tensors_that_do_not_fit_and_files_cut_short_are_refused(tmp_path, backend):
    writer = writer_of(tmp_path / "few.gguf", "llama", backend)
    writer.add_tensor("token_embd.weight", np.zeros((backend.get_vocab_size(), 64), np.float32))
    writer.add_tensor("rope_freqs.weight", np.zeros(8, np.float32))
    finish(writer)
    with pytest.raises(CheckpointError, match=r"missing: blk\.0\.attn_k\.weight.*not supported.*rope_freqs"):
        convert_gguf(tmp_path / "few.gguf", tmp_path / "folder")
    data = (tmp_path / "few.gguf").read_bytes()
    for length in (0, 3, 100, 5000, len(data) - 200):
        (tmp_path / "cut.gguf").write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf can't be read as GGUF"):
            convert_gguf(tmp_path / "cut.gguf", tmp_path / "folder")
