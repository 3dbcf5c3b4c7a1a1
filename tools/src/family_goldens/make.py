"""Writes small models of every family with drawn configurations and random weights, and what transformers computes.

    python3 make.py OUT MODELS SEED

Needs torch, transformers (4.57 or later) and safetensors. OUT gets a folder for each model, in it the model as
`save_pretrained` writes it and `reference.f32`, the logits of all tokens (of encoders the hidden states); and `models.json`,
a list of {folder, family, draw, ids}. What transformers itself refuses is drawn anew. Where there is PEFT, decoders also get a LoRA
adapter in the folder `adapter`, with a `reference.f32` of its own.
"""

import json
import math
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers

try:
    import peft
except ImportError:
    peft = None

TOKENS = [3, 40, 150]
DRAWS_PER_MODEL = 20


def pick(draw, *choices):
    return draw.choice(choices)


def maybe(draw, share):
    return draw.random() < share


def sizes(draw, tied=None):
    """What every decoder has. Heads are wider or narrower than the model."""
    kv_heads = pick(draw, 1, 2, 3)
    return dict(
        num_key_value_heads=kv_heads, num_attention_heads=kv_heads * pick(draw, 1, 2, 4), head_dim=pick(draw, 16, 24, 32, 48),
        hidden_size=pick(draw, 96, 192), intermediate_size=pick(draw, 96, 160, 224), num_hidden_layers=pick(draw, 1, 2, 3, 7),
        vocab_size=pick(draw, 72, 200), max_position_embeddings=512, rms_norm_eps=pick(draw, 1e-5, 1e-6, 1e-3),
        rope_theta=pick(draw, 1e4, 5e5, 1e6), tie_word_embeddings=maybe(draw, 0.4) if tied is None else tied,
        bos_token_id=1, eos_token_id=2, pad_token_id=0)


def narrow(fields):
    """Heads are as wide as the model together."""
    fields["hidden_size"] = fields["num_attention_heads"] * fields.pop("head_dim")
    return fields


def scaled(draw, fields, kinds):
    """Rotary scaling in the form that both versions of transformers read."""
    kind = pick(draw, *kinds)
    original = pick(draw, 32, 64, 100)
    if kind == "llama3":
        fields["rope_scaling"] = dict(factor=pick(draw, 8.0, 32.0), low_freq_factor=1.0, high_freq_factor=pick(draw, 2.0, 4.0),
                                      original_max_position_embeddings=original)
    elif kind == "yarn":
        fields["rope_scaling"] = dict(factor=pick(draw, 2.0, 4.0, 40.0), original_max_position_embeddings=original, **pick(
            draw, {}, {}, dict(attention_factor=pick(draw, 0.9, 1.3)), dict(mscale=1.0, mscale_all_dim=0.707),
            dict(beta_fast=16.0, beta_slow=2.0), dict(truncate=False)))
    elif kind in ("linear", "dynamic"):
        fields["rope_scaling"] = dict(factor=pick(draw, 2.0, 8.0))
    if kind != "default":
        fields["rope_scaling"]["rope_type"] = kind
    return fields


def llama(draw):
    fields = scaled(draw, sizes(draw), ["default", "linear", "dynamic", "llama3", "yarn", "yarn"])
    fields.update(attention_bias=maybe(draw, 0.3), mlp_bias=maybe(draw, 0.3))
    return "LlamaForCausalLM", narrow(fields) if maybe(draw, 0.3) else fields


def mistral(draw):
    fields = scaled(draw, sizes(draw), ["default", "llama3", "yarn"])
    return "MistralForCausalLM", dict(fields, sliding_window=pick(draw, None, 1, 16, 48, 200))


def mistral3(draw):
    _, fields = mistral(draw)
    vision = dict(model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                  head_dim=8, image_size=16, patch_size=8)
    return "Mistral3ForConditionalGeneration", dict(text_config=dict(fields, model_type="mistral"), vision_config=vision)


