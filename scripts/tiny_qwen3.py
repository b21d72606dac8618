"""Makes tiny Qwen3-shaped models for the vLLM tests, of seeded random weights:  tiny_qwen3.py FOLDER

`FOLDER/words` emits whole words only, so that its text has one tokenisation, as a trained model's mostly has;
`FOLDER/pieces` emits parts of words too, whose text is tokenised otherwise than it was emitted. Neither ever ends its
reasoning by itself (the output layer keeps markers away): `thinking_token_budget` does. The output depends
on the whole prefix: a fork on a wrong one shows. Run with vLLM's own Python; nothing is downloaded.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 20
VOCABULARY = 1024
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 4, 256, 512, 4, 2, 64
MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINK = ["<think>", "</think>"]

TEXT = """
We take a tile of the matrix and keep it in shared memory while each warp walks over the other operand.
The reference reads every row twice, so a fused kernel that reads it once should be bound by memory only.
A block of threads loads vectors of four floats, waits at the barrier, then multiplies and adds into registers.
Wait, the last row is not a multiple of the tile, therefore the load needs a mask or the result is wrong there.
First we write the simple loop and check that it compiles, after that we unroll it and look at the timing again.
The reduction over columns goes through the warp with shuffles and ends in one atomic per block of threads.
Half precision would be faster but the tolerance of the test is tight, hence we stay with single precision here.
Now the launch: one block for each group of rows, as many threads as fit, and enough work to hide the latency.
It could help to stage the next tile while this one is being used, with two buffers and one wait between them.
The output is written once, in order, so that neighbouring threads touch neighbouring addresses of the device.
On second thought the softmax wants the largest value before the sum, which an online update gives in one pass.
Each candidate is judged against the same inputs, with the same seed, and only the fastest correct one is kept.
Let me think about occupancy: too many registers for a thread leave few warps on the multiprocessor to switch to.
The profile says that most cycles stall on loads from global memory, which more bytes in flight would cover.
So the decision is a square tile with padding against bank conflicts, vector loads, and a grid over both axes.
"""

TEMPLATE = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' -}}"
    "{%- if m.role == 'assistant' -%}"
    "{{- '<think>\\n' + (m.reasoning_content or m.reasoning or '').strip('\\n') + '\\n</think>\\n\\n' -}}"
    "{%- endif -%}{{- m.content + '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"
)


def tokenizer() -> Tokenizer:
    """Byte-level BPE, trained on the text above; every word of it is one token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS) - len(THINK),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = TEXT.replace("\n", " ")
    made.train_from_iterator([words, words.lower(), "```python\n", "\n```"], trainer)
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKERS])
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in THINK])
    return made


def emitted(made: Tokenizer, *, pieces: bool) -> list[int]:
    """The ids that a model may emit: words with their blank, full stops and line ends; or any printable token."""
    words = {" " + word.strip(".,:") for word in TEXT.split()}
    own = {mark: made.token_to_id(mark) for mark in MARKERS + THINK}
    out = []
    for number in range(made.get_vocab_size()):
        text = made.decode([number])
        clean = text.isascii() and (text.isprintable() or text == "\n")
        chosen = clean and bool(text) if pieces else text in words or text in (".", ",", "\n")
        if number not in own.values() and chosen:
            out.append(number)
    return out


def weights(size: int, allowed: list[int]) -> dict[str, torch.Tensor]:
    """All tensors of the model; each layer changes the stream about as much as the one before."""
    source = torch.Generator().manual_seed(SEED)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=source) * (scale / math.sqrt(columns))

    # Hidden dimension 0 is a constant that no layer writes to: through it the output layer keeps markers away.
    embedding = torch.randn(size, HIDDEN, generator=source)
    embedding[:, 0] = 4.0
    out = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        attention, inner = matrix(HIDDEN, HEADS * HEAD, 2.0), matrix(HIDDEN, INNER, 6.0)
        attention[0], inner[0] = 0.0, 0.0
        out |= {
            f"{at}input_layernorm.weight": torch.ones(HIDDEN),
            f"{at}post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{at}self_attn.q_norm.weight": torch.full((HEAD,), 2.0),  # attention to few places, not to the mean of all
            f"{at}self_attn.k_norm.weight": torch.ones(HEAD),
            f"{at}self_attn.q_proj.weight": matrix(HEADS * HEAD, HIDDEN),
            f"{at}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            f"{at}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            f"{at}self_attn.o_proj.weight": attention,
            f"{at}mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            f"{at}mlp.up_proj.weight": matrix(INNER, HIDDEN),
            f"{at}mlp.down_proj.weight": inner,
        }
    head = torch.zeros(size, HIDDEN)
    head[:, 0] = -50.0
    own = embedding[allowed].clone()
    own[:, 0] = 0.0
    own /= own.norm(dim=1, keepdim=True)
    made = matrix(len(allowed), HIDDEN, 0.5)  # at temperature 0.1 a few words compete: seeds matter
    made -= own * ((made * own).sum(dim=1, keepdim=True) + 1.0)  # a word does not bring itself again
    made[:, 0] = 0.0
    head[allowed] = made
    out["lm_head.weight"] = head
    return out


def write(folder: Path, *, pieces: bool) -> None:
    """One model: tokenizer, weights, configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    size = VOCABULARY
    end = made.token_to_id("<|im_end|>")
    made.save(str(folder / "tokenizer.json"))
    save_file(weights(size, emitted(made, pieces=pieces)), folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": size,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "eos_token_id": end,
        "dtype": "float32",
    }
    tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 16384,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))


if __name__ == "__main__":
    for name in ("words", "pieces"):
        write(Path(sys.argv[1]) / name, pieces=name == "pieces")
