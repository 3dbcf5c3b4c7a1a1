"""Measures sentence-transformers as `benches/src/bin/embeddings.rs` measures this engine. Usage: MODEL THREADS"""
import json
import sys
import time

import torch
from sentence_transformers import SentenceTransformer

WORDS = "the of and to in is was he for on as with that it by at".split()
torch.set_num_threads(int(sys.argv[2]))
model = SentenceTransformer(sys.argv[1], device="cpu")


def text(at, tokens):
    return " ".join(WORDS[(at * 7 + i * 5 + i // 16) % len(WORDS)] for i in range(tokens - 2))


for line in sys.stdin:
    batch, tokens, seconds = line.split()
    batch, tokens, seconds = int(batch), int(tokens), float(seconds)
    texts = [text(at, tokens) for at in range(batch)]
    encode = lambda: model.encode(texts, batch_size=batch, normalize_embeddings=True, show_progress_bar=False)
    counted = sum(len(ids) for ids in model.tokenizer(texts)["input_ids"])
    encode()
    start, cpu, runs = time.perf_counter(), time.process_time(), 0
    while runs < 3 or time.perf_counter() - start < seconds:
        encode()
        runs += 1
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"tokens": runs * counted, "wall_s": wall, "cpu_s": cpu}), flush=True)
