"""Makes `qwen3/`: a tiny embedding model in the form of Qwen3-Embedding, and the vectors that transformers computes in float64.

    python3 make.py

Needs torch and transformers 5.24. Weights are random and of 16 bits. The tokenizer is that of `tiny/qwen3` with the end of text
behind each text; the vector is the last state, one long.
"""

import json
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent
TEXTS = ["The cat sat on the mat.", "", "Instruct: Given a query, retrieve passages\nQuery: turtles", "Café 東京 " * 20]


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def main():
    folder, source = HERE / "qwen3", HERE.parent / "tiny/qwen3/hf"
    definition = json.loads((source / "tokenizer.json").read_text())
    end = "<|endoftext|>"
    definition["post_processor"] = {"type": "Sequence", "processors": [definition["post_processor"], {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
                 {"SpecialToken": {"id": end, "type_id": 1}}],
        "special_tokens": {end: {"id": end, "ids": [511], "tokens": [end]}}}]}
    write(folder / "tokenizer.json", definition)
    write(folder / "tokenizer_config.json", {"eos_token": end, "pad_token": end, "tokenizer_class": "Qwen2Tokenizer"})
    name = "sentence_transformers.models."
    write(folder / "modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": name + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": name + "Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": name + "Normalize"}])
    write(folder / "1_Pooling/config.json", {
        "word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False,
        "pooling_mode_lasttoken": True, "include_prompt": True})

    config = transformers.Qwen3Config(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=2,
        vocab_size=520, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=511, eos_token_id=511)
    config._attn_implementation = "eager"
    model = transformers.Qwen3Model(config).eval()
    generator = torch.Generator().manual_seed(3)
    for key, parameter in model.named_parameters():
        scale, mean = (0.2, 1.0) if key.endswith("norm.weight") else (1.0 / parameter.shape[-1] ** 0.5, 0.0)
        values = mean + scale * torch.randn(parameter.shape, generator=generator)
        parameter.data = values.to(torch.float16).to(torch.float64)
    # As published: the class of the whole, the names of the base model.
    save_file({key: value.to(torch.float16).contiguous() for key, value in model.state_dict().items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)

    encoder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    cases = []
    for text in TEXTS:
        ids = encoder.encode(text).ids
        with torch.no_grad():
            state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        cases.append(dict(text=text, ids=ids, vector=(state / state.norm()).tolist()))
    write(HERE / "qwen3.json", cases)


if __name__ == "__main__":
    main()
