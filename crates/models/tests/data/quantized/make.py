"""Makes a folder for each quantization method of Hugging Face folders, and what transformers computes with its weights.

    python3 make.py [--natural OUTPUT] [FORM ...]

Needs torch, transformers 5.24 and compressed-tensors 0.20; with autoawq 0.2.9 and auto-gptq 0.7.1 on the path
(`PYTHONPATH`, unpacked, of which no kernel is run), their own unpacking is compared with the one here. The weights are
random, from seeds. Each matrix is quantized to the values of its method, the model gets exactly these values, and the
logits are computed in float64 but for what transformers itself casts to float32.

Scales have 6 bits (those of FP8 4 bits), so that blocks of GGUF hold the values exactly and a tolerance of float32
finds every wrong quant. `--natural` makes the same folders elsewhere with scales as quantizers make them.
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_torch_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

HERE = Path(__file__).parent
TOKENS, EVERY = 40, 5
MATRICES = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

COMMON = dict(hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
              vocab_size=40, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True,
              bos_token_id=1, eos_token_id=2, pad_token_id=0, num_hidden_layers=1)


def words(values, bits, axis):
    """Packs unsigned values along an axis into words of 32 bits, lowest bits first."""
    n = 32 // bits
    values = np.moveaxis(values.astype(np.uint64), axis, -1)
    values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % n)])
    values = values.reshape(*values.shape[:-1], -1, n) << (np.arange(n, dtype=np.uint64) * np.uint64(bits))
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values.sum(-1).astype(np.uint32).view(np.int32), -1, axis)))


def short(scale, bits, natural, dtype):
    """The scale with so many bits, or as the type has it."""
    if not natural:
        exponent = torch.floor(torch.log2(scale)) - (bits - 1)
        scale = torch.round(scale * torch.exp2(-exponent)) * torch.exp2(exponent)
    return scale.to(dtype)


def integers(weight, bits, order, symmetric, natural, dtype):
    """Scales and zero points `[rows, groups]`, quants `[rows, columns]`, and the values; `order` has columns' groups."""
    groups = int(order.max()) + 1
    top, middle = (1 << bits) - 1, 1 << (bits - 1)
    low = torch.stack([weight[:, order == group].amin(1) for group in range(groups)], 1).clamp(max=0)
    high = torch.stack([weight[:, order == group].amax(1) for group in range(groups)], 1).clamp(min=0)
    if symmetric:
        scales = short(torch.maximum(-low / middle, high / (middle - 1)), 6, natural, dtype)
        zeros = torch.full_like(low, middle)
    else:
        scales = short((high - low) / top, 6, natural, dtype)
        # At least 1, which the first format of GPTQ can hold.
        zeros = torch.round(-low / scales.double()).clamp(1, top)
    own, zero = scales.double()[:, order], zeros[:, order]
    quants = torch.round(weight / own + zero).clamp(0, top)
    return scales, zeros.numpy().astype(np.int64), quants.numpy().astype(np.int64), own * (quants - zero)


def awq(weight, group, natural):
    order = torch.arange(weight.shape[1]) // group
    scales, zeros, quants, values = integers(weight, 4, order, False, natural, torch.float16)
    shuffled = [8 * (i // 8) + AWQ_ORDER[i % 8] for i in range(weight.shape[0])]
    parts = dict(qweight=words(quants.T[:, shuffled], 4, 1), qzeros=words(zeros.T[:, shuffled], 4, 1),
                 scales=scales.T.contiguous())
    try:
        from awq.utils.packing_utils import dequantize_gemm
        found = dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].double(), 4, group).T
        assert torch.equal(found, values), "AutoAWQ reads other values"
        print("  as AutoAWQ")
    except ImportError:
        pass
    return parts, values


def gptq(weight, bits, group, natural, symmetric=True, act_order=None, second=False):
    order = torch.arange(weight.shape[1]) // group
    if act_order is not None:
        order = order[torch.randperm(len(order), generator=act_order)]
    scales, zeros, quants, values = integers(weight, bits, order, symmetric, natural, torch.float16)
    parts = dict(qweight=words(quants.T, bits, 0), qzeros=words(zeros.T - (0 if second else 1), bits, 1),
                 scales=scales.T.contiguous(), g_idx=order.to(torch.int32))
    try:
        from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
        if not second and weight.shape[0] % 32 == 0:
            rows, columns = weight.shape
            linear = QuantLinear(bits, group, columns, rows, False, weight_dtype=torch.float64)
            linear.load_state_dict(parts)
            linear.scales = parts["scales"].double()
            assert torch.equal(linear(torch.eye(columns, dtype=torch.float64)).T, values), "AutoGPTQ reads other values"
            print("  as AutoGPTQ")
    except ImportError:
        pass
    return parts, values


