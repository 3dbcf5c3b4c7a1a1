"""What draws of all families share."""


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


def experts(draw, fields, count="num_experts"):
    """A mixture; its folder has a matrix per expert or, from transformers 5 on, all in one tensor."""
    n = pick(draw, 1, 2, 4, 8, 20)
    return dict(fields, **{count: n, "num_experts_per_tok": draw.randint(1, min(n, 6))})


def nested(fields, **parameters):
    """Rotary parameters in the form of transformers 5 alone."""
    base = fields.pop("rope_theta")
    scaling = fields.pop("rope_scaling", None) or dict(rope_type="default")
    return dict(fields, rope_parameters=dict(scaling, rope_theta=base, **parameters))


def named(draw, count, *kinds, last=None):
    """A kind for each layer, each kind at least once where there is room."""
    layers = [pick(draw, *kinds) for _ in range(count)]
    for place, kind in zip(draw.sample(range(count), min(count, len(set(kinds)))), sorted(set(kinds))):
        layers[place] = kind
    if last:
        layers[-1] = last
    return layers
