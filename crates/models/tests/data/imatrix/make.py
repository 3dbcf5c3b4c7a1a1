"""Makes `llama-cpp.gguf` and `llama-cpp.dat`: one importance matrix in the two file formats of
llama.cpp's `llama-imatrix` (`save_imatrix` and `save_imatrix_legacy` in tools/imatrix/imatrix.cpp),
for the models of `../quant`. Needs NumPy and the Python package `gguf`.

    python make.py
"""

import struct
from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).parent
CHUNKS, CHUNK_SIZE, TEXT = 8, 512, "text.txt"


def means() -> dict[str, np.ndarray]:
    """Mean squares by tensor, in the order of names; those of one input are equal."""
    random = np.random.default_rng(110)
    by_input, means = {}, {}
    for tensor in gguf.GGUFReader(HERE / "../quant/llama-Q8_0.gguf").tensors:
        layer, _, part = tensor.name.removeprefix("blk.").partition(".")
        inputs = {"attn_q": "x", "attn_k": "x", "attn_v": "x", "ffn_gate": "y", "ffn_up": "y"}
        part = part.removesuffix(".weight")
        if part in inputs or part in ("attn_output", "ffn_down"):
            key = (layer, inputs.get(part, part))
            if key not in by_input:
                by_input[key] = np.exp(2 * random.standard_normal(tensor.shape[0])).astype(np.float32)
            means[tensor.name] = by_input[key]
    return dict(sorted(means.items()))


def write_gguf(means: dict[str, np.ndarray]) -> None:
    writer = gguf.GGUFWriter(HERE / "llama-cpp.gguf", "")
    # llama.cpp writes no architecture.
    writer.kv_data[0].clear()
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", [TEXT])
    writer.add_uint32("imatrix.chunk_count", CHUNKS)
    writer.add_uint32("imatrix.chunk_size", CHUNK_SIZE)
    count = np.float32(CHUNKS * CHUNK_SIZE)
    for name, mean in means.items():
        # One dimension: llama.cpp leaves out trailing ones.
        writer.add_tensor(f"{name}.in_sum2", mean * count)
        writer.add_tensor(f"{name}.counts", np.array([count]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_dat(means: dict[str, np.ndarray]) -> None:
    data = struct.pack("<i", len(means))
    for name, mean in means.items():
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", CHUNKS, len(mean))
        data += (mean * np.float32(CHUNKS)).astype("<f4").tobytes()
    data += struct.pack("<ii", CHUNKS, len(TEXT)) + TEXT.encode()
    (HERE / "llama-cpp.dat").write_bytes(data)


if __name__ == "__main__":
    write_gguf(means())
    write_dat(means())