def packed(weight, bits, group, natural, symmetric):
    order = torch.arange(weight.shape[1]) // (group or weight.shape[1])
    scales, zeros, quants, values = integers(weight, bits, order, symmetric, natural, torch.bfloat16)
    middle = 1 << (bits - 1)
    signed, signed_zeros = torch.from_numpy(quants - middle).to(torch.int8), torch.from_numpy(zeros - middle).to(torch.int8)
    parts = dict(weight_packed=pack_to_int32(signed, bits), weight_scale=scales.contiguous(),
                 weight_shape=torch.tensor(weight.shape))
    assert torch.equal(parts["weight_packed"], words(quants, bits, 1))
    assert torch.equal(unpack_from_int32(parts["weight_packed"], bits, weight.shape), signed)
    if not symmetric:
        parts["weight_zero_point"] = pack_to_int32(signed_zeros, bits, packed_dim=0).contiguous()
        assert torch.equal(unpack_from_int32(parts["weight_zero_point"], bits, zeros.shape, packed_dim=0), signed_zeros)
    return parts, values


def signed_bytes(weight, natural):
    order = torch.zeros(weight.shape[1], dtype=torch.long)
    scales, _, quants, values = integers(weight, 8, order, True, natural, torch.bfloat16)
    return dict(weight=torch.from_numpy(quants - 128).to(torch.int8), weight_scale=scales), values


def float8(weight, tile, natural, name, dtype):
    """`tile` has rows and columns of a scale; None for a scale per row."""
    rows, columns = weight.shape
    tile_rows, tile_columns = tile or (1, columns)
    grid = torch.stack([torch.stack([block.abs().max() / 448 for block in line.split(tile_columns, 1)])
                        for line in weight.split(tile_rows, 0)])
    scales = short(grid, 4, natural, dtype)
    own = scales.double().repeat_interleave(tile_rows, 0)[:rows].repeat_interleave(tile_columns, 1)[:, :columns]
    quants = (weight / own).clamp(-448, 448).to(torch.float8_e4m3fn)
    values = quants.double() * own
    if tile and rows % tile_rows == 0 and columns % tile_columns == 0:
        found = Fp8Dequantize(None)._dequantize_one(quants, scales.float(), torch.float32)
        assert torch.equal(found.double().bfloat16(), values.bfloat16()), "transformers reads other values"
        print("  as transformers")
    return {"weight": quants, name: scales}, values


def compressed(format, weights):
    return dict(quant_method="compressed-tensors", format=format, ignore=["lm_head"], quantization_status="compressed",
                config_groups=dict(group_0=dict(targets=["Linear"], input_activations=None, output_activations=None,
                                                weights=dict(dict(dynamic=False, actorder=None), **weights))))


# Class, what differs from COMMON, quantization_config, and the quantization of a matrix.
FORMS = {
    "awq": ("LlamaForCausalLM", dict(intermediate_size=96), dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True,
                                         modules_to_not_convert=None),
            lambda weight, natural, _: awq(weight, 32, natural)),
    "gptq": ("LlamaForCausalLM", {},
             dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=True, checkpoint_format="gptq"),
             lambda weight, natural, _: gptq(weight, 4, 32, natural)),
    "gptq_zeros": ("Qwen2ForCausalLM", dict(head_dim=None, num_attention_heads=8, num_key_value_heads=2),
                   dict(quant_method="gptq", bits=4, group_size=-1, desc_act=False, sym=False),
                   lambda weight, natural, _: gptq(weight, 4, weight.shape[1], natural, symmetric=False)),
    "gptq_act_order": ("Qwen3ForCausalLM", {},
                       dict(quant_method="gptq", bits=4, group_size=16, desc_act=True, sym=False, checkpoint_format="gptq_v2"),
                       lambda weight, natural, generator: gptq(weight, 4, 16, natural, symmetric=False,
                                                               act_order=generator, second=True)),
    "gptq_8bit": ("MistralForCausalLM", dict(sliding_window=None),
                  dict(quant_method="gptq", bits=8, group_size=32, desc_act=False, sym=True),
                  lambda weight, natural, _: gptq(weight, 8, 32, natural)),
    "fp8": ("Qwen3MoeForCausalLM", dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True),
            dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[32, 32],
                 modules_to_not_convert=["lm_head"]),
            lambda weight, natural, _: float8(weight, (32, 32), natural, "weight_scale_inv", torch.float32)),
    "compressed_float": ("LlamaForCausalLM", {},
                         compressed("float-quantized", dict(num_bits=8, type="float", symmetric=True, strategy="channel",
                                                            group_size=None)),
                         lambda weight, natural, _: float8(weight, None, natural, "weight_scale", torch.bfloat16)),
    "compressed_packed": ("Qwen3MoeForCausalLM", dict(
                              num_experts=3, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True),
                          compressed("pack-quantized", dict(num_bits=4, type="int", symmetric=True, strategy="group",
                                                            group_size=32)),
                          lambda weight, natural, _: packed(weight, 4, 32, natural, True)),
    "compressed_zeros": ("LlamaForCausalLM", {},
                         compressed("pack-quantized", dict(num_bits=4, type="int", symmetric=False, strategy="group",
                                                           group_size=32)),
                         lambda weight, natural, _: packed(weight, 4, 32, natural, False)),
    "compressed_int": ("Qwen3ForCausalLM", {},
                       compressed("int-quantized", dict(num_bits=8, type="int", symmetric=True, strategy="channel",
                                                        group_size=None)),
                       lambda weight, natural, _: signed_bytes(weight, natural)),
}


