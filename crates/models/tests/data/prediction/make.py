"""Makes folders of tiny models with a prediction head (multi-token prediction), and what the head computes.

    python3 make.py
    python3 make.py convert LLAMA_CPP

Needs torch and transformers 5.24. The weights are random, from seeds, and of 16 bits. transformers has no such heads: the
formulas are those of DeepSeek-V3 (arXiv 2412.19437, section 2.2), the layer is the family's decoder layer of transformers, in
float64 but for what that casts to float32. `expected.safetensors` has, at every third token, the final hidden states of the
model, then of the head those of each token beside the hidden state of the one before, and the logits; then two tokens that
the head drafts, each the likeliest behind those before it, from its own states.

The second form writes `converted.gguf` beside the folders of `CONVERTED` with the converter of a llama.cpp checkout, without a
vocabulary.
"""

import copy
import importlib
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_torch_file

HERE = Path(__file__).parent
TOKENS, EVERY, DRAFTS = 25, 3, 2

COMMON = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, vocab_size=72,
              max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
              pad_token_id=0)
QWEN = dict(head_dim=8, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "full_attention"],
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
QWEN35 = dict(QWEN, rope_parameters=dict(QWEN["rope_parameters"], mrope_section=[1, 1, 0], mrope_interleaved=True))
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
ROUTED = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1, first_k_dense_replace=1,
              n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5)

# Class, configuration with the layer of the head as the last one, and the parts that the head has of its own.
FORMS = {
    "qwen35": ("Qwen3_5ForCausalLM", QWEN35, ["norm"]),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", dict(QWEN35, **MOE), ["norm"]),
    "qwen3next": ("Qwen3NextForCausalLM", dict(QWEN, **MOE, norm_topk_prob=True), ["norm"]),
    "glm4moe": ("Glm4MoeForCausalLM", dict(
        ROUTED, head_dim=16, num_hidden_layers=3, use_qk_norm=True, attention_bias=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
        ["norm", "embedding", "output"]),
    # Published heads have a norm; without, it is that of the model.
    "deepseek3": ("DeepseekV3ForCausalLM", dict(
        ROUTED, num_hidden_layers=3, num_key_value_heads=4, rms_norm_eps=1e-6, kv_lora_rank=16, q_lora_rank=20,
        qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12,
        rope_parameters=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=32, rope_theta=10000.0,
                             mscale=1.0, mscale_all_dim=0.7)), []),
}

# Names of the head outside of its layer, in a layer behind the last and apart.
NAMES = dict(projection="eh_proj", of_embeddings="enorm", of_states="hnorm", norm="shared_head.norm",
             embedding="embed_tokens", output="shared_head.head")
APART = dict(projection="fc", of_embeddings="pre_fc_norm_embedding", of_states="pre_fc_norm_hidden", norm="norm")

# Converter of llama.cpp, of folders whose heads it keeps.
CONVERTED = {"qwen35": ("qwen", "Qwen3_5TextModel"), "glm4moe": ("glm", "Glm4MoeModel")}


def random(shape, scale, generator, mean=0.0):
    return (mean + scale * torch.randn(shape, generator=generator)).half().float()


def fill(model, generator, norms_plus_one):
    """Wider weights than a fresh model has, so that no part of it is without effect."""
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *buffers]:
            if "norm" in name:
                parameter.copy_(random(parameter.shape, 0.2, generator, 0.0 if norms_plus_one and "linear_attn" not in name else 1.0))
            elif parameter.dim() > 1:
                scale = 1.0 if "embed" in name else 1.2 / math.sqrt(parameter.shape[-1])
                parameter.copy_(random(parameter.shape, scale, generator))
            else:
                parameter.copy_(random(parameter.shape, 0.1 if "correction" in name else 0.3, generator))


def rms_norm(x, weight, eps, plus_one):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (weight + 1.0 if plus_one else weight)


class Head:
    """The formulas; `block` computes the layer of the family and the norm behind it."""

    def __init__(self, block, parts, weights, plus_one):
        self.block, self.weights, self.plus_one, self.eps = block, weights, plus_one, block.config.rms_norm_eps
        self.embedding = weights["embedding"] if "embedding" in parts else block.embed_tokens.weight
        self.output = weights["output"] if "output" in parts else None

    def states(self, ids, hidden):
        embedded = rms_norm(self.embedding[ids], self.weights["of_embeddings"], self.eps, self.plus_one)
        hidden = rms_norm(hidden, self.weights["of_states"], self.eps, self.plus_one)
        inputs = torch.cat([embedded, hidden], dim=-1) @ self.weights["projection"].T
        return self.block(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0]


