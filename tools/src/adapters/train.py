"""Trains a LoRA adapter for the built-in model on one text, with PEFT.

    python3 train.py MODEL.gguf RUVLLM TRAIN.txt TEST.txt OUT

Needs torch, transformers (4.51 or later), gguf and peft. MODEL is a Llama-like GGUF file, RUVLLM the program, which tokenizes.
OUT gets the adapter as PEFT writes it, factors in F16, and `training.json`: settings, loss by step, and the perplexity of the
test text (windows of 512 tokens, no overlap) before and after, as transformers computes it in float32.
"""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import peft
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

RANK, ALPHA, DROPOUT = 8, 16, 0.05
WINDOW, BATCH, EPOCHS = 256, 8, 2
RATE, WARMUP = 1.5e-3, 10
TEST_WINDOW, TEST_TOKENS = 512, 32768
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def ids_of(program, model, text):
    """Token ids of a text file, without BOS and EOS."""
    command = [program, "tokenize", "--json", "-q", "--no-special", "--raw", "--model", model]
    with open(text, "rb") as file:
        run = subprocess.run(command, stdin=file, capture_output=True, check=True)
    return torch.tensor(json.loads(run.stdout)["tokens"])


@torch.no_grad()
def perplexity(model, ids):
    """exp of the mean loss over all predicted tokens of whole windows."""
    model.eval()
    total, count = 0.0, 0
    for window in ids[: TEST_TOKENS].split(TEST_WINDOW):
        if len(window) < TEST_WINDOW:
            break
        logits = model(window[None]).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
        count += len(window) - 1
    return math.exp(total / count)


def train(model, ids, seed):
    """AdamW on whole windows in random order; the rate falls along a cosine."""
    draw = random.Random(seed)
    starts = list(range(0, len(ids) - WINDOW, WINDOW))
    batches = []
    for _ in range(EPOCHS):
        shift = draw.randrange(WINDOW)
        epoch = [min(start + shift, len(ids) - WINDOW) for start in starts]
        draw.shuffle(epoch)
        batches += [epoch[at : at + BATCH] for at in range(0, len(epoch) - BATCH + 1, BATCH)]
    factors = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(factors, lr=RATE, weight_decay=0.0)
    losses = []
    for step, batch in enumerate(batches):
        model.train()
        share = min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / len(batches)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * share
        tokens = torch.stack([ids[start : start + WINDOW] for start in batch])
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(factors, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 4))
        if step % 10 == 0:
            print(f"step {step} of {len(batches)}: loss {losses[-1]:.3f}", file=sys.stderr, flush=True)
    return losses


def main():
    model_path, program, train_text, test_text, out = map(Path, sys.argv[1:])
    torch.manual_seed(0)
    ids, test = ids_of(program, model_path, train_text), ids_of(program, model_path, test_text)
    folder, name = str(model_path.resolve().parent), model_path.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, torch_dtype=torch.float32)
    before = perplexity(model, test)
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, lora_dropout=DROPOUT, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    losses = train(model, ids, 1)
    # The name of the model, not its place on this machine.
    model.peft_config["default"].base_model_name_or_path = model_path.name
    model.save_pretrained(out)
    weights = out / "adapter_model.safetensors"
    save_file({key: value.half() for key, value in load_file(weights).items()}, weights, {"format": "pt"})
    settings = dict(rank=RANK, alpha=ALPHA, dropout=DROPOUT, window=WINDOW, batch=BATCH, epochs=EPOCHS, rate=RATE)
    result = dict(settings=settings, train_tokens=len(ids), test_tokens=min(len(test), TEST_TOKENS),
                  perplexity_before=before, perplexity_after=perplexity(model, test), losses=losses)
    (out / "training.json").write_text(json.dumps(result) + "\n")
    print(f"perplexity of the test text: {before:.3f} -> {result['perplexity_after']:.3f}")


if __name__ == "__main__":
    main()
