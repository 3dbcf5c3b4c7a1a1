"""Makes a LoRA adapter for some of the models of `tiny/` as PEFT saves it, and what PEFT computes with it switched on.

    python3 make.py MODELS

MODELS is the folder `tiny`; the adapters go beside this script, a folder each. Needs torch, transformers 4.57 and PEFT 0.17.
The weights are random, from seeds. The logits, at every fifth of 40 positions, are computed in float64 from the weights as they
are saved, but for what transformers itself casts to float32 (norms, softmax, tables of rotary positions).
"""

import math
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
TOKENS, EVERY = 40, 5

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# Fields of the configuration; type of the adapter's tensors; how large B is.
ADAPTERS = {
    "phi3": (dict(r=3, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj", "o_proj", "down_proj"]), torch.float32, 0.15),
    # The first key that matches the end of a module's name decides; PEFT saves the keys sorted, and they are sorted here.
    "gemma2": (dict(
        r=3, lora_alpha=5, target_modules=[*SEVEN, "lm_head"],
        rank_pattern={"^model.layers.0.self_attn.k_proj": 1, "layers.1.mlp.up_proj": 4, "lm_head": 2, "v_proj": 2},
        alpha_pattern={"down_proj": 2, "layers.1.mlp.up_proj": 12, "layers.2.mlp.down_proj": 50, "lm_head": 3,
                       "self_attn.q_proj": 9, "up_proj": 3, "v_proj": 6}), torch.float32, 0.12),
    "qwen3": (dict(r=3, lora_alpha=4, use_rslora=True, layers_to_transform=[1], target_modules=SEVEN), torch.bfloat16, 0.3),
}


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def logits(model, ids):
    with torch.no_grad():
        return model.double()(input_ids=ids, use_cache=False).logits[0, ::EVERY]


def fill(model, dtype, size, generator):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                values = torch.randn(parameter.shape, generator=generator)
                parameter.data = (values * (size if "lora_B" in name else 1 / math.sqrt(parameter.shape[-1]))).to(dtype)


def main():
    models = Path(sys.argv[1])
    for seed, (name, (fields, dtype, size)) in enumerate(ADAPTERS.items()):
        generator = torch.Generator().manual_seed(seed)
        base = load(models / name / "hf")
        ids = torch.randint(4, base.config.vocab_size, (1, TOKENS), generator=generator)
        without = logits(base, ids)

        model = get_peft_model(load(models / name / "hf"), LoraConfig(task_type="CAUSAL_LM", **fields))
        fill(model, dtype, size, generator)
        model.peft_config["default"].base_model_name_or_path = f"tiny/{name}"
        model.peft_config["default"].target_modules = sorted(fields["target_modules"])
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        # Not the base model's lm_head as well, which PEFT would add for a target of that name.
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)

        # As read again, so that the configuration is the saved one too.
        model = PeftModel.from_pretrained(load(models / name / "hf"), folder).eval()
        expected = logits(model, ids)
        arrays = {"tokens": ids[0].numpy().astype(np.int32), "positions": np.arange(0, TOKENS, EVERY, dtype=np.int32),
                  "logits": np.ascontiguousarray(expected.numpy())}
        save_file(arrays, folder / "expected.safetensors")
        moved = (expected - without).abs()
        print(f"{name}: logits of deviation {expected.std():.2f}, moved by {moved.mean():.2f} on average, {moved.max():.1f} at most")


main()
