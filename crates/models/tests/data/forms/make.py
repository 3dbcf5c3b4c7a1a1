"""Makes a folder for each form of a family that published models have but `tiny/` has not, and what transformers computes.

    python3 make.py [chunks | gemma3n | gemma4 | hybrids | latents | leading | mamba | mixtures | phimoe | sinks | states |
                     switches]
    python3 make.py convert LLAMA_CPP
    python3 make.py greedy

Needs torch and transformers: 4.57 for most, which are then in its form, 5.5 for those of `FORMS_5`, 5.24 for mixtures of
experts, gpt-oss (`sinks`), Gemma 3n and 4 (`gemma3n`, `gemma4`), Llama 4 (`chunks`), Phi 3.5 MoE (`phimoe`), layers with a state (`hybrids`, `mamba`, `states`), latent attention (`latents`), leading layers without experts (`leading`) and for families with other norms, factors and layers without rotation. The weights are random, from seeds, and of 16 bits; the logits are computed in float64 but for what transformers itself casts to float32 (norms,
softmax, tables of rotary positions).

The second form writes `converted.gguf` beside the folders of `CONVERTED` with the converter of a llama.cpp checkout, without a vocabulary.
The third adds the likeliest tokens behind the prompt to the logits of folders that lack them, with transformers 5.24. It reads no MXFP4.
"""

import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file as load_arrays, save_file
from safetensors.torch import load_file, save_file as save_torch_file

HERE = Path(__file__).parent
TOKENS, EVERY, CONTINUED = 40, 5, 24

COMMON = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
              vocab_size=72, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True,
              bos_token_id=1, eos_token_id=2, pad_token_id=0)
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=32)
VISION = dict(model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
              head_dim=8, image_size=16, patch_size=8)