def ministral3(draw):
    fields = dict(sizes(draw), sliding_window=pick(draw, None, None, 16))
    fields["rope_parameters"] = dict(
        rope_type="yarn", rope_theta=fields.pop("rope_theta"), factor=pick(draw, 4.0, 16.0), beta_fast=32.0, beta_slow=1.0,
        original_max_position_embeddings=pick(draw, 12, 32, 64), mscale=1.0, mscale_all_dim=pick(draw, 1.0, 0.5),
        llama_4_scaling_beta=pick(draw, 0.1, 0.4))
    return "Ministral3ForCausalLM", fields


def windows_of_qwen(draw, fields):
    return dict(fields, use_sliding_window=maybe(draw, 0.5), sliding_window=pick(draw, 16, 40),
                max_window_layers=pick(draw, 0, 1, 2, 28))


def qwen2(draw):
    return "Qwen2ForCausalLM", windows_of_qwen(draw, narrow(scaled(draw, sizes(draw), ["default", "yarn", "linear"])))


def qwen3(draw):
    fields = scaled(draw, sizes(draw), ["default", "yarn", "linear"])
    return "Qwen3ForCausalLM", dict(windows_of_qwen(draw, fields), attention_bias=maybe(draw, 0.3))


def phi3(draw):
    fields = dict(sizes(draw), head_dim=16, sliding_window=pick(draw, None, 16, 40))
    partial = pick(draw, 1.0, 1.0, 0.75, 0.5)
    fields = dict(narrow(fields), partial_rotary_factor=partial)
    pairs = int(16 * partial) // 2
    if maybe(draw, 0.7):
        original = pick(draw, 40, 400)
        fields.update(original_max_position_embeddings=original, max_position_embeddings=original * pick(draw, 4, 32))
        fields["rope_scaling"] = dict(type="longrope", long_factor=[1 + 9 * draw.random() for _ in range(pairs)],
                                      short_factor=[1 + draw.random() for _ in range(pairs)])
    return "Phi3ForCausalLM", fields


def gemma(draw):
    fields = scaled(draw, sizes(draw, True), ["default", "linear", "yarn"])
    return "GemmaForCausalLM", dict(fields, hidden_act="gelu_pytorch_tanh", attention_bias=maybe(draw, 0.2))


def gemma2(draw):
    fields = scaled(draw, sizes(draw, True), ["default", "linear", "yarn"])
    fields.update(query_pre_attn_scalar=pick(draw, fields["head_dim"], 24, 144), sliding_window=pick(draw, 16, 40),
                  attn_logit_softcapping=pick(draw, 5.0, 50.0, None), final_logit_softcapping=pick(draw, 9.0, 30.0, None),
                  attention_bias=maybe(draw, 0.2))
    if maybe(draw, 0.3):
        layers = range(fields["num_hidden_layers"])
        fields["layer_types"] = [pick(draw, "sliding_attention", "full_attention") for _ in layers]
    return "Gemma2ForCausalLM", fields


def gemma3(draw):
    fields = scaled(draw, sizes(draw, True), ["default", "linear", "yarn"])
    period = pick(draw, 6, 6, 2, 3)
    fields.update(query_pre_attn_scalar=pick(draw, fields["head_dim"], 24, 168), sliding_window=pick(draw, 16, 32),
                  attention_bias=maybe(draw, 0.2), sliding_window_pattern=period,
                  final_logit_softcapping=pick(draw, None, 9.0), rope_local_base_freq=pick(draw, 1e4, 5e3))
    fields["layer_types"] = ["sliding_attention" if (layer + 1) % period else "full_attention"
                             for layer in range(fields["num_hidden_layers"])]
    return "Gemma3ForCausalLM", fields


def experts(draw, fields, count="num_experts"):
    """A mixture; its folder has a matrix per expert or, from transformers 5 on, all in one tensor."""
    n = pick(draw, 1, 2, 4, 8, 20)
    return dict(fields, **{count: n, "num_experts_per_tok": draw.randint(1, min(n, 6))})


def mixtral(draw):
    _, fields = mistral(draw)
    return "MixtralForCausalLM", experts(draw, fields, "num_local_experts")


