"""The packaged SmolLM2 as a folder that vLLM reads, float32, where transformers is.

`python smollm2_folder.py FILE.gguf FOLDER`
"""

from __future__ import annotations

import sys
from pathlib import Path


def make(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    named = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    read = AutoModelForCausalLM.from_pretrained(**named, dtype=torch.float32)
    del read.config.quantization_config  # it says GGUF, which is not written
    plain = type(read)(read.config)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**named).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
