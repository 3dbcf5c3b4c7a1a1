"""Reduces the reference results of merging to what the tests need.

    python3 make.py FOLDER

FOLDER has merge.json and merge.safetensors (float64, made by numpy from the adapters `r4_all` and `r16_all_rs` of
`crates/models/tests/data/lora`). Kept: all results of the value projection, some of the query projection, as float32; the
masks of DARE as bytes.
"""

import json
import struct
import sys
from pathlib import Path

FOLDER, HERE = Path(sys.argv[1]), Path(__file__).parent
QUERY_CASES = {2, 6, 9, 11}

data = (FOLDER / "merge.safetensors").read_bytes()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + length])
kept, body = {}, b""
for name, info in sorted(header.items()):
    part = name.split(".")
    query = name.endswith("q_proj")
    if part[0] in ("__metadata__", "delta") or (query and part[0] == "out" and int(part[1]) not in QUERY_CASES):
        continue
    begin, end = (8 + length + offset for offset in info["data_offsets"])
    values, dtype = data[begin:end], info["dtype"]
    if query and part[0].startswith("mask") and not name.startswith("mask_p0.5"):
        continue
    if dtype == "F64":
        floats = struct.unpack(f"<{len(values) // 8}d", values)
        values, dtype = struct.pack(f"<{len(floats)}f", *floats), "F32"
    kept[name] = {"dtype": dtype, "shape": info["shape"], "data_offsets": [len(body), len(body) + len(values)]}
    body += values
text = json.dumps(kept, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
(HERE / "merge.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
(HERE / "merge.json").write_text(json.dumps(json.loads((FOLDER / "merge.json").read_text()), separators=(",", ":")) + "\n")
