"""Draws of decoders with attention and a feed-forward network in every layer."""

from draws import maybe, named, narrow, pick, scaled, sizes


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


def without_truncate(fields):
    """transformers reads this field where all layers have one rotation alone."""
    fields.get("rope_scaling", {}).pop("truncate", None)
    return fields


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
    fields = without_truncate(scaled(draw, sizes(draw, True), ["default", "linear", "yarn"]))
    period = pick(draw, 6, 6, 2, 3)
    fields.update(query_pre_attn_scalar=pick(draw, fields["head_dim"], 24, 168), sliding_window=pick(draw, 16, 32),
                  attention_bias=maybe(draw, 0.2), sliding_window_pattern=period,
                  final_logit_softcapping=pick(draw, None, 9.0), rope_local_base_freq=pick(draw, 1e4, 5e3))
    fields["layer_types"] = ["sliding_attention" if (layer + 1) % period else "full_attention"
                             for layer in range(fields["num_hidden_layers"])]
    return "Gemma3ForCausalLM", fields


def gemma3n(draw):
    fields = sizes(draw, maybe(draw, 0.8))
    n, base, streams = fields["num_hidden_layers"], fields.pop("rope_theta"), pick(draw, 4, 4, 2, 3)
    kinds = [pick(draw, "sliding_attention", "sliding_attention", "full_attention") for _ in range(n)]
    kinds[draw.randrange(n)] = "full_attention"
    shared = pick(draw, 0, n // 2)
    if maybe(draw, 0.3):
        fields["intermediate_size"] = [pick(draw, 96, 160, 224) for _ in range(n)]
    return "Gemma3nForCausalLM", dict(
        fields, layer_types=kinds, num_kv_shared_layers=shared if set(kinds[:n - shared]) == set(kinds) else 0,
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=base),
                             sliding_attention=dict(rope_type="default", rope_theta=pick(draw, 1e4, 5e3))),
        sliding_window=pick(draw, 16, 40), final_logit_softcapping=pick(draw, 9.0, 30.0), laurel_rank=pick(draw, 4, 16, 40),
        activation_sparsity_pattern=[pick(draw, 0.0, 0.5, 0.95) for _ in range(n)], altup_num_inputs=streams,
        altup_active_idx=draw.randrange(streams), hidden_size_per_layer_input=pick(draw, 8, 24),
        vocab_size_per_layer_input=fields["vocab_size"] - pick(draw, 0, 8))


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


def olmo2(draw):
    fields = narrow(scaled(draw, sizes(draw), ["default", "linear", "yarn"]))
    return "Olmo2ForCausalLM", dict(fields, attention_bias=maybe(draw, 0.3))


def olmo3(draw):
    # transformers gives windowed layers its default of the base, whatever the others have.
    fields = without_truncate(dict(narrow(scaled(draw, sizes(draw), ["default", "yarn"])), rope_theta=5e5))
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


def glm4(draw):
    fields = scaled(draw, sizes(draw), ["default", "default", "linear"])
    return "Glm4ForCausalLM", dict(fields, attention_bias=maybe(draw, 0.7), partial_rotary_factor=pick(draw, 0.5, 0.5, 0.25, 1.0))


def gemma4(draw):
    """In the forms of the small models, of the large dense one, and of the mixture."""
    fields = sizes(draw, maybe(draw, 0.8))
    layers, vocab = pick(draw, 2, 3, 6, 8), fields["vocab_size"]
    fields.update(
        num_hidden_layers=layers, sliding_window=pick(draw, 1, 16, 40), global_head_dim=pick(draw, fields["head_dim"], 48, 64),
        layer_types=named(draw, layers, "sliding_attention", "sliding_attention", "full_attention", last="full_attention"),
        final_logit_softcapping=pick(draw, None, 9.0, 30.0), hidden_size_per_layer_input=0, vocab_size_per_layer_input=vocab)
    fields["rope_parameters"] = dict(
        full_attention=dict(rope_type="proportional", partial_rotary_factor=pick(draw, 0.25, 0.5, 1.0), rope_theta=fields.pop("rope_theta")),
        sliding_attention=dict(rope_type="default", rope_theta=pick(draw, 1e4, 500.0)))
    form = pick(draw, "small", "large", "mixture")
    if form == "small":
        kinds = fields["layer_types"]
        shared = [n for n in range(layers) if set(kinds[layers - n:]) <= set(kinds[:layers - n])]
        fields.update(hidden_size_per_layer_input=pick(draw, 8, 24, 32), num_kv_shared_layers=pick(draw, *shared),
                      use_double_wide_mlp=maybe(draw, 0.5))
    else:
        divisors = [n for n in (1, 2, 3) if fields["num_attention_heads"] % n == 0]
        fields.update(attention_k_eq_v=maybe(draw, 0.8), num_global_key_value_heads=pick(draw, *divisors))
    if form == "mixture":
        count = pick(draw, 2, 4, 8, 20)
        fields.update(enable_moe_block=True, num_experts=count, top_k_experts=draw.randint(1, min(count, 6)),
                      moe_intermediate_size=pick(draw, 32, 56))
    return "Gemma4ForCausalLM", fields
