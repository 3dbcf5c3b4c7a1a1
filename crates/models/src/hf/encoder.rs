//! Encoders: what their tensors are called, and their hyperparameters under the keys of GGUF.

use super::decoder::{GEMMA_FAMILY, GEMMA3};
use super::family::{Bias, Decoder, Encoder, Family, Form, Names, Part, Shape, part};
use super::fields::Fields;
use super::heads::RecurrentSizes;
use super::keys::Keys;
use super::parts;
use super::rotary::{self, Rotary, Windows};
use super::sizes::{MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, Multipliers, Sizes};
use crate::error::Result;
use crate::pooling::RANKS;

/// Most token types; published models have one or two.
const MAX_TOKEN_TYPES: usize = 1 << 10;

/// Values of `hidden_act` for GELU by the error function. The format has no key for others.
const GELU: &[&str] = &["gelu"];

/// Heads that guess left-out words, compare sentences, or are made for classes.
const HEADS: &[&str] = &["pooler.", "cls.", "lm_head.", "vocab_", "embeddings.position_ids"];

/// The same where the pooler belongs to the head that scores.
const HEADS_BUT_POOLER: &[&str] = &["cls.", "embeddings.position_ids"];

const WORDS: Part = part("embeddings.word_embeddings", "token_embd", Shape::Embedding, Bias::Never);
const POSITIONS: Part =
    part("embeddings.position_embeddings", "position_embd", Shape::Positions, Bias::Never);
const TYPES: Part = part("embeddings.token_type_embeddings", "token_types", Shape::TokenTypes, Bias::Never);
const EMBEDDING_NORM: Part = part("embeddings.LayerNorm", "token_embd_norm", Shape::ModelNorm, Bias::Always);

const BERT_HIDDEN: Part = part("pooler.dense", "cls", Shape::HeadHidden, Bias::Always);
const BERT_SCORE: Part = part("classifier", "cls.output", Shape::HeadOutput, Bias::Always);
const ROBERTA_HIDDEN: Part = part("classifier.dense", "cls", Shape::HeadHidden, Bias::Always);
const ROBERTA_SCORE: Part = part("classifier.out_proj", "cls.output", Shape::HeadOutput, Bias::Always);

const BERT_LAYER: &[Part] = &[
    part("attention.self.query", "attn_q", Shape::Query, Bias::Always),
    part("attention.self.key", "attn_k", Shape::Key, Bias::Always),
    part("attention.self.value", "attn_v", Shape::Value, Bias::Always),
    part("attention.output.dense", "attn_output", Shape::AttentionOutput, Bias::Always),
    part("attention.output.LayerNorm", "attn_output_norm", Shape::ModelNorm, Bias::Always),
    part("intermediate.dense", "ffn_up", Shape::Up, Bias::Always),
    part("output.dense", "ffn_down", Shape::Down, Bias::Always),
    part("output.LayerNorm", "layer_output_norm", Shape::ModelNorm, Bias::Always),
];

const DISTILBERT_LAYER: &[Part] = &[
    part("attention.q_lin", "attn_q", Shape::Query, Bias::Always),
    part("attention.k_lin", "attn_k", Shape::Key, Bias::Always),
    part("attention.v_lin", "attn_v", Shape::Value, Bias::Always),
    part("attention.out_lin", "attn_output", Shape::AttentionOutput, Bias::Always),
    part("sa_layer_norm", "attn_output_norm", Shape::ModelNorm, Bias::Always),
    part("ffn.lin1", "ffn_up", Shape::Up, Bias::Always),
    part("ffn.lin2", "ffn_down", Shape::Down, Bias::Always),
    part("output_layer_norm", "layer_output_norm", Shape::ModelNorm, Bias::Always),
];

const BERT_NAMES: Names = Names {
    shown_prefix: "",
    layers: "encoder.layer.",
    outside: &[WORDS, POSITIONS, TYPES, EMBEDDING_NORM],
    unused: HEADS,
};

const BERT_RANKING_NAMES: Names = Names {
    outside: &[WORDS, POSITIONS, TYPES, EMBEDDING_NORM, BERT_HIDDEN, BERT_SCORE],
    unused: HEADS_BUT_POOLER,
    ..BERT_NAMES
};