# Experts of Llama 4, one matrix each, as llm-compressor writes them.
LLAMA4 = dict(num_hidden_layers=2, intermediate_size=32, intermediate_size_mlp=64, num_local_experts=3, num_experts_per_tok=1,
              interleave_moe_layer_step=1, attention_chunk_size=12, attn_scale=0.3, floor_scale=8, no_rope_layers=[1, 1],
              rope_theta=None, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
FORMS |= {
    "llama4_packed": ("Llama4ForCausalLM", LLAMA4, FORMS["compressed_packed"][2], FORMS["compressed_packed"][3]),
    "llama4_float": ("Llama4ForCausalLM", LLAMA4, FORMS["compressed_float"][2], FORMS["compressed_float"][3]),
}

# Experts in one tensor: as Mistral Small 4 is published, as llm-compressor wrote Granite's, and as transformers saves a model
# that it has quantized itself, with the scales alone in one tensor. Of the last, tiles lie across the border of gate and up.
FORMS |= {
    "fp8_experts": ("Mistral4ForCausalLM", dict(
                        rms_norm_eps=1e-6, head_dim=None, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=32, qk_nope_head_dim=16,
                        qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=3, n_shared_experts=1, num_experts_per_tok=2,
                        moe_intermediate_size=24, first_k_dense_replace=0, n_group=1, topk_group=1, norm_topk_prob=True,
                        tie_word_embeddings=False, rope_theta=None, rope_parameters=dict(
                            rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, rope_theta=10000.0, mscale=1.0, mscale_all_dim=1.0,
                            original_max_position_embeddings=12, llama_4_scaling_beta=0.4)),
                    dict(quant_method="fp8", activation_scheme="static", weight_block_size=None, modules_to_not_convert=["lm_head"]),
                    lambda weight, natural, _: scalar(*float8(weight, tuple(weight.shape), natural, "weight_scale_inv", torch.float32))),
    "compressed_experts": ("GraniteMoeForCausalLM", dict(
                               head_dim=None, num_local_experts=3, num_experts_per_tok=2, intermediate_size=24, attention_multiplier=0.3),
                           FORMS["compressed_float"][2], FORMS["compressed_float"][3]),
    # Keys and values of a head are 40 rows, and tiles 32.
    "fp8_latents": ("DeepseekV3ForCausalLM", dict(
                        rms_norm_eps=1e-6, head_dim=None, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=32, qk_nope_head_dim=24,
                        qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
                        moe_intermediate_size=32, first_k_dense_replace=0, n_group=2, topk_group=1, tie_word_embeddings=False),
                    FORMS["fp8"][2], FORMS["fp8"][3]),
    "fp8_saved": ("Qwen3MoeForCausalLM", dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True),
                  FORMS["fp8"][2], FORMS["fp8"][3]),
}


def scalar(parts, values):
    """One scale of the matrix, and one of its inputs, which is not used."""
    parts["weight_scale_inv"] = parts["weight_scale_inv"].reshape(())
    return parts | dict(activation_scale=torch.tensor(0.5)), values


def of_experts(name, weight, quantize):
    """Tensors and values of the matrices of all experts."""
    made = [quantize(matrix.double()) for matrix in weight]
    stem = name.removesuffix(".weight")
    quantized = {}
    for part in made[0][0]:
        own = torch.stack([parts[part] for parts, _ in made])
        if own.dim() == 1 and part == "weight_scale_inv":
            own = own[:, None, None]
        end = part if stem != name else part.replace("weight_", "").replace("weight", "")
        quantized[f"{stem}.{end}" if stem != name else f"{stem}_{end}".rstrip("_")] = own
    return quantized, torch.stack([values for _, values in made])


