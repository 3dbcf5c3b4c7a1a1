"""Gradients of LoRA factors of the tiny models, as PyTorch computes them.

    python3 make.py [MODELS] [OUT]

MODELS is crates/models/tests/data; OUT is the file to write. Needs torch, transformers, peft and safetensors. For each model:
factors of rank 2 drawn from a seed, two sequences of random tokens (so that one is longer than the windows), a mask, and in
float64 the log-probability of each scored token, the loss `-sum(c_t log p_t)` with one coefficient per token, and its gradient
with respect to every factor. `pooled` is the gradient of a fixed linear function of the mean final hidden states.
"""

import sys
from pathlib import Path

import numpy as np
import peft
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

RANK, ALPHA = 2, 3.0
LENGTHS = (37, 70)
MODELS = {
    "llama": "tiny/llama/hf", "llama_yarn": "tiny/llama_yarn/hf", "mistral": "tiny/mistral/hf", "qwen2": "tiny/qwen2/hf",
    "qwen3": "tiny/qwen3/hf", "phi3": "tiny/phi3/hf", "gemma2": "tiny/gemma2/hf", "gemma3": "tiny/gemma3/hf",
    "gemma": "forms/gemma", "llama_biases": "forms/llama_biases", "ministral3": "forms/ministral3",
}
SEPARATE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
JOINT = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def short(name):
    """`layers.1.mlp.up_proj.A` of PEFT's name of a factor."""
    name = name[name.index("layers."):]
    return name.replace(".lora_A.default.weight", ".A").replace(".lora_B.default.weight", ".B")


def run(name, folder, out):
    generator = np.random.default_rng(7)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    targets = JOINT if name.startswith("phi3") else SEPARATE
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config).double().eval()
    factors = {short(key): value for key, value in model.named_parameters() if value.requires_grad}
    for key in sorted(factors):
        value = generator.normal(0.0, 0.08, factors[key].shape).astype(np.float32)
        out[f"{name}.factor.{key}"] = value
        factors[key].data.copy_(torch.from_numpy(value).double())
    loss, pooled = 0.0, 0.0
    vocab, width = model.config.get_text_config().vocab_size, model.config.get_text_config().hidden_size
    direction = torch.from_numpy(generator.normal(0.0, 1.0, width).astype(np.float32)).double()
    out[f"{name}.direction"] = direction.float().numpy()
    for index, length in enumerate(LENGTHS):
        tokens = generator.integers(0, vocab, length)
        mask = (generator.random(length) < 0.7).astype(np.uint8)
        coefficients = generator.normal(0.0, 0.1, length).astype(np.float32)
        result = model(torch.from_numpy(tokens)[None], output_hidden_states=True, use_cache=False)
        chosen = [t for t in range(1, length) if mask[t]]
        logp = torch.log_softmax(result.logits[0].double(), -1)[torch.tensor(chosen) - 1, torch.from_numpy(tokens[chosen])]
        loss = loss - (logp * torch.from_numpy(coefficients[chosen]).double()).sum()
        pooled = pooled + (result.hidden_states[-1][0].mean(0) * direction).sum() * (index + 1)
        out[f"{name}.tokens{index}"] = tokens.astype(np.int32)
        out[f"{name}.mask{index}"] = mask
        out[f"{name}.coefficients{index}"] = coefficients[chosen]
        out[f"{name}.logp{index}"] = logp.detach().numpy()
    names = sorted(factors)
    for what, value in (("gradient", loss), ("pooled", pooled)):
        gradients = torch.autograd.grad(value, [factors[key] for key in names], retain_graph=True)
        for key, gradient in zip(names, gradients):
            out[f"{name}.{what}.{key}"] = gradient.float().numpy()


def main():
    here = Path(__file__).resolve().parent
    models = Path(sys.argv[1]) if len(sys.argv) > 1 else here / "../../../models/tests/data"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else here / "gradients.safetensors"
    torch.manual_seed(0)
    out = {}
    for name, folder in MODELS.items():
        if (models / folder / "model.safetensors").exists():
            run(name, models / folder, out)
            print(name, flush=True)
    save_file(out, target)


if __name__ == "__main__":
    main()