const ROBERTA_RANKING_NAMES: Names = Names {
    outside: &[WORDS, POSITIONS, TYPES, EMBEDDING_NORM, ROBERTA_HIDDEN, ROBERTA_SCORE],
    ..BERT_NAMES
};

const DISTILBERT_NAMES: Names =
    Names { layers: "transformer.layer.", outside: &[WORDS, POSITIONS, EMBEDDING_NORM], ..BERT_NAMES };

/// The norm before the first layer's attention is that of the embeddings.
const MODERNBERT_LAYER: &[Part] = &[
    part("attn_norm", "attn_norm", Shape::LaterNorm, Bias::Maybe),
    part("attn.Wqkv", "attn_qkv", Shape::QueryKeyValue, Bias::Maybe),
    part("attn.Wo", "attn_output", Shape::AttentionOutput, Bias::Maybe),
    part("mlp_norm", "ffn_norm", Shape::ModelNorm, Bias::Maybe),
    part("mlp.Wi", "ffn_up", Shape::GateUp, Bias::Maybe),
    part("mlp.Wo", "ffn_down", Shape::Down, Bias::Maybe),
];

const NOMIC_LAYER: &[Part] = &[
    part("attn.Wqkv", "attn_qkv", Shape::QueryKeyValue, Bias::Never),
    part("attn.out_proj", "attn_output", Shape::AttentionOutput, Bias::Never),
    part("norm1", "attn_output_norm", Shape::ModelNorm, Bias::Always),
    part("mlp.fc11", "ffn_up", Shape::Up, Bias::Never),
    part("mlp.fc12", "ffn_gate", Shape::Up, Bias::Never),
    part("mlp.fc2", "ffn_down", Shape::Down, Bias::Never),
    part("norm2", "layer_output_norm", Shape::ModelNorm, Bias::Always),
];

/// Heads that guess left-out words are left out.
const MODERNBERT_NAMES: Names = Names {
    shown_prefix: "",
    layers: "layers.",
    outside: &[
        part("embeddings.tok_embeddings", "token_embd", Shape::Embedding, Bias::Never),
        part("embeddings.norm", "token_embd_norm", Shape::ModelNorm, Bias::Maybe),
        part("final_norm", "output_norm", Shape::ModelNorm, Bias::Maybe),
    ],
    unused: &["head.", "decoder."],
};

const NOMIC_NAMES: Names = Names {
    layers: "encoder.layers.",
    outside: &[WORDS, TYPES, part("emb_ln", "token_embd_norm", Shape::ModelNorm, Bias::Always)],
    ..BERT_NAMES
};

/// Fields of BERT itself, `MiniLM` and others that its authors' code runs.
const BERT_FIELDS: Encoder = Encoder {
    model_dim: "hidden_size",
    ffn_dim: "intermediate_size",
    n_layers: "num_hidden_layers",
    n_heads: "num_attention_heads",
    norm_eps: Some("layer_norm_eps"),
    usual_norm_eps: 1e-12,
    context: "max_position_embeddings",
    n_token_types: Some("type_vocab_size"),
    padding: None,
    rotary: None,
    ranks: false,
};

const ROBERTA_FIELDS: Encoder = Encoder { padding: Some("pad_token_id"), ..BERT_FIELDS };

const BERT: Family = Family {
    classes: &["BertModel", "BertForMaskedLM", "BertForPreTraining"],
    model_types: &["bert"],
    architecture: "bert",
    applies: |_| true,
    form: Form::Encoder(BERT_FIELDS),
    names: &BERT_NAMES,
    layer: &[BERT_LAYER],
    interleaves_heads: false,
    norms_plus_one: false,
    activations: GELU,
};

