"""Makes the tests' tiny model: random weights under a fixed seed, and the demo model's tokenizer.

Its output must depend on its early context, or no test of the KV transfer could fail on it: with tied
embeddings and the usual small weights a random Llama repeats its last token whatever the KV cache
holds. Hence untied embeddings and a wide initializer, and a check before the folder appears. Four
heads allow tensor parallel 2.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from model import appearing  # beside this file; also sets HF_HUB_OFFLINE

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

SEED = 20
BLOCK = 128  # tokens in a KV block of vLLM on CPU
PROMPT = 300
PROMPTS = 4


def make(vocabulary: int, bos: int | None, eos: int | None) -> LlamaForCausalLM:
    """The same weights every time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        initializer_range=0.3,
        bos_token_id=bos,
        eos_token_id=eos,
        dtype=torch.bfloat16,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def deaf_prompts(model: LlamaForCausalLM) -> list[int]:
    """Which of some prompts have the same greedy continuation after their first block is changed."""
    import torch

    random = torch.Generator().manual_seed(SEED)

    def ids(count: int) -> torch.Tensor:
        return torch.randint(1000, model.config.vocab_size, (1, count), generator=random)

    def continuation(prompt: torch.Tensor) -> list[int]:
        with torch.inference_mode():
            out = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=8,
                min_new_tokens=8,
                do_sample=False,
                pad_token_id=0,
            )
        return out[0, prompt.shape[1] :].tolist()

    deaf = []
    for number in range(PROMPTS):
        prompt = ids(PROMPT)
        changed = torch.cat([ids(BLOCK), prompt[:, BLOCK:]], dim=1)
        if continuation(prompt) == continuation(changed):
            deaf.append(number)
    return deaf


def main() -> int:
    """Make the folder unless it is there; exit code 1 when the model would hide a lost KV cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="e.g. .cache/models/tiny")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder to take it from")
    args = parser.parse_args()
    if args.folder.exists():
        print(f"{args.folder} is there already")
        return 0
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    model = make(len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id)
    if deaf := deaf_prompts(model):
        print(
            f"the output of prompts {deaf} does not depend on their first {BLOCK} tokens",
            file=sys.stderr,
        )
        return 1
    with appearing(args.folder) as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
    print(f"made {args.folder}: a changed first block changes the output of all {PROMPTS} prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
