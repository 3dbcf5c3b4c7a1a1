"""Makes `modernbert/`, `gemma/` and `nomic/`: tiny encoders with rotary positions as sentence-transformers folders, the vectors
that transformers computes in float64, and the same models as GGUF files.

    python3 encoders.py

Needs torch, transformers 5.24 and gguf 0.19. Weights are random and of 16 bits; transformers rounds tables of rotary positions to
float32. `converted.gguf` has the keys, names and values that llama.cpp's converter writes; the vocabularies of two come from
files that it made.
"""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent
DATA = HERE.parent
SENTENCE = "The turtle told a story about the world, and the cat sat on the mat. "
# From shorter to much longer than the windows.
TEXTS = ["", "cat", "The cat sat on.", "search_query: where did the turtle go", SENTENCE, "Café 東京 " * 3, SENTENCE * 4]
MODULE = "sentence_transformers.models."


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def template(start, end):
    """Tokens around every text, and between the texts of a pair."""
    token = lambda text, kind=0: {"SpecialToken": {"id": text[0], "type_id": kind}}
    text = lambda name, kind=0: {"Sequence": {"id": name, "type_id": kind}}
    return {
        "type": "TemplateProcessing",
        "single": [token(start), text("A"), token(end)],
        "pair": [token(start), text("A"), token(end), text("B", 1), token(end, 1)],
        "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in [start, end]}}


def byte_level(folder):
    """A byte-level BPE with the special tokens behind the others, as ModernBERT has it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    definition = json.loads(tokenizer.to_str())
    size = tokenizer.get_vocab_size()
    definition["post_processor"] = template(("[CLS]", size - 4), ("[SEP]", size - 3))
    write(folder / "tokenizer.json", definition)
    write(folder / "tokenizer_config.json", {
        "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]",
        "tokenizer_class": "PreTrainedTokenizerFast"})
    return size


def modernbert():
    folder = HERE / "modernbert"
    size = byte_level(folder)
    config = transformers.ModernBertConfig(
        vocab_size=size, hidden_size=24, intermediate_size=32, num_hidden_layers=4, num_attention_heads=3,
        max_position_embeddings=128, local_attention=10, global_attn_every_n_layers=3, pad_token_id=size - 2,
        bos_token_id=size - 4, cls_token_id=size - 4, eos_token_id=size - 3, sep_token_id=size - 3)
    model = make(transformers.ModernBertModel(config), 5)
    save(folder, model.state_dict())
    # As published: the class with a head for left-out words, fields of transformers 4.
    write(folder / "config.json", {
        "architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert", "attention_bias": False, "bos_token_id": size - 4,
        "classifier_pooling": "mean", "cls_token_id": size - 4, "eos_token_id": size - 3, "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0, "hidden_activation": "gelu", "hidden_size": 24, "intermediate_size": 32,
        "layer_norm_eps": 1e-05, "local_attention": 10, "local_rope_theta": 10000.0, "max_position_embeddings": 128,
        "mlp_bias": False, "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 3, "num_hidden_layers": 4,
        "pad_token_id": size - 2, "sep_token_id": size - 3, "vocab_size": size})
    modules(folder, "cls")
    reference(folder, model, lambda states: states[0])

    out = writer(folder, gguf.MODEL_ARCH.MODERN_BERT, dict(context=128, width=24, layers=4, inner=32, heads=3))
    out.add_rope_freq_base(160000.0)
    out.add_rope_freq_base_swa(10000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_layer_norm_eps(1e-5)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.CLS)
    out.add_sliding_window(10)
    out.add_sliding_window_pattern(3)
    out.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    out.add_vocab_size(size)
    out.add_add_bos_token(True)
    out.add_add_eos_token(True)
    out.add_add_sep_token(True)
    vocab = json.loads((folder / "tokenizer.json").read_text())
    tokens = dict(vocab["model"]["vocab"], **{token["content"]: token["id"] for token in vocab["added_tokens"]})
    special = {token["content"] for token in vocab["added_tokens"]}
    texts = sorted(tokens, key=tokens.get)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("modern-bert")
    out.add_token_list(texts)
    out.add_token_types([gguf.TokenType.CONTROL if text in special else gguf.TokenType.NORMAL for text in texts])
    gguf.SpecialVocab(folder, load_merges=True).add_to_gguf(out)
    finish(out, gguf.MODEL_ARCH.MODERN_BERT, 4, model.state_dict())


def gemma():
    folder = HERE / "gemma"
    source = DATA / "tiny/gemma3"
    definition = json.loads((source / "hf/tokenizer.json").read_text())
    definition["post_processor"] = template(("<bos>", 2), ("<eos>", 1))
    write(folder / "tokenizer.json", definition)
    settings = json.loads((source / "hf/tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    write(folder / "tokenizer_config.json", dict(settings, add_eos_token=True))
    tokens = source / "model-F32.gguf"
    reader = gguf.GGUFReader(tokens)
    size = len(reader.fields["tokenizer.ggml.tokens"].data)
    config = transformers.Gemma3TextConfig(
        vocab_size=size, hidden_size=16, intermediate_size=24, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, query_pre_attn_scalar=8, max_position_embeddings=256, sliding_window=12, use_bidirectional_attention=True)
    model = make(transformers.Gemma3TextModel(config), 7, plus_one=True)
    generator = torch.Generator().manual_seed(8)
    dense = {}
    for name, outputs, inputs in [("2_Dense", 32, 16), ("3_Dense", 16, 32)]:
        values = torch.randn((outputs, inputs), generator=generator) / inputs ** 0.5
        dense[name] = values.to(torch.float16).to(torch.float64)
        save(folder / name, {"linear.weight": dense[name]})
        write(folder / name / "config.json", {
            "in_features": inputs, "out_features": outputs, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity"})
    save(folder, model.state_dict())
    # As published, in fields of transformers 4.
    write(folder / "config.json", {
        "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "_sliding_window_pattern": 6, "attention_bias": False,
        "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1, "final_logit_softcapping": None, "head_dim": 8,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 256,
        "num_attention_heads": 2, "num_hidden_layers": 6, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 12, "use_bidirectional_attention": True,
        "vocab_size": size})
    modules(folder, "mean", ["2_Dense", "3_Dense"])
    reference(folder, model, lambda states: dense["3_Dense"] @ (dense["2_Dense"] @ states.mean(0)))

    out = writer(folder, gguf.MODEL_ARCH.GEMMA_EMBEDDING, dict(context=256, width=16, layers=6, inner=24, heads=2))
    out.add_head_count_kv(1)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_key_length(8)
    out.add_value_length(8)
    out.add_rope_freq_base(1000000.0)
    out.add_sliding_window(12)
    for name, inputs, outputs in [("dense_2", 16, 32), ("dense_3", 32, 16)]:
        out.add_dense_features_dims(name, inputs, outputs)
    out.add_pooling_type(gguf.PoolingType.MEAN)
    copy_vocabulary(reader, out, dict(add_eos_token=True))
    state = {name: value + 1 if name.endswith("norm.weight") else value for name, value in model.state_dict().items()}
    finish(out, gguf.MODEL_ARCH.GEMMA_EMBEDDING, 6, {f"model.{name}": value for name, value in state.items()},
           {"dense_2.weight": dense["2_Dense"], "dense_3.weight": dense["3_Dense"]})


# Names of transformers, and those of published folders.
NOMIC = [("embeddings.LayerNorm", "emb_ln"), ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2"),
         ("self_attn.o_proj", "attn.out_proj"), ("up_proj", "fc11"), ("gate_proj", "fc12"), ("down_proj", "fc2")]


def nomic():
    folder = HERE / "nomic"
    folder.mkdir(exist_ok=True)
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(DATA / "encoder/bert" / name, folder / name)
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    config = transformers.NomicBertConfig(
        vocab_size=size, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=2048, rope_parameters=dict(rope_type="default", rope_theta=1000.0))
    model = make(transformers.NomicBertModel(config), 9)
    state = {}
    for name, value in model.state_dict().items():
        for old, new in NOMIC:
            name = name.replace(old, new)
        name = name.replace("layers.", "encoder.layers.", 1) if name.startswith("layers.") else name
        state[name] = value
    for layer in range(2):
        prefix = f"encoder.layers.{layer}."
        joint = [state.pop(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]
        state[prefix + "attn.Wqkv.weight"] = torch.cat(joint)
    save(folder, state)
    write(folder / "config.json", {
        "activation_function": "swiglu", "architectures": ["NomicBertModel"], "causal": False, "fused_bias_fc": True,
        "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
        "model_type": "nomic_bert", "n_embd": 32, "n_head": 4, "n_inner": 40, "n_layer": 2, "n_positions": 8192,
        "parallel_block": False, "prenorm": False, "qkv_proj_bias": False, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "type_vocab_size": 2,
        "use_rms_norm": False, "vocab_size": size})
    modules(folder, "mean")
    reference(folder, model, lambda states: states.mean(0))

    out = writer(folder, gguf.MODEL_ARCH.NOMIC_BERT, dict(context=2048, width=32, layers=2, inner=40, heads=4))
    out.add_rope_freq_base(1000.0)
    out.add_layer_norm_eps(1e-12)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.MEAN)
    copy_vocabulary(gguf.GGUFReader(DATA / "rerank/bert/converted.gguf"), out, {})
    finish(out, gguf.MODEL_ARCH.NOMIC_BERT, 2, state)


def make(model, seed, plus_one=False):
    """The model with random weights of 16 bits, for computation in float64."""
    model.config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(seed)
    for key, parameter in model.named_parameters():
        is_norm = "norm" in key.lower() and key.endswith("weight")
        mean = 0.0 if plus_one or not is_norm else 1.0
        scale = 1.5 / parameter.shape[1] ** 0.5 if parameter.dim() == 2 and "embed" not in key else 0.2
        values = mean + (1.0 if "embed" in key and not is_norm else scale) * torch.randn(parameter.shape, generator=generator)
        parameter.data = values.to(torch.float16).to(torch.float64)
    return model.eval()


def save(folder, state):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.to(torch.float16).contiguous() for name, value in state.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def modules(folder, pooling, dense=()):
    names = [("", "Transformer"), ("1_Pooling", "Pooling"), *[(name, "Dense") for name in dense]]
    names.append((f"{len(names)}_Normalize", "Normalize"))
    write(folder / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": MODULE + kind} for i, (path, kind) in enumerate(names)])
    write(folder / "1_Pooling/config.json", {
        f"pooling_mode_{key}": name == pooling for key, name in [("cls_token", "cls"), ("mean_tokens", "mean"), ("max_tokens", "max")]})


def reference(folder, model, pool):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            vector = pool(model(input_ids=torch.tensor([ids])).last_hidden_state[0])
        assert vector.dtype == torch.float64
        cases.append(dict(text=text, ids=ids, vector=(vector / vector.norm()).tolist()))
    write(folder / "expected.json", cases)
    print(folder.name, [len(case["ids"]) for case in cases])


def writer(folder, arch, sizes):
    out = gguf.GGUFWriter(folder / "converted.gguf", gguf.MODEL_ARCH_NAMES[arch])
    out.add_type(gguf.GGUFType.MODEL)
    out.add_name(folder.name)
    out.add_block_count(sizes["layers"])
    out.add_context_length(sizes["context"])
    out.add_embedding_length(sizes["width"])
    out.add_feed_forward_length(sizes["inner"])
    out.add_head_count(sizes["heads"])
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    return out


def copy_vocabulary(reader, out, changed):
    """The keys of a vocabulary in a file of the converter, with some of them changed."""
    for name, field in reader.fields.items():
        key = name.removeprefix("tokenizer.ggml.")
        if key == name:
            continue
        value = changed.get(key, field.contents())
        kinds = field.types
        out.add_key_value(name, value, kinds[0], kinds[1] if len(kinds) > 1 else None)


def finish(out, arch, layers, state, others={}):
    """Writes matrices in F16 and the rest in F32, as the converter does."""
    names = gguf.get_tensor_name_map(arch, layers)
    tensors = {names.get_name(name, try_suffixes=(".weight", ".bias")): value for name, value in state.items()}
    for name, value in (tensors | others).items():
        is_matrix = value.dim() == 2 and name != "token_types.weight"
        out.add_tensor(name, value.numpy().astype(np.float16 if is_matrix else np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    modernbert()
    gemma()
    nomic()