/// The families.
pub(super) const FAMILIES: &[Family] = &[
    BERT,
    Family {
        classes: &[
            "RobertaModel",
            "RobertaForMaskedLM",
            "XLMRobertaModel",
            "XLMRobertaForMaskedLM",
            "CamembertModel",
            "CamembertForMaskedLM",
        ],
        model_types: &["roberta", "xlm-roberta", "camembert"],
        form: Form::Encoder(ROBERTA_FIELDS),
        ..BERT
    },
    Family {
        classes: &["BertForSequenceClassification"],
        model_types: &[],
        form: Form::Encoder(Encoder { ranks: true, ..BERT_FIELDS }),
        names: &BERT_RANKING_NAMES,
        ..BERT
    },
    Family {
        classes: &[
            "RobertaForSequenceClassification",
            "XLMRobertaForSequenceClassification",
            "CamembertForSequenceClassification",
        ],
        model_types: &[],
        form: Form::Encoder(Encoder { ranks: true, ..ROBERTA_FIELDS }),
        names: &ROBERTA_RANKING_NAMES,
        ..BERT
    },
    Family {
        classes: &["DistilBertModel", "DistilBertForMaskedLM"],
        model_types: &["distilbert"],
        form: Form::Encoder(Encoder {
            model_dim: "dim",
            ffn_dim: "hidden_dim",
            n_layers: "n_layers",
            n_heads: "n_heads",
            norm_eps: None,
            n_token_types: None,
            ..BERT_FIELDS
        }),
        names: &DISTILBERT_NAMES,
        layer: &[DISTILBERT_LAYER],
        ..BERT
    },
    Family {
        classes: &["ModernBertModel", "ModernBertForMaskedLM"],
        model_types: &["modernbert"],
        architecture: "modern-bert",
        form: Form::Encoder(Encoder {
            norm_eps: Some("norm_eps"),
            usual_norm_eps: 1e-5,
            n_token_types: None,
            rotary: Some(MODERNBERT_ROTARY),
            ..BERT_FIELDS
        }),
        names: &MODERNBERT_NAMES,
        layer: &[MODERNBERT_LAYER],
        ..BERT
    },
    // As published.
    Family {
        applies: |config| config.get("n_embd").is_some(),
        form: Form::Encoder(Encoder {
            model_dim: "n_embd",
            ffn_dim: "n_inner",
            n_layers: "n_layer",
            n_heads: "n_head",
            norm_eps: Some("layer_norm_epsilon"),
            context: "n_positions",
            rotary: Some(NOMIC_ROTARY),
            ..BERT_FIELDS
        }),
        activations: &["swiglu"],
        ..NOMIC
    },
    // As transformers 5 writes it, but for the names of tensors.
    Family { applies: |config| config.get("n_embd").is_none(), ..NOMIC },
    // Written like a decoder.
    Family {
        classes: &["Gemma3TextModel"],
        model_types: &[],
        architecture: "gemma-embedding",
        applies: |config| matches!(config.flag("use_bidirectional_attention"), Ok(Some(true))),
        form: Form::Decoder(Decoder { is_encoder: true, ..GEMMA3 }),
        layer: parts::GEMMA3,
        ..GEMMA_FAMILY
    },
];

const NOMIC: Family = Family {
    classes: &["NomicBertModel", "NomicBertForMaskedLM", "NomicBertForPreTraining"],
    model_types: &["nomic_bert"],
    architecture: "nomic-bert",
    form: Form::Encoder(Encoder {
        rotary: Some(Rotary { base: ("rope_theta", 1000.0), ..ROTARY }),
        ..BERT_FIELDS
    }),
    names: &NOMIC_NAMES,
    layer: &[NOMIC_LAYER],
    activations: &["silu"],
    ..BERT
};

const ROTARY: Rotary = Rotary {
    base: ("rope_theta", 10_000.0),
    trained: None,
    windows: None,
    never: &[],
    expert_period: None,
    share: None,
};

const MODERNBERT_ROTARY: Rotary = Rotary {
    base: ("global_rope_theta", 160_000.0),
    windows: Some(Windows {
        base: ("local_rope_theta", 10_000.0),
        length: ("local_attention", 128),
        period: ("global_attn_every_n_layers", 3),
    }),
    ..ROTARY
};

/// Files may name another scaling of long texts than GGUF has, for which the model was not trained.
const NOMIC_ROTARY: Rotary = Rotary {
    base: ("rotary_emb_base", 10_000.0),
    trained: Some(("max_trained_positions", 2048)),
    never: &["causal", "prenorm", "parallel_block", "rotary_emb_interleaved", "use_rms_norm"],
    expert_period: Some("moe_every_n_layers"),
    share: Some("rotary_emb_fraction"),
    ..ROTARY
};