def fill(model, generator):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                values = values * (1.0 if "embed" in name else 1.3 / math.sqrt(parameter.shape[-1]))
            else:
                values = (1.0 if "norm" in name else 0.0) + 0.2 * values
            parameter.copy_(values.half().float())


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--natural", type=Path)
    arguments.add_argument("forms", nargs="*", metavar="FORM")
    arguments = arguments.parse_args()
    output = arguments.natural
    natural, output = output is not None, output or HERE
    torch.set_num_threads(1)
    for seed, (name, (class_name, changes, quantization, quantize)) in enumerate(FORMS.items()):
        if arguments.forms and name not in arguments.forms:
            continue
        print(name)
        generator = torch.Generator().manual_seed(seed)
        fields = {key: value for key, value in (COMMON | changes).items() if value is not None or key == "sliding_window"}
        config = getattr(transformers, class_name).config_class(**fields)
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        model = getattr(transformers, class_name)(config).eval()
        fill(model, generator)
        folder = output / name
        shutil.rmtree(folder, ignore_errors=True)
        # A matrix per expert, as published folders have them.
        model.half().save_pretrained(folder)
        tensors, quantized, restored = single_experts(load_file(folder / "model.safetensors")), {}, {}
        if name == "fp8_saved":
            tensors = to_own(tensors, model)
            del tensors["lm_head.weight"]
        for tensor, weight in tensors.items():
            stem, _, end = tensor.rpartition(".")
            if weight.dim() == 3:
                parts, restored[tensor] = of_experts(tensor, weight, lambda matrix: quantize(matrix, natural, generator))
                quantized |= separated(parts) if name == "fp8_saved" else parts
            elif end == "weight" and stem.endswith(MATRICES):
                parts, values = quantize(weight.double(), natural, generator)
                quantized |= {f"{stem}.{part}": value for part, value in parts.items()}
                restored[tensor] = values
            else:
                quantized[tensor], restored[tensor] = weight, weight.double()
        # A new model with the values that the folder has, since tables of rotary positions have lost their precision.
        model = getattr(transformers, class_name)(config).eval().double()
        model.load_state_dict(to_own(restored, model))
        ids = torch.randint(4, COMMON["vocab_size"], (1, TOKENS), generator=generator)
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, ::EVERY]
        save_torch_file(quantized, folder / "model.safetensors", metadata=dict(format="pt"))
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = quantization
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "generation_config.json").unlink(missing_ok=True)
        expected = {"ids": ids[0].numpy().astype(np.int32), "logits": logits.numpy().astype(np.float64)}
        save_file(expected, folder / "expected.safetensors")
        print(f"  logits of deviation {logits.std():.1f}")


def separated(parts):
    """The quants with a matrix per expert."""
    single = {}
    for name, tensor in parts.items():
        head, _, part = name.rpartition(".")
        names = dict(gate_up_proj=["gate_proj", "up_proj"], down_proj=["down_proj"]).get(part)
        if names is None:
            single[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            for own, rows in zip(names, matrix.chunk(len(names))):
                single[f"{head}.{expert}.{own}.weight"] = rows.contiguous()
    return single


def single_experts(tensors):
    """The tensors with a matrix per expert where transformers saves the experts of Llama 4 in one."""
    single = {}
    for name, tensor in tensors.items():
        head, _, part = name.partition(".feed_forward.experts.")
        if not part:
            single[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            halves = matrix.T.chunk(2) if part == "gate_up_proj" else [matrix.T]
            for own, half in zip(["gate_proj", "up_proj"] if part == "gate_up_proj" else ["down_proj"], halves):
                single[f"{head}.feed_forward.experts.{expert}.{own}.weight"] = half.contiguous()
    return single


def to_own(tensors, model):
    """The tensors under the model's own names: experts joined, as transformers 5 computes with them."""
    own, experts = {}, {}
    for name, tensor in tensors.items():
        name = name.replace("input_linear.weight", "experts.gate_up_proj").replace("output_linear.weight", "experts.down_proj")
        name = name.replace("router.layer.weight", "router.weight")
        head, _, rest = name.partition(".experts.")
        if "." in rest:
            expert, part, _ = rest.split(".")
            experts.setdefault(head, {}).setdefault(int(expert), {})[part] = tensor
        else:
            own[name] = tensor
    for head, parts in experts.items():
        gate_up = torch.stack([torch.cat([parts[i]["gate_proj"], parts[i]["up_proj"]]) for i in sorted(parts)])
        down = torch.stack([parts[i]["down_proj"] for i in sorted(parts)])
        is_transposed = model.config.model_type.startswith("llama4")
        own[f"{head}.experts.gate_up_proj"] = gate_up.transpose(1, 2) if is_transposed else gate_up
        own[f"{head}.experts.down_proj"] = down.transpose(1, 2) if is_transposed else down
    if model.config.tie_word_embeddings:
        own.setdefault("lm_head.weight", own["model.embed_tokens.weight"])
    return own


main()
