"""Draws of decoders with a state in some or all layers."""

from decoders import factors
from draws import experts, maybe, named, narrow, nested, pick, scaled, sizes


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


def delta_net(draw):
    """Layers of gated DeltaNet, and attention with a gated output."""
    fields = sizes(draw)
    layers = pick(draw, 2, 3, 4, 6)
    key_heads = pick(draw, 1, 2, 4)
    return dict(
        fields, num_hidden_layers=layers, layer_types=named(draw, layers, "linear_attention", "linear_attention", "full_attention"),
        linear_num_key_heads=key_heads, linear_num_value_heads=key_heads * pick(draw, 1, 2, 3), linear_key_head_dim=pick(draw, 8, 16, 32),
        linear_value_head_dim=pick(draw, 8, 16, 32), linear_conv_kernel_dim=pick(draw, 4, 4, 2), attention_bias=maybe(draw, 0.3))


def gated_experts(draw, fields):
    """A mixture in every layer, with shared experts behind a gate."""
    fields = experts(draw, fields)
    fields.pop("intermediate_size")
    return dict(fields, moe_intermediate_size=pick(draw, 32, 56), shared_expert_intermediate_size=pick(draw, 40, 64))


def images(draw, fields):
    """Rotary positions in the form of models that see images."""
    return nested(fields, partial_rotary_factor=pick(draw, 0.25, 0.5), mrope_section=[1, 1, 0], mrope_interleaved=True)


def qwen35(draw):
    return "Qwen3_5ForCausalLM", images(draw, delta_net(draw))


def qwen35moe(draw):
    return "Qwen3_5MoeForCausalLM", images(draw, gated_experts(draw, delta_net(draw)))


def qwen3next(draw):
    fields = gated_experts(draw, delta_net(draw))
    return "Qwen3NextForCausalLM", dict(fields, partial_rotary_factor=pick(draw, 0.25, 0.5), norm_topk_prob=maybe(draw, 0.7),
                                        decoder_sparse_step=1)


def lfm2(draw):
    fields = narrow(scaled(draw, sizes(draw), ["default", "default", "linear"]))
    layers = pick(draw, 2, 3, 6)
    fields["norm_eps"] = fields.pop("rms_norm_eps")
    return "Lfm2ForCausalLM", dict(
        fields, num_hidden_layers=layers, layer_types=named(draw, layers, "conv", "conv", "full_attention"), conv_bias=False,
        conv_L_cache=pick(draw, 3, 3, 2, 8), block_auto_adjust_ff_dim=maybe(draw, 0.7), block_multiple_of=pick(draw, 16, 32),
        block_ffn_dim_multiplier=pick(draw, 1.0, 1.25))


def mamba(draw):
    """Sizes of Mamba-2: heads, their width, groups, states."""
    n_groups = pick(draw, 1, 1, 2)
    return n_groups * pick(draw, 2, 4, 8), pick(draw, 8, 12, 32), n_groups, pick(draw, 8, 24, 64, 128)


def nemotron(draw):
    fields = dict(sizes(draw))
    heads, width, n_groups, state = mamba(draw)
    network = pick(draw, "mlp", "moe")
    for field in ["rope_theta", "num_hidden_layers"]:
        fields.pop(field)
    fields["layer_norm_epsilon"] = fields.pop("rms_norm_eps")
    fields.update(
        layers_block_type=named(draw, pick(draw, 3, 5, 8), "linear_attention", "linear_attention", network, "full_attention"),
        mamba_num_heads=heads, mamba_head_dim=width, n_groups=n_groups, ssm_state_size=state, conv_kernel=pick(draw, 4, 2),
        use_conv_bias=maybe(draw, 0.7), chunk_size=pick(draw, 16, 64, 256),
        # The least time step in transformers, which the published code does not have.
        time_step_min=1e-12)
    if network == "moe":
        count = pick(draw, 2, 4, 8, 20)
        fields.update(
            n_routed_experts=count, num_experts_per_tok=draw.randint(1, min(count, 6)), moe_intermediate_size=pick(draw, 32, 56),
            moe_shared_expert_intermediate_size=pick(draw, 40, 64), routed_scaling_factor=pick(draw, 1.0, 2.5),
            norm_topk_prob=maybe(draw, 0.7), n_group=1, topk_group=1)
    return "NemotronHForCausalLM", fields


def falcon_h1(draw):
    fields = scaled(draw, sizes(draw), ["default", "default", "linear"])
    heads, width, n_groups, state = mamba(draw)
    factor = lambda: pick(draw, 1.0, 0.25, 0.7, 2.0)
    has_norm = maybe(draw, 0.4)
    return "FalconH1ForCausalLM", dict(
        fields, mamba_d_ssm=heads * width, mamba_n_heads=heads, mamba_d_head=width, mamba_n_groups=n_groups, mamba_d_state=state,
        mamba_d_conv=pick(draw, 4, 2), mamba_chunk_size=pick(draw, 16, 64, 256), mamba_conv_bias=maybe(draw, 0.7),
        mamba_rms_norm=has_norm, mamba_norm_before_gate=False, embedding_multiplier=pick(draw, 1.0, 4.0), lm_head_multiplier=factor(),
        key_multiplier=factor(), attention_in_multiplier=factor(), attention_out_multiplier=factor(), ssm_in_multiplier=factor(),
        ssm_out_multiplier=factor(), mlp_multipliers=[factor(), factor()], ssm_multipliers=[factor() for _ in range(5)])