def qwen2moe(draw):
    fields = experts(draw, narrow(scaled(draw, sizes(draw), ["default", "yarn", "linear"])))
    return "Qwen2MoeForCausalLM", dict(
        fields, moe_intermediate_size=pick(draw, 32, 56, 96), shared_expert_intermediate_size=pick(draw, 40, 64, 160),
        norm_topk_prob=maybe(draw, 0.3), qkv_bias=maybe(draw, 0.7))


def qwen3moe(draw):
    fields = experts(draw, scaled(draw, sizes(draw), ["default", "yarn", "linear"]))
    return "Qwen3MoeForCausalLM", dict(
        fields, moe_intermediate_size=pick(draw, 32, 56, 96), norm_topk_prob=maybe(draw, 0.5),
        attention_bias=maybe(draw, 0.3), use_sliding_window=maybe(draw, 0.3), sliding_window=pick(draw, 16, 40))


def olmoe(draw):
    fields = experts(draw, narrow(scaled(draw, sizes(draw), ["default", "yarn", "linear"])))
    return "OlmoeForCausalLM", dict(fields, norm_topk_prob=maybe(draw, 0.5), attention_bias=maybe(draw, 0.3))


def gpt_oss(draw):
    fields = scaled(draw, sizes(draw), ["default", "yarn", "yarn"])
    fields = dict(experts(draw, fields, "num_local_experts"), attention_bias=maybe(draw, 0.8),
                  sliding_window=pick(draw, 1, 16, 40, 128))
    if maybe(draw, 0.3):
        layers = range(fields["num_hidden_layers"])
        fields["layer_types"] = [pick(draw, "sliding_attention", "full_attention") for _ in layers]
    if "rope_scaling" not in fields:
        fields["rope_scaling"] = dict(rope_type="default")
    return "GptOssForCausalLM", fields


def smollm3(draw):
    fields = scaled(draw, sizes(draw), ["default", "llama3", "yarn"])
    return "SmolLM3ForCausalLM", dict(fields, attention_bias=maybe(draw, 0.3), mlp_bias=maybe(draw, 0.3))


def factors(draw):
    """Those of Granite."""
    return dict(embedding_multiplier=pick(draw, 1.0, 6.0, 12.0), attention_multiplier=pick(draw, 0.0625, 0.2),
                residual_multiplier=pick(draw, 1.0, 0.22), logits_scaling=pick(draw, 1.0, 3.0, 16.0))


def granite(draw):
    fields = narrow(scaled(draw, sizes(draw), ["default", "llama3", "yarn"]))
    fields.update(attention_bias=maybe(draw, 0.3), mlp_bias=maybe(draw, 0.3))
    return "GraniteForCausalLM", dict(fields, **factors(draw))


def granitemoe(draw):
    fields = experts(draw, narrow(scaled(draw, sizes(draw), ["default", "llama3", "yarn"])), "num_local_experts")
    fields.update(factors(draw), attention_bias=maybe(draw, 0.3))
    shared = dict(shared_intermediate_size=pick(draw, 40, 64))
    return pick(draw, ("GraniteMoeForCausalLM", fields), ("GraniteMoeSharedForCausalLM", fields | shared))


def granitehybrid(draw):
    fields = narrow(scaled(draw, sizes(draw), ["default", "default", "yarn"]))
    if maybe(draw, 0.5):
        fields = experts(draw, fields, "num_local_experts")
    else:
        fields.update(num_local_experts=0, num_experts_per_tok=0)
    layers = fields["num_hidden_layers"]
    kinds = [pick(draw, "linear_attention", "linear_attention", "full_attention") for _ in range(layers)]
    kinds[draw.randrange(layers)] = "full_attention"
    expand, groups = pick(draw, 1, 2), pick(draw, 1, 1, 2)
    heads = groups * pick(draw, *[n for n in (1, 2, 4, 8) if expand * fields["hidden_size"] % (groups * n) == 0])
    return "GraniteMoeHybridForCausalLM", dict(
        fields, **factors(draw), attention_bias=maybe(draw, 0.3), layer_types=kinds, mamba_n_heads=heads, mamba_n_groups=groups,
        mamba_expand=expand, mamba_d_head="auto", mamba_d_state=pick(draw, 8, 24, 64, 128), mamba_d_conv=pick(draw, 2, 4),
        mamba_conv_bias=maybe(draw, 0.7), mamba_proj_bias=maybe(draw, 0.3), mamba_chunk_size=pick(draw, 16, 64, 256),
        shared_intermediate_size=pick(draw, 40, 64), position_embedding_type=pick(draw, None, "rope"))


