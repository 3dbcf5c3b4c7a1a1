"""Trains a LoRA adapter for the built-in model on one text, with PEFT.

    python3 train.py MODEL.gguf RUVLLM TRAIN.txt TEST.txt OUT [--general TEXT] [--epochs N] [--seed N]

Needs torch, transformers (4.51 or later), gguf and peft. MODEL is a Llama-like GGUF file, RUVLLM the program, which tokenizes.
OUT gets the adapter as PEFT writes it, factors in F16, and `training.json`: settings, loss by step, and the perplexity of the
test text and of a general text (windows of 512 tokens, no overlap) before and after, as transformers computes it in float32.
"""

import argparse
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
WINDOW, BATCH = 256, 8
RATE, WARMUP = 1.5e-3, 10
TEST_WINDOW, TEST_TOKENS = 512, 32768
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def ids_of(program, model, text):
    """Token ids of a text file, without BOS and EOS."""
    command = [program, "tokenize", "--json", "-q", "--no-special", "--raw", "--model", model]
    with open(text, "rb") as file:
        run = subprocess.run(command, stdin=file, capture_output=True, check=True)
    return torch.tensor(json.loads(run.stdout)["tokens"], device=DEVICE)


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


def train(model, ids, epochs, seed):
    """AdamW on whole windows in random order; the rate falls along a cosine."""
    draw = random.Random(seed)
    starts = list(range(0, len(ids) - WINDOW, WINDOW))
    batches = []
    for _ in range(epochs):
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


def arguments():
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ["model", "program", "train", "test", "out"]:
        parser.add_argument(name, type=Path)
    parser.add_argument("--general", type=Path, help="text of which as little as possible is to be forgotten")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    texts = {"test": args.test, "general": args.general}
    held_out = {name: ids_of(args.program, args.model, text) for name, text in texts.items() if text}
    ids = ids_of(args.program, args.model, args.train)
    folder, name = str(args.model.resolve().parent), args.model.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, torch_dtype=torch.float32).to(DEVICE)
    before = {name: perplexity(model, text) for name, text in held_out.items()}
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, lora_dropout=DROPOUT, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    losses = train(model, ids, args.epochs, args.seed)
    # The name of the model, not its place on this machine.
    model.peft_config["default"].base_model_name_or_path = args.model.name
    model.save_pretrained(args.out)
    weights = args.out / "adapter_model.safetensors"
    save_file({key: value.half() for key, value in load_file(weights).items()}, weights, {"format": "pt"})
    settings = dict(rank=RANK, alpha=ALPHA, dropout=DROPOUT, window=WINDOW, batch=BATCH, rate=RATE,
                    epochs=args.epochs, seed=args.seed)
    after = {name: perplexity(model, text) for name, text in held_out.items()}
    result = dict(settings=settings, train_tokens=len(ids), test_tokens=min(len(held_out["test"]), TEST_TOKENS),
                  perplexity_before=before["test"], perplexity_after=after["test"],
                  general_before=before.get("general"), general_after=after.get("general"), losses=losses)
    (args.out / "training.json").write_text(json.dumps(result) + "\n")
    for name in held_out:
        print(f"perplexity of the {name} text: {before[name]:.3f} -> {after[name]:.3f}")


if __name__ == "__main__":
    main()