def make(name, seed):
    class_name, changes, parts = FORMS[name]
    generator = torch.Generator().manual_seed(seed)
    cls, fields = getattr(transformers, class_name), COMMON | changes
    config = cls.config_class(**fields)
    config._attn_implementation = config._experts_implementation = "eager"
    model = cls(config).eval()
    is_apart = name.startswith("qwen")
    fill(model, generator, is_apart)
    width, vocabulary = config.hidden_size, config.vocab_size
    mean = 0.0 if is_apart else 1.0
    weights = dict(projection=random((width, 2 * width), 1.2 / math.sqrt(2 * width), generator))
    weights |= {part: random((width,), 0.2, generator, mean) for part in ["of_embeddings", "of_states", "norm"]}
    weights["embedding"] = random((vocabulary, width), 1.0, generator)
    weights["output"] = random((vocabulary, width), 1.2 / math.sqrt(width), generator)
    ids = torch.randint(4, vocabulary, (TOKENS,), generator=generator)

    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    # A copy, since tables of rotary positions lose their precision too.
    copy.deepcopy(model).half().save_pretrained(folder)
    model.double()
    write_head(folder, config.num_hidden_layers - 1, parts, weights, is_apart)

    layers, output = model.model.layers, model.lm_head.weight
    n_layers = config.num_hidden_layers - 1
    weights = {part: weight.double() for part, weight in weights.items()}
    with torch.no_grad():
        model.model.layers, config.num_hidden_layers = layers[:n_layers], n_layers
        hidden = model.model(ids[None], use_cache=False).last_hidden_state[0]
        block = model.model
        block.layers, config.num_hidden_layers = layers[n_layers:], 1
        if hasattr(config, "layer_types"):
            config.layer_types = ["full_attention"]
        if "norm" in parts:
            block.norm.weight.copy_(weights["norm"])
        head = Head(block, parts, weights, is_apart)
        output = output if head.output is None else head.output
        tokens, before = ids[1:], hidden[:-1]
        of_head = head.states(tokens, before)
        logits = of_head @ output.T
        drafts, states = [], of_head
        for _ in range(DRAFTS):
            drafts.append((states[-1] @ output.T).argmax())
            tokens, before = torch.cat([tokens, drafts[-1][None]]), torch.cat([before, states[-1:]])
            states = head.states(tokens, before)
    expected = dict(hidden=hidden[::EVERY], head_hidden=of_head[::EVERY], head_logits=logits[::EVERY],
                    draft_hidden=states[-DRAFTS:], draft_logits=states[-DRAFTS:] @ output.T)
    expected = {key: value.detach().numpy().astype(np.float64) for key, value in expected.items()}
    tokens = dict(ids=ids.numpy().astype(np.int32), drafts=torch.stack(drafts).numpy().astype(np.int32))
    save_file(expected | tokens, folder / "expected.safetensors")
    print(f"{name}: states of deviation {of_head.std():.1f}, logits {logits.std():.1f}, drafts {tokens['drafts']}")


def write_head(folder, n_layers, parts, weights, is_apart):
    """Makes the last layer that of the head, under the names of published files."""
    stored = load_file(folder / "model.safetensors")
    of_head, beginning = f"model.layers.{n_layers}.", "mtp." if is_apart else f"model.layers.{n_layers}."
    layer = "mtp.layers.0." if is_apart else of_head
    stored = {name.replace(of_head, layer): weight for name, weight in stored.items()}
    for part in ["projection", "of_embeddings", "of_states", *parts]:
        stored[f"{beginning}{(APART if is_apart else NAMES)[part]}.weight"] = weights[part].half()
    save_torch_file(stored, folder / "model.safetensors", metadata=dict(format="pt"))
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = n_layers
    if "layer_types" in config:
        config["layer_types"].pop()
    # Qwen3-Next has no field.
    field = {"qwen3_next": None, "glm4_moe": "num_nextn_predict_layers", "deepseek_v3": "num_nextn_predict_layers"}
    field = field.get(config["model_type"], "mtp_num_hidden_layers")
    if field:
        config[field] = 1
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)


def convert(llama_cpp, name):
    """Converts a folder as llama.cpp does it."""
    sys.path[:0] = [llama_cpp, f"{llama_cpp}/gguf-py"]
    import gguf

    module, class_name = CONVERTED[name]
    converter = getattr(importlib.import_module(f"conversion.{module}"), class_name)
    converter.set_vocab = lambda self: None
    with tempfile.TemporaryDirectory() as copied:
        folder = Path(copied) / name
        shutil.copytree(HERE / name, folder, ignore=shutil.ignore_patterns("*.gguf"))
        converter(folder, gguf.LlamaFileType.MOSTLY_F16, HERE / name / "converted.gguf").write()


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["convert"]:
        for name in CONVERTED:
            convert(sys.argv[2], name)
        return
    for seed, name in enumerate(FORMS):
        make(name, seed)


main()