def olmo2(draw):
    fields = narrow(scaled(draw, sizes(draw), ["default", "linear", "yarn"]))
    return "Olmo2ForCausalLM", dict(fields, attention_bias=maybe(draw, 0.3))


def olmo3(draw):
    # transformers gives windowed layers its default of the base, whatever the others have.
    fields = dict(narrow(scaled(draw, sizes(draw), ["default", "yarn"])), rope_theta=5e5)
    fields.update(attention_bias=maybe(draw, 0.3), sliding_window=pick(draw, 16, 40))
    if maybe(draw, 0.3):
        layers = range(fields["num_hidden_layers"])
        fields["layer_types"] = [pick(draw, "sliding_attention", "full_attention") for _ in layers]
    return "Olmo3ForCausalLM", fields


def exaone4(draw):
    fields = scaled(draw, sizes(draw), ["default", "llama3"])
    fields["sliding_window"] = pick(draw, None, 16, 40)
    period = pick(draw, 4, 4, 2)
    fields["sliding_window_pattern"] = period
    fields["layer_types"] = ["sliding_attention" if fields["sliding_window"] and (layer + 1) % period else "full_attention"
                             for layer in range(fields["num_hidden_layers"])]
    return "Exaone4ForCausalLM", fields


def encoder(name, padding):
    def draw_encoder(draw):
        heads = pick(draw, 1, 2, 4)
        return name + pick(draw, "Model", "ForMaskedLM"), dict(
            hidden_size=heads * pick(draw, 8, 16, 32), num_attention_heads=heads, intermediate_size=pick(draw, 40, 128),
            num_hidden_layers=pick(draw, 1, 3), vocab_size=pick(draw, 60, 101), type_vocab_size=pick(draw, 1, 2),
            max_position_embeddings=pick(draw, 160, 200), layer_norm_eps=pick(draw, 1e-12, 1e-5),
            pad_token_id=pick(draw, 0, padding))
    return draw_encoder


def distilbert(draw):
    heads = pick(draw, 1, 2, 4)
    fields = dict(dim=heads * pick(draw, 8, 16), n_heads=heads, hidden_dim=pick(draw, 40, 128), n_layers=pick(draw, 1, 3),
                  vocab_size=pick(draw, 60, 101), max_position_embeddings=160, sinusoidal_pos_embds=maybe(draw, 0.5))
    return "DistilBert" + pick(draw, "Model", "ForMaskedLM"), fields


FAMILIES = dict(llama=llama, mistral=mistral, mistral3=mistral3, ministral3=ministral3, qwen2=qwen2, qwen3=qwen3, phi3=phi3,
                gemma=gemma, gemma2=gemma2, gemma3=gemma3, mixtral=mixtral, qwen2moe=qwen2moe,
                qwen3moe=qwen3moe, olmoe=olmoe, gpt_oss=gpt_oss, smollm3=smollm3, granite=granite,
                granitemoe=granitemoe, granitehybrid=granitehybrid, olmo2=olmo2, olmo3=olmo3, exaone4=exaone4, bert=encoder("Bert", 0), roberta=encoder("Roberta", 1),
                xlm_roberta=encoder("XLMRoberta", 1), distilbert=distilbert)


def build(class_name, fields):
    model_class = getattr(transformers, class_name)
    config = model_class.config_class.from_dict(dict(fields))
    config._attn_implementation = "eager"
    # Products of experts in float64, which fused kernels refuse.
    config._experts_implementation = "eager"
    return model_class(config).eval()


