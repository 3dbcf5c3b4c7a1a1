"""Measures tokens per second of LoRA fine-tuning with PEFT, beside those of `bench sona --part deep`.

    python training.py CONFIG.json [--threads 2] [--batch 8] [--window 256] [--rank 8] [--steps 8]

CONFIG.json is that of a Llama model; its weights are random, which takes the same time. The first
step is not counted. Needs torch, transformers and peft.
"""

import argparse
import json
import statistics
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--window", type=int, default=256)
parser.add_argument("--rank", type=int, default=8)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--dtype", default="float32")
arguments = parser.parse_args()

torch.set_num_threads(arguments.threads)
torch.manual_seed(0)
config = LlamaConfig(**json.load(open(arguments.config)))
config.use_cache = False
model = LlamaForCausalLM(config).to(getattr(torch, arguments.dtype))
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
lora = LoraConfig(r=arguments.rank, lora_alpha=2 * arguments.rank, target_modules=targets)
model = get_peft_model(model, lora)
model.train()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
speeds = []
for step in range(arguments.steps + 1):
    tokens = torch.randint(config.vocab_size, (arguments.batch, arguments.window))
    started = time.perf_counter()
    optimizer.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    if step > 0:
        speeds.append(tokens.numel() / (time.perf_counter() - started))
print(
    f"{statistics.median(speeds):.0f} tokens/s ({min(speeds):.0f} to {max(speeds):.0f}), "
    f"torch {torch.__version__}, {arguments.dtype}"
)