/// Reads and checks the sizes, and writes the keys.
pub(super) fn write(config: &Fields<'_>, names: &Encoder, keys: &mut Keys) -> Result<Sizes> {
    for key in ["is_decoder", "add_cross_attention"] {
        if config.flag(key)? == Some(true) {
            return Err(config.invalid(key, "false: only encoders have this form"));
        }
    }
    const POSITION_TYPE: &str = "position_embedding_type";
    if config.text(POSITION_TYPE)?.is_some_and(|found| found != "absolute") {
        return Err(config.invalid(POSITION_TYPE, "`absolute`"));
    }
    let sizes = read_sizes(config, names)?;
    let norm_eps = match names.norm_eps {
        Some(key) => config.positive(key)?,
        None => None,
    };
    keys.count("block_count", sizes.n_layers);
    keys.count("context_length", sizes.context);
    keys.count("embedding_length", sizes.model_dim);
    keys.count("feed_forward_length", sizes.ffn_dim);
    keys.count("attention.head_count", sizes.n_heads);
    keys.real("attention.layer_norm_epsilon", norm_eps.unwrap_or(names.usual_norm_eps));
    keys.flag("attention.causal", false);
    if let Some(rotary) = &names.rotary {
        if let Some(vocab_size) = sizes.vocab_size {
            keys.count("vocab_size", vocab_size);
        }
        rotary::write(config, rotary, &sizes, keys)?;
    }
    if names.ranks {
        check_labels(config)?;
        keys.count("pooling_type", RANKS as usize);
    }
    Ok(sizes)
}

/// Refuses classifiers: a score is the logit of the only label. Without names there are two.
fn check_labels(config: &Fields<'_>) -> Result<()> {
    let one = "one label: a reranker gives one score, classifiers are not supported";
    let labels = match config.object("id2label")? {
        Some(names) => Some(("id2label", names.iter().count())),
        None => config.count("num_labels", 0..=usize::MAX)?.map(|labels| ("num_labels", labels)),
    };
    match labels {
        Some((_, 1)) => Ok(()),
        Some((key, _)) => Err(config.invalid(key, one)),
        None => Err(config.missing("id2label", one)),
    }
}

fn read_sizes(config: &Fields<'_>, names: &Encoder) -> Result<Sizes> {
    let model_dim = config.require_count(names.model_dim, 1..=MAX_WIDTH)?;
    let n_heads = config.require_count(names.n_heads, 1..=MAX_WIDTH)?;
    if model_dim % n_heads != 0 {
        let expected = format!("a divisor of {} {model_dim}", names.model_dim);
        return Err(config.invalid(names.n_heads, expected));
    }
    let first_position = match names.padding {
        Some(key) => config.count(key, 0..=MAX_VOCAB)?.unwrap_or(1) + 1,
        None => 0,
    };
    let mut positions = config.require_count(names.context, first_position + 1..=MAX_POSITIONS)?;
    if let Some((field, usual)) = names.rotary.as_ref().and_then(|rotary| rotary.trained) {
        positions = positions.min(config.count(field, 1..=MAX_POSITIONS)?.unwrap_or(usual));
    }
    let n_token_types = match names.n_token_types {
        Some(key) => config.count(key, 1..=MAX_TOKEN_TYPES)?.unwrap_or(2),
        None => 0,
    };
    Ok(Sizes {
        model_dim,
        ffn_dim: config.require_count(names.ffn_dim, 1..=MAX_WIDTH)?,
        experts: None,
        latent: None,
        multipliers: Multipliers::NONE,
        recurrent: RecurrentSizes::default(),
        n_layers: config.require_count(names.n_layers, 1..=MAX_LAYERS)?,
        prediction_layers: 0,
        n_heads,
        n_kv_heads: n_heads,
        head_dim: model_dim / n_heads,
        layer_input_dim: 0,
        layer_input_rows: None,
        streams: None,
        vocab_size: config.count("vocab_size", 1..=MAX_VOCAB)?,
        context: positions - first_position,
        first_position,
        n_token_types,
    })
}
