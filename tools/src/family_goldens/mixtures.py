"""Draws of mixtures of experts and of latent attention."""

from decoders import factors, mistral
from draws import experts, maybe, narrow, nested, pick, scaled, sizes


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


def granitemoe(draw):
    fields = experts(draw, narrow(scaled(draw, sizes(draw), ["default", "llama3", "yarn"])), "num_local_experts")
    fields.update(factors(draw), attention_bias=maybe(draw, 0.3))
    shared = dict(shared_intermediate_size=pick(draw, 40, 64))
    return pick(draw, ("GraniteMoeForCausalLM", fields), ("GraniteMoeSharedForCausalLM", fields | shared))


def groups(draw, fields):
    """Sigmoid or softmax experts behind leading layers without, in groups or not."""
    n_group = pick(draw, 1, 1, 2, 4)
    count = n_group * pick(draw, 2, 4, 8)
    topk_group = draw.randint(1, n_group)
    most = min(count // n_group * topk_group, 6)
    return dict(
        fields, n_routed_experts=count, num_experts_per_tok=draw.randint(1, most), n_group=n_group, topk_group=topk_group,
        n_shared_experts=pick(draw, 1, 1, 2), moe_intermediate_size=pick(draw, 32, 56), norm_topk_prob=maybe(draw, 0.6),
        first_k_dense_replace=pick(draw, *range(min(3, fields["num_hidden_layers"]))), routed_scaling_factor=pick(draw, 1.0, 1.5, 2.5))


def glm4moe(draw):
    fields = groups(draw, scaled(draw, sizes(draw), ["default", "default", "yarn"]))
    return "Glm4MoeForCausalLM", dict(fields, attention_bias=maybe(draw, 0.5), use_qk_norm=maybe(draw, 0.5),
                                      partial_rotary_factor=pick(draw, 0.5, 0.5, 1.0))


def latent(draw):
    """Norms of latents have this epsilon in transformers."""
    fields = dict(sizes(draw), rms_norm_eps=1e-6)
    fields.pop("head_dim")
    heads = pick(draw, 2, 3, 4, 8)
    return dict(fields, num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=pick(draw, None, 24, 40),
                kv_lora_rank=pick(draw, 16, 24, 48), qk_nope_head_dim=pick(draw, 8, 12, 32), qk_rope_head_dim=pick(draw, 8, 16),
                v_head_dim=pick(draw, 12, 16, 32))


def scaled_latent(draw, fields):
    """Without scaling, or YaRN in the forms of DeepSeek."""
    if maybe(draw, 0.3):
        return fields
    scales = pick(draw, dict(mscale=1.0, mscale_all_dim=1.0), dict(mscale=0.707, mscale_all_dim=0.707), dict(mscale=1.0, mscale_all_dim=0.5))
    return dict(fields, rope_scaling=dict(rope_type="yarn", factor=pick(draw, 4.0, 40.0), beta_fast=32.0, beta_slow=1.0,
                                          original_max_position_embeddings=pick(draw, 32, 64, 100), **scales))


def deepseek2(draw):
    fields = groups(draw, scaled_latent(draw, latent(draw)))
    method = "greedy" if fields["n_group"] == 1 else "group_limited_greedy"
    return "DeepseekV2ForCausalLM", dict(fields, topk_method=method, norm_topk_prob=False)


def deepseek3(draw):
    return "DeepseekV3ForCausalLM", groups(draw, scaled_latent(draw, latent(draw)))


def mistral4(draw):
    fields = groups(draw, latent(draw)) | dict(n_group=1, topk_group=1, q_lora_rank=pick(draw, 24, 40))
    fields["rope_scaling"] = dict(
        rope_type="yarn", factor=pick(draw, 4.0, 16.0), beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
        original_max_position_embeddings=pick(draw, 12, 32, 64), llama_4_scaling_beta=pick(draw, 0.1, 0.4))
    return "Mistral4ForCausalLM", nested(fields)


def llama4(draw):
    """In the forms of Scout, of Maverick with its 128 experts, and of small models without experts."""
    fields = sizes(draw)
    layers = pick(draw, 1, 4, 5, 9)
    count = pick(draw, 0, 1, 4, 16, 128)
    fields.update(
        num_hidden_layers=layers, intermediate_size=pick(draw, 24, 40), intermediate_size_mlp=pick(draw, 56, 96),
        num_local_experts=count, num_experts_per_tok=min(count, pick(draw, 1, 1, 2)), use_qk_norm=count != 128,
        interleave_moe_layer_step=pick(draw, 1, 2) if count else 0, attention_chunk_size=pick(draw, 1, 12, 32, 64, 100, 8192),
        attn_temperature_tuning=maybe(draw, 0.8), attn_scale=pick(draw, 0.1, 0.3), floor_scale=pick(draw, 8, 32, 8192))
    if fields["interleave_moe_layer_step"] > layers:
        # No layer has experts: such a model has the norms.
        fields.update(use_qk_norm=True)
    if not count:
        fields.update(moe_layers=[])
        if maybe(draw, 0.5):
            fields.update(no_rope_layers=[1] * layers, layer_types=["full_attention"] * layers, attn_temperature_tuning=False)
    if maybe(draw, 0.6):
        low, high = pick(draw, (1.0, 1.0), (1.0, 4.0))
        fields["rope_scaling"] = dict(rope_type="llama3", factor=pick(draw, 8.0, 16.0), low_freq_factor=low, high_freq_factor=high,
                                      original_max_position_embeddings=pick(draw, 32, 64, 100))
    return "Llama4ForCausalLM", fields


def phimoe(draw):
    """Within the original context: transformers 5 rotates by the short factors beyond it too."""
    fields = narrow(dict(sizes(draw), head_dim=pick(draw, 16, 24)))
    pairs = fields["hidden_size"] // fields["num_attention_heads"] // 2
    fields.update(num_local_experts=pick(draw, 2, 4, 8, 16), num_experts_per_tok=2, router_jitter_noise=0.01,
                  attention_bias=maybe(draw, 0.7), lm_head_bias=maybe(draw, 0.7), tie_word_embeddings=False,
                  sliding_window=pick(draw, None, 16, 40))
    if maybe(draw, 0.7):
        scale = pick(draw, 1.0, 1.243, 0.9)
        fields["rope_scaling"] = dict(
            rope_type="longrope", short_factor=[1 + draw.random() for _ in range(pairs)], long_factor=[1 + 9 * draw.random() for _ in range(pairs)],
            short_mscale=scale, long_mscale=scale, original_max_position_embeddings=256)
        fields["original_max_position_embeddings"] = 256
    return "PhimoeForCausalLM", fields
