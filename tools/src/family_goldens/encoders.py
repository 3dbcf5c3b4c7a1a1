"""Draws of encoders and rerankers."""

from draws import maybe, pick, scaled, sizes


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


def modernbert(draw):
    heads = pick(draw, 1, 2, 4)
    return "ModernBert" + pick(draw, "Model", "ForMaskedLM"), dict(
        hidden_size=heads * pick(draw, 8, 16, 32), num_attention_heads=heads, intermediate_size=pick(draw, 40, 128),
        num_hidden_layers=pick(draw, 1, 3, 7), vocab_size=pick(draw, 60, 101), max_position_embeddings=pick(draw, 160, 512),
        norm_eps=pick(draw, 1e-5, 1e-12), local_attention=pick(draw, 2, 10, 48, 128), global_attn_every_n_layers=pick(draw, 1, 2, 3),
        global_rope_theta=pick(draw, 1.6e5, 1e4), local_rope_theta=pick(draw, 1e4, 500.0), norm_bias=maybe(draw, 0.3),
        attention_bias=maybe(draw, 0.3), mlp_bias=maybe(draw, 0.3), pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2)


def nomic(draw):
    heads = pick(draw, 1, 2, 4)
    return "NomicBertModel", dict(
        hidden_size=heads * pick(draw, 8, 16, 32), num_attention_heads=heads, intermediate_size=pick(draw, 40, 128),
        num_hidden_layers=pick(draw, 1, 3), vocab_size=pick(draw, 60, 101), type_vocab_size=pick(draw, 1, 2),
        max_position_embeddings=pick(draw, 160, 2048), layer_norm_eps=pick(draw, 1e-12, 1e-5), pad_token_id=0,
        rope_parameters=dict(rope_type="default", rope_theta=pick(draw, 1e3, 1e4)))


def embeddinggemma(draw):
    """The window of the configuration is that of both sides together."""
    fields = dict(sizes(draw, True), sliding_window=pick(draw, 2, 12, 32, 64), use_bidirectional_attention=True)
    period = pick(draw, 6, 2, 3)
    fields["layer_types"] = ["sliding_attention" if (layer + 1) % period else "full_attention"
                             for layer in range(fields["num_hidden_layers"])]
    return "Gemma3TextModel", dict(fields, query_pre_attn_scalar=pick(draw, fields["head_dim"], 24), sliding_window_pattern=period,
                                   rope_local_base_freq=pick(draw, 1e4, 5e3))


def cross_encoder(draw):
    name, padding = pick(draw, ("Bert", 0), ("Roberta", 1), ("XLMRoberta", 1))
    _, fields = encoder(name, padding)(draw)
    return name + "ForSequenceClassification", dict(fields, id2label={0: "LABEL_0"}, label2id={"LABEL_0": 0})


def qwen3_reranker(draw):
    fields = scaled(draw, sizes(draw), ["default", "yarn"])
    return "Qwen3ForCausalLM", dict(fields, attention_bias=maybe(draw, 0.3))