def fill(model, norms_plus_one, generator):
    """Wider weights than a fresh model has, so that no part of it is without effect."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                values *= (0.3 if norms_plus_one else 1.0) if "embed" in name else 1.3 / math.sqrt(parameter.shape[-1])
            elif name.endswith(("mamba.A_log", "mamba.dt_bias")):
                # States that decay over a few tokens in some heads, and over many in others.
                values = 1.2 * values - 1.5
            elif name.endswith("sinks"):
                values *= 2.0
            elif "norm" in name.lower() and name.endswith("weight"):
                values = (0.0 if norms_plus_one else 1.0) + 0.2 * values
            else:
                values *= 0.3
            parameter.copy_(values)


def compute(model, ids):
    """Logits or hidden states. In float64 but for what transformers itself casts to float32."""
    if hasattr(model, "lm_head") and "MaskedLM" not in type(model).__name__:
        return model.double()(ids, use_cache=False).logits[0]
    inner = getattr(model, model.base_model_prefix) if "MaskedLM" in type(model).__name__ else model
    return inner.double()(ids).last_hidden_state[0]


def is_mixture(model):
    return any(".experts." in name for name in model.state_dict())


def keeps_state(model):
    """Adapters of the attention of such models are refused."""
    return any(".mamba." in name for name in model.state_dict())


def adapt(model, family, draw, generator):
    """Puts a LoRA into a decoder: some of its matrices, ranks and scales of their own for some of them."""
    leaves = sorted({name.rpartition(".")[2] for name, module in model.named_modules()
                     if isinstance(module, torch.nn.Linear) and "vision" not in name and "projector" not in name})
    if is_mixture(model) or family == "granitehybrid":
        # The names of others are those of experts as well, which adapters do not change here.
        leaves = [leaf for leaf in leaves if leaf in ("q_proj", "k_proj", "v_proj", "o_proj", "lm_head")]
    targets = draw.sample(leaves, draw.randint(1, len(leaves)))
    pattern = lambda values: {pick(draw, leaf, f"layers.0.*{leaf}"): pick(draw, *values)
                              for leaf in targets if maybe(draw, 0.3)}
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=pick(draw, 1, 2, 5, 16), lora_alpha=pick(draw, 1, 8, 13), use_rslora=maybe(draw, 0.3),
        rank_pattern=pattern([1, 3, 8]), alpha_pattern=pattern([2, 9]), target_modules=targets,
        exclude_modules=".*(vision|projector).*" if family == "mistral3" else None)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                values = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(values * (0.03 if "lora_B" in name else 1 / math.sqrt(parameter.shape[-1])))
    return adapted


def make(out, family, number, draw):
    folder = out / f"{family}-{number}"
    class_name, fields = FAMILIES[family](draw)
    model = build(class_name, fields)
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    fill(model, family.startswith("gemma"), generator)
    # Of Granite, that form has been published by nobody.
    stacked = is_mixture(model) and not family.startswith("granite") and maybe(draw, 0.3)
    model.save_pretrained(folder, **(dict(save_original_format=False) if stacked else {}))
    vocabulary = fields.get("text_config", fields)["vocab_size"]
    ids = torch.randint(3, vocabulary, (1, pick(draw, *TOKENS)), generator=generator)
    with torch.no_grad():
        reference = compute(model, ids)
    reference.numpy().astype("<f4").tofile(folder / "reference.f32")
    if peft and class_name.endswith(("ForCausalLM", "ForConditionalGeneration")) and not keeps_state(model):
        model = model.float()
        adapted = adapt(model, family, draw, generator)
        adapted.save_pretrained(folder / "adapter")
        with torch.no_grad():
            compute(model, ids).numpy().astype("<f4").tofile(folder / "adapter" / "reference.f32")
    return dict(folder=folder.name, family=family, draw=json.dumps(fields), ids=ids[0].tolist())


def main():
    out, models, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    made = []
    for family in FAMILIES:
        draw = random.Random(f"{seed} {family}")
        for number in range(models):
            for _ in range(DRAWS_PER_MODEL):
                try:
                    made.append(make(out, family, number, draw))
                    break
                # Classes that this version lacks, configurations that it refuses: of many types.
                except Exception as error:
                    refusal = error
            else:
                print(f"{family}: no more than {number} models: {refusal}", file=sys.stderr)
                break
    (out / "models.json").write_text(json.dumps(dict(version=transformers.__version__, models=made)))


main()