# Class, then what differs from COMMON; None takes a field away.
FORMS = {
    "gemma": ("GemmaForCausalLM", dict(num_hidden_layers=2, hidden_act="gelu_pytorch_tanh")),
    "gemma2_without_caps": ("Gemma2ForCausalLM", dict(
        num_hidden_layers=3, attn_logit_softcapping=None, final_logit_softcapping=None, query_pre_attn_scalar=20,
        sliding_window=12, layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    "gemma3_every_third": ("Gemma3ForCausalLM", dict(
        num_hidden_layers=4, sliding_window=10, sliding_window_pattern=3, query_pre_attn_scalar=16,
        rope_local_base_freq=5000.0, rope_scaling=dict(YARN))),
    "llama_biases": ("LlamaForCausalLM", dict(
        num_hidden_layers=2, attention_bias=True, mlp_bias=True, tie_word_embeddings=False, max_position_embeddings=4096,
        rope_scaling=dict(YARN, original_max_position_embeddings=512, mscale=1.0, mscale_all_dim=0.707, beta_fast=4.0,
                          beta_slow=0.5, truncate=False))),
    "llama_dynamic": ("LlamaForCausalLM", dict(num_hidden_layers=1, rope_scaling=dict(rope_type="dynamic", factor=4.0))),
    "mistral3": ("Mistral3ForConditionalGeneration", dict(
        num_hidden_layers=1, tie_word_embeddings=False, sliding_window=None, head_dim=16)),
    "phi3_partial": ("Phi3ForCausalLM", dict(
        num_hidden_layers=2, head_dim=None, partial_rotary_factor=0.75, sliding_window=14, original_max_position_embeddings=32,
        rope_scaling=dict(type="longrope", long_factor=[1.5, 4.0, 9.0], short_factor=[1.0, 1.1, 1.4]))),
    "qwen2_windows_above": ("Qwen2ForCausalLM", dict(
        num_hidden_layers=3, head_dim=None, use_sliding_window=True, sliding_window=9, max_window_layers=1,
        rope_scaling=dict(YARN))),
    "qwen3_listed_windows": ("Qwen3ForCausalLM", dict(
        num_hidden_layers=3, attention_bias=True, use_sliding_window=True, sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
}

# What transformers has from version 5 on.
FORMS_5 = {
    "ministral3": ("Ministral3ForCausalLM", dict(
        num_hidden_layers=2, head_dim=16, rope_theta=None, tie_word_embeddings=False,
        rope_parameters=dict(YARN, rope_theta=10000.0, mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0,
                             original_max_position_embeddings=12, llama_4_scaling_beta=0.4))),
    "gemma3_transformers5": ("Gemma3ForCausalLM", dict(
        num_hidden_layers=4, rope_theta=None, sliding_window=10, query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=20000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=500.0)))),
}

# Mixtures of experts. Their folders have a matrix per expert, but for the one that is stored as transformers 5 computes it.
MIXTURES = {
    "qwen3moe": ("Qwen3MoeForCausalLM", dict(
        num_hidden_layers=2, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True)),
    "qwen3moe_fused": ("Qwen3MoeForCausalLM", dict(
        num_hidden_layers=1, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=False,
        attention_bias=True)),
    "mixtral": ("MixtralForCausalLM", dict(
        num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, intermediate_size=24, sliding_window=12)),
    "qwen2moe": ("Qwen2MoeForCausalLM", dict(
        num_hidden_layers=2, head_dim=None, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=40, norm_topk_prob=False, tie_word_embeddings=False)),
    "olmoe": ("OlmoeForCausalLM", dict(
        num_hidden_layers=2, head_dim=None, num_experts=8, num_experts_per_tok=4, intermediate_size=16,
        norm_topk_prob=False)),
}

# Families that differ from Llama by norms, factors, and layers that do not rotate.
SWITCHES = {
    "smollm3": ("SmolLM3ForCausalLM", dict(
        num_hidden_layers=5, rope_theta=None, rope_parameters=dict(rope_type="default", rope_theta=50000.0))),
    "olmo2": ("Olmo2ForCausalLM", dict(num_hidden_layers=2, head_dim=None, tie_word_embeddings=False)),
    "olmo3": ("Olmo3ForCausalLM", dict(
        num_hidden_layers=5, head_dim=None, sliding_window=9, rope_theta=None,
        rope_parameters=dict(full_attention=dict(YARN, rope_theta=20000.0, attention_factor=1.2, beta_fast=32.0, beta_slow=1.0),
                             sliding_attention=dict(rope_type="default", rope_theta=20000.0)))),
    "exaone4": ("Exaone4ForCausalLM", dict(
        num_hidden_layers=5, sliding_window=9, sliding_window_pattern=4, rope_theta=None,
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64))),
    "exaone4_full": ("Exaone4ForCausalLM", dict(
        num_hidden_layers=2, sliding_window=None, layer_types=["full_attention"] * 2)),
    "granite": ("GraniteForCausalLM", dict(
        num_hidden_layers=2, head_dim=None, embedding_multiplier=12.0, attention_multiplier=0.25, residual_multiplier=0.22,
        logits_scaling=3.0, attention_bias=True)),
    "glm4": ("Glm4ForCausalLM", dict(
        num_hidden_layers=2, head_dim=16, attention_bias=True, rope_theta=None,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
}


# gpt-oss; the weights of the second are MXFP4 in its folder.
GPT_OSS = dict(hidden_size=64, intermediate_size=32, num_local_experts=6, num_experts_per_tok=3, rope_theta=None,
               sliding_window=12, tie_word_embeddings=False, num_hidden_layers=2)
SINKS = {
    "gpt_oss": ("GptOssForCausalLM", dict(GPT_OSS, rope_parameters=dict(YARN, rope_theta=10000.0, truncate=False))),
    "gpt_oss_mxfp4": ("GptOssForCausalLM", dict(
        GPT_OSS, intermediate_size=96, num_local_experts=4, num_hidden_layers=3, rope_parameters=dict(YARN, rope_theta=150000.0),
        layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
}

# Layers without experts before those with, and a router of sigmoids with a bias of the selection.
GLM4_MOE = dict(head_dim=16, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, rope_theta=None,
                rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
LEADING = {
    "glm4moe": ("Glm4MoeForCausalLM", dict(
        GLM4_MOE, num_hidden_layers=3, first_k_dense_replace=1, n_shared_experts=1, n_group=4, topk_group=2,
        norm_topk_prob=True, routed_scaling_factor=2.5, use_qk_norm=True, attention_bias=True, tie_word_embeddings=False)),
    "glm4moe_plain": ("Glm4MoeForCausalLM", dict(
        GLM4_MOE, num_hidden_layers=2, first_k_dense_replace=1, n_shared_experts=2, n_group=1, topk_group=1,
        norm_topk_prob=False, routed_scaling_factor=1.0, use_qk_norm=False)),
}

# Layers with a state beside those with attention.
QWEN35 = dict(
    rope_theta=None, tie_word_embeddings=False, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8,
    linear_value_head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
                                                   mrope_section=[1, 1, 0], mrope_interleaved=True))
HYBRIDS = {
    "qwen35": ("Qwen3_5ForCausalLM", dict(
        QWEN35, num_hidden_layers=4, layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"])),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", dict(
        QWEN35, num_hidden_layers=2, intermediate_size=None, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        linear_num_value_heads=2, shared_expert_intermediate_size=40, layer_types=["linear_attention", "full_attention"])),
    "lfm2": ("Lfm2ForCausalLM", dict(
        num_hidden_layers=4, head_dim=None, rms_norm_eps=None, norm_eps=1e-5, rope_theta=None, block_multiple_of=16,
        block_ffn_dim_multiplier=1.25, rope_parameters=dict(rope_type="default", rope_theta=50000.0),
        layer_types=["conv", "full_attention", "conv", "conv"])),
}

# Mamba-2 beside attention, in most layers or in none, and the mixtures of that family without it.
GRANITE = dict(head_dim=None, rope_theta=None, embedding_multiplier=2.0, attention_multiplier=0.3, residual_multiplier=0.6,
               logits_scaling=1.5)
MAMBA = {
    "granitehybrid": ("GraniteMoeHybridForCausalLM", dict(
        GRANITE, num_hidden_layers=4, hidden_size=40, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48,
        mamba_n_heads=4, mamba_d_head=20, mamba_n_groups=2, mamba_d_state=12, mamba_d_conv=4,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"])),
    "granitehybrid_moe": ("GraniteMoeHybridForCausalLM", dict(
        GRANITE, num_hidden_layers=3, intermediate_size=16, num_local_experts=6, num_experts_per_tok=2, attention_bias=True,
        shared_intermediate_size=40, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=3,
        mamba_conv_bias=False, mamba_proj_bias=True, position_embedding_type="rope", tie_word_embeddings=False,
        layer_types=["linear_attention", "linear_attention", "full_attention"])),
    "granitehybrid_attention": ("GraniteMoeHybridForCausalLM", dict(
        GRANITE, num_hidden_layers=2, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=40, mamba_n_heads=8,
        mamba_d_state=16, position_embedding_type="rope", layer_types=["full_attention"] * 2)),
    "granitemoe": ("GraniteMoeForCausalLM", dict(
        GRANITE, num_hidden_layers=2, intermediate_size=16, num_local_experts=6, num_experts_per_tok=3)),
    "granitemoeshared": ("GraniteMoeSharedForCausalLM", dict(
        GRANITE, num_hidden_layers=2, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2,
        shared_intermediate_size=24)),
}

# Latent attention; transformers gives the norms of latents an epsilon of 1e-6.
LATENT = dict(rms_norm_eps=1e-6, rope_theta=None, tie_word_embeddings=False, head_dim=None, num_key_value_heads=4,
              kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, n_shared_experts=2,
              num_experts_per_tok=3, moe_intermediate_size=16)
LATENTS = {
    "deepseek3": ("DeepseekV3ForCausalLM", dict(
        LATENT, num_hidden_layers=3, first_k_dense_replace=1, q_lora_rank=20, n_group=4, topk_group=2, norm_topk_prob=True,
        routed_scaling_factor=2.5, rope_parameters=dict(YARN, rope_theta=10000.0, mscale=1.0, mscale_all_dim=0.7))),
    "deepseek2": ("DeepseekV2ForCausalLM", dict(
        LATENT, num_hidden_layers=2, first_k_dense_replace=1, q_lora_rank=None, n_group=4, topk_group=2,
        topk_method="group_limited_greedy", norm_topk_prob=False, routed_scaling_factor=1.5,
        rope_parameters=dict(YARN, rope_theta=20000.0, mscale=0.707, mscale_all_dim=0.707))),
    "mistral4": ("Mistral4ForCausalLM", dict(
        LATENT, num_hidden_layers=2, first_k_dense_replace=0, q_lora_rank=16, n_group=1, topk_group=1, norm_topk_prob=True,
        rope_parameters=dict(YARN, rope_theta=10000.0, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=12,
                             llama_4_scaling_beta=0.4))),
}

# Heads of two widths, shared keys and values, embeddings per layer, keys that are values, experts beside a network.
GEMMA4 = dict(rope_theta=None, head_dim=8, sliding_window=9, hidden_size_per_layer_input=0, rope_parameters=dict(
    full_attention=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=20000.0),
    sliding_attention=dict(rope_type="default", rope_theta=500.0)))
GEMMA4S = {
    "gemma4_shared": ("Gemma4ForConditionalGeneration", dict(
        GEMMA4, num_hidden_layers=6, num_key_value_heads=1, global_head_dim=16, num_kv_shared_layers=3,
        use_double_wide_mlp=True, hidden_size_per_layer_input=12, vocab_size_per_layer_input=72, final_logit_softcapping=15.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention",
                     "full_attention"])),
    "gemma4_alike": ("Gemma4ForCausalLM", dict(
        GEMMA4, num_hidden_layers=4, head_dim=16, global_head_dim=16, num_kv_shared_layers=2, tie_word_embeddings=False,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=72,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"])),
    "gemma4_keys": ("Gemma4ForCausalLM", dict(
        GEMMA4, num_hidden_layers=4, num_key_value_heads=4, num_global_key_value_heads=1, global_head_dim=16,
        attention_k_eq_v=True, final_logit_softcapping=30.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"])),
    "gemma4_moe": ("Gemma4ForCausalLM", dict(
        GEMMA4, num_hidden_layers=3, num_key_value_heads=2, num_global_key_value_heads=1, global_head_dim=16,
        attention_k_eq_v=True, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=16,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"])),
}

# Several residual streams, low-rank projections beside attention, gates of which few pass, and tokens that the table of
# embeddings per layer lacks; the first has another active stream, widths of networks by layer and keys in all layers.
GEMMA3N = dict(rope_theta=None, rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=20000.0),
                                                     sliding_attention=dict(rope_type="default", rope_theta=500.0)))
GEMMA3NS = {
    "gemma3n_widths": ("Gemma3nForCausalLM", dict(
        GEMMA3N, num_hidden_layers=3, hidden_size=40, num_key_value_heads=1, sliding_window=12, intermediate_size=[48, 32, 40],
        hidden_size_per_layer_input=12, vocab_size_per_layer_input=72, laurel_rank=10, num_kv_shared_layers=0,
        altup_num_inputs=3, altup_active_idx=1, tie_word_embeddings=False, final_logit_softcapping=9.0,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    "gemma3n": ("Gemma3nForCausalLM", dict(
        GEMMA3N, num_hidden_layers=7, sliding_window=9, hidden_size_per_layer_input=8, vocab_size_per_layer_input=56,
        laurel_rank=6, num_kv_shared_layers=3, final_logit_softcapping=20.0,
        activation_sparsity_pattern=[0.9, 0.75, 0.0, 0.3, 0.0, 0.5, 0.0],
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                     "full_attention", "sliding_attention"])),
}

# States in layers of other forms: projections that are interleaved by key head, one mixer in each layer, two in each layer.
# The factors of the first Falcon-H1 are powers of two, which change no bit of the weights that they are folded into.
NEMOTRON = dict(
    num_attention_heads=4, mamba_num_heads=8, mamba_head_dim=8, n_groups=2, ssm_state_size=12, rms_norm_eps=None,
    layer_norm_epsilon=1e-5, rope_theta=None, tie_word_embeddings=False)
FALCON = dict(
    num_hidden_layers=2, rope_theta=None, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=12,
    tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=50000.0))
STATES = {
    "qwen3next": ("Qwen3NextForCausalLM", dict(
        rope_theta=None, tie_word_embeddings=False, num_hidden_layers=3, intermediate_size=None, linear_num_key_heads=2,
        linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=16, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=40, norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
        layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "nemotron_h": ("NemotronHForCausalLM", dict(
        NEMOTRON, head_dim=10, layers_block_type=["linear_attention", "mlp", "full_attention", "mlp", "linear_attention", "mlp"])),
    "nemotron_h_moe": ("NemotronHForCausalLM", dict(
        NEMOTRON, num_key_value_heads=1, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=40, routed_scaling_factor=2.5, norm_topk_prob=True, use_conv_bias=False,
        layers_block_type=["linear_attention", "moe", "full_attention", "moe", "linear_attention"])),
    "falcon_h1": ("FalconH1ForCausalLM", dict(
        FALCON, mamba_rms_norm=False, embedding_multiplier=4.0, lm_head_multiplier=0.5, key_multiplier=0.5,
        attention_in_multiplier=2.0, attention_out_multiplier=0.5, ssm_in_multiplier=0.5, ssm_out_multiplier=2.0,
        mlp_multipliers=[0.5, 2.0], ssm_multipliers=[2.0, 4.0, 1.0, 0.5, 0.25])),
    "falcon_h1_normed": ("FalconH1ForCausalLM", dict(
        FALCON, num_hidden_layers=1, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_conv_bias=False,
        tie_word_embeddings=True, embedding_multiplier=2.0, lm_head_multiplier=0.25)),
}

# Attention within chunks, and layers between them that see all tokens, do not rotate and scale their queries; the second sees
# all tokens and rotates in every layer, and has no experts.
CHUNKS = {
    "llama4": ("Llama4ForCausalLM", dict(
        num_hidden_layers=5, intermediate_size=16, intermediate_size_mlp=40, num_local_experts=4, num_experts_per_tok=1,
        interleave_moe_layer_step=2, attention_chunk_size=12, attn_scale=0.3, floor_scale=8, tie_word_embeddings=False,
        rope_theta=None, rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0,
                                              high_freq_factor=1.0, original_max_position_embeddings=64))),
    "llama4_dense": ("Llama4ForCausalLM", dict(
        num_hidden_layers=2, intermediate_size_mlp=48, num_local_experts=0, num_experts_per_tok=0, moe_layers=[],
        interleave_moe_layer_step=0, no_rope_layers=[1, 1], layer_types=["full_attention"] * 2, attention_chunk_size=32,
        attn_temperature_tuning=False, rope_theta=None, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
}

# Layer norms, biases of logits, and a router of masked softmaxes; most logits of a token are near each other.
PHIMOE = {
    "phimoe": ("PhimoeForCausalLM", dict(
        num_hidden_layers=2, head_dim=None, intermediate_size=16, num_local_experts=6, num_experts_per_tok=2,
        router_jitter_noise=0.01, attention_bias=True, lm_head_bias=True, tie_word_embeddings=False, sliding_window=30,
        rope_theta=None, rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.4, 2.0],
                                              long_factor=[1.5, 4.0, 9.0, 16.0], short_mscale=1.2, long_mscale=1.2,
                                              original_max_position_embeddings=64))),
}

# Values of the quants of MXFP4.
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def configuration(class_name, changes):
    fields = {key: value for key, value in (COMMON | changes).items() if value is not None or key.endswith(("window", "capping", "q_lora_rank"))}
    cls = getattr(transformers, class_name).config_class
    if class_name.startswith("Mistral3"):
        text = dict(fields, model_type="mistral")
        return cls(text_config=text, vision_config=VISION, image_token_index=3)
    if class_name.startswith("Gemma4ForConditional"):
        return cls(text_config=fields, vision_config=None, audio_config=None)
    return cls(**fields)


def fill(model, is_gemma, generator, norms_plus_one):
    """Wider weights than a fresh model has, so that no part of it is without effect."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                scale = (0.3 if is_gemma else 1.0) if "embed" in name else 1.3 / math.sqrt(parameter.shape[-1])
                values = values * scale
                if "gate_up_proj" in name and parameter.dim() == 3:
                    # So that some gates and ups are beyond the limit of their activation.
                    values = values * 4.0
                if name.endswith("modality_router.weight"):
                    # Norms of its input are divided by the width of the model.
                    values = values * 16.0
                if name.endswith("mlp.router.weight") and hasattr(model.config, "lm_head_bias"):
                    values = 6.0 * values[:1] + 0.15 * values
            elif name.endswith(("mamba.A_log", "mamba.dt_bias", "mixer.A_log", "mixer.dt_bias")):
                # States that decay over a few tokens in some heads, and over many in others.
                values = 1.2 * values - 1.5
            elif name.endswith(("mamba.D", "mixer.D")):
                values = 1.0 + 0.3 * values
            elif "sinks" in name:
                values = 2.0 * values
            elif "norm" in name:
                values = (0.0 if norms_plus_one else 1.0) + 0.2 * values
            elif name.endswith(("router.scale", "per_expert_scale")):
                values = 1.0 + 0.3 * values
            else:
                values = 0.3 * values
            parameter.copy_(values.half().float())
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_((0.1 * torch.randn(buffer.shape, generator=generator)).half().float())
            elif name.endswith("layer_scalar"):
                buffer.copy_((1.0 + 0.2 * torch.randn(buffer.shape, generator=generator)).half().float())


def make_mxfp4(model, generator):
    """Gives the experts values that MXFP4 has, and returns the tensors that hold them."""
    packed = {}
    for name, parameter in model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, columns, rows = parameter.shape
        quants = torch.randint(0, 16, (experts, rows, columns // 32, 32), generator=generator)
        exponents = torch.randint(121, 126, (experts, rows, columns // 32), generator=generator)
        values = E2M1[quants] * torch.exp2(exponents - 127.0)[..., None]
        with torch.no_grad():
            parameter.copy_(values.reshape(experts, rows, columns).transpose(1, 2))
        packed[f"{name}_blocks"] = (quants[..., 0::2] | quants[..., 1::2] << 4).to(torch.uint8)
        packed[f"{name}_scales"] = exponents.to(torch.uint8)
    return packed


def replace_experts(folder, packed):
    """Puts the tensors in the place of those that have their values, as published folders have them."""
    weights = load_file(folder / "model.safetensors")
    weights = {name: tensor for name, tensor in weights.items() if not name.endswith(("gate_up_proj", "down_proj"))}
    save_torch_file(weights | packed, folder / "model.safetensors", metadata=dict(format="pt"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=[
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


# Folders beside which llama.cpp's converter writes a file: its class, and what published configurations have in the place of
# what transformers 5 writes.
PUBLISHED_NAMES = dict(linear_attention="mamba", full_attention="attention")
PATTERN = dict(linear_attention="M", full_attention="*", mlp="-", moe="E")
CONVERTED = {
    "granitehybrid": ("granite", "GraniteHybridModel"),
    "granitehybrid_moe": ("granite", "GraniteHybridModel"),
    "qwen3next": ("qwen", "Qwen3NextModel"),
    "nemotron_h": ("nemotron", "NemotronHModel"),
    "nemotron_h_moe": ("nemotron", "NemotronHModel"),
    "falcon_h1": ("falcon_h1", "FalconH1Model"),
}


def publish(config):
    """Names of layers as in published configurations."""
    if config["architectures"] == ["GraniteMoeHybridForCausalLM"]:
        config["layer_types"] = [PUBLISHED_NAMES[kind] for kind in config["layer_types"]]
    if config["architectures"] == ["NemotronHForCausalLM"]:
        kinds = config.pop("layers_block_type")
        config |= dict(hybrid_override_pattern="".join(PATTERN[kind] for kind in kinds), num_hidden_layers=len(kinds))
        if "moe" not in kinds:
            for field in ["num_experts_per_tok", "n_routed_experts"]:
                config.pop(field)
    return config


def convert(llama_cpp, name):
    """Converts a folder as llama.cpp does it, which knows the names of layers in published files."""
    sys.path[:0] = [llama_cpp, f"{llama_cpp}/gguf-py"]
    import importlib

    import gguf

    module, class_name = CONVERTED[name]
    converter = getattr(importlib.import_module(f"conversion.{module}"), class_name)
    converter.set_vocab, converter.no_mtp = lambda self: None, True
    with tempfile.TemporaryDirectory() as copied:
        folder = Path(copied) / name
        shutil.copytree(HERE / name, folder, ignore=shutil.ignore_patterns("*.gguf"))
        config = publish(json.loads((folder / "config.json").read_text()))
        (folder / "config.json").write_text(json.dumps(config))
        # Else the converter adds the defaults of transformers, experts among them.
        given = dict(hparams=config) if class_name == "NemotronHModel" else {}
        converter(folder, gguf.LlamaFileType.MOSTLY_F16, HERE / name / "converted.gguf", **given).write()


def continuation(model, ids):
    """The likeliest next tokens, each behind those before it."""
    for _ in range(CONTINUED):
        ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, -CONTINUED:].numpy().astype(np.int32)


def continue_all():
    """Adds continuations to folders without, whose logits must be those of the version that made them."""
    for folder in sorted(path.parent for path in HERE.glob("*/expected.safetensors")):
        expected = load_arrays(folder / "expected.safetensors")
        if "greedy" in expected or folder.name.endswith("_mxfp4"):
            continue
        class_name = json.loads((folder / "config.json").read_text())["architectures"][0]
        model = getattr(transformers, class_name).from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
        ids = torch.from_numpy(expected["ids"].astype(np.int64))[None]
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, ::EVERY].numpy()
            assert np.abs(logits - expected["logits"]).max() < 1e-5, folder.name
            save_file(expected | dict(greedy=continuation(model, ids)), folder / "expected.safetensors")


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["convert"]:
        for name in CONVERTED:
            convert(sys.argv[2], name)
        return
    if sys.argv[1:] == ["greedy"]:
        continue_all()
        return
    forms = FORMS if transformers.__version__ < "5" else FORMS_5
    if sys.argv[1:] == ["mixtures"]:
        forms = MIXTURES
    elif sys.argv[1:] == ["chunks"]:
        forms = CHUNKS
    elif sys.argv[1:] == ["phimoe"]:
        forms = PHIMOE
    elif sys.argv[1:] == ["switches"]:
        forms = SWITCHES
    elif sys.argv[1:] == ["hybrids"]:
        forms = HYBRIDS
    elif sys.argv[1:] == ["gemma3n"]:
        forms = GEMMA3NS
    elif sys.argv[1:] == ["gemma4"]:
        forms = GEMMA4S
    elif sys.argv[1:] == ["leading"]:
        forms = LEADING
    elif sys.argv[1:] == ["latents"]:
        forms = LATENTS
    elif sys.argv[1:] == ["mamba"]:
        forms = MAMBA
    elif sys.argv[1:] == ["sinks"]:
        forms = SINKS
    elif sys.argv[1:] == ["states"]:
        forms = STATES
    for seed, (name, (class_name, changes)) in enumerate(forms.items()):
        generator = torch.Generator().manual_seed(seed)
        config = configuration(class_name, changes)
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        model = getattr(transformers, class_name)(config).eval()
        is_gemma = "Gemma" in class_name
        fill(model, is_gemma, generator, is_gemma and not class_name.startswith(("Gemma3n", "Gemma4")))
        packed = make_mxfp4(model, generator) if name.endswith("_mxfp4") else {}
        ids = torch.randint(4, COMMON["vocab_size"], (1, TOKENS), generator=generator)
        with torch.no_grad():
            logits = model.double()(ids, use_cache=False).logits[0, ::EVERY]
            greedy = continuation(model, ids)
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        # Last, since tables of rotary positions lose their precision too.
        model.half().save_pretrained(folder, **(dict(save_original_format=False) if name.endswith("_fused") else {}))
        if packed:
            replace_experts(folder, packed)
        (folder / "generation_config.json").unlink(missing_ok=True)
        expected = {"ids": ids[0].numpy().astype(np.int32), "logits": logits.numpy().astype(np.float64)}
        save_file(expected | dict(greedy=greedy), folder / "expected.safetensors")
        print(f"{name}: logits of deviation {logits.std():.1f}")


main()
