//! Form of the tables of Hugging Face families: names of tensors on either side, changes of their
//! values, and what hyperparameters differ in. The tables are in [`super::decoder`] and
//! [`super::encoder`].

use super::experts::Experts;
use super::fields::Fields;
use super::prediction::Prediction;
use super::recurrent::Recurrent;
use super::rotary::Rotary;
use super::window::Window;

/// One family.
#[derive(Debug)]
pub(super) struct Family {
    /// Values of `architectures`.
    pub(super) classes: &'static [&'static str],
    /// Values of `model_type`, for files without `architectures`.
    pub(super) model_types: &'static [&'static str],
    /// Value of `general.architecture`.
    pub(super) architecture: &'static str,
    /// True if a configuration of the class is one of the family; of several families of a class
    /// the first that says so counts.
    pub(super) applies: fn(&Fields<'_>) -> bool,
    /// Hyperparameters: defaults of fields, and the keys that are written.
    pub(super) form: Form,
    /// Name parts of tensors.
    pub(super) names: &'static Names,
    /// The tensors of a layer, of one with attention if there are others.
    pub(super) layer: Parts,
    /// The rows of q and k are reordered, so that the elements of a rotated pair are neighbours.
    pub(super) interleaves_heads: bool,
    /// Norms are stored as `w` and used as `1 + w`.
    pub(super) norms_plus_one: bool,
    /// Values of `hidden_act` or `hidden_activation`.
    pub(super) activations: &'static [&'static str],
}

impl Family {
    /// True if matrices may follow behind the pooling of states.
    pub(super) fn may_project(&self) -> bool {
        matches!(self.form, Form::Decoder(Decoder { is_encoder: true, .. }))
    }
}

/// Decoder or encoder, with its hyperparameters.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // only in static tables, which do not move
pub(super) enum Form {
    /// The next token.
    Decoder(Decoder),
    /// States of all tokens of a text.
    Encoder(Encoder),
}

/// Hyperparameters of a decoder: defaults of fields that `config.json` may leave out, and keys that
/// are written.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Query heads; `None`: the field is required.
    pub(super) n_heads: Option<usize>,
    /// Key and value heads; `None`: as many as query heads.
    pub(super) n_kv_heads: Option<usize>,
    /// Width of a head; `None`: that of the model by the number of heads.
    pub(super) head_dim: Option<usize>,
    /// Positions; `None`: the field is required.
    pub(super) context: Option<usize>,
    pub(super) norm_eps: f64,
    /// The embedding makes the logits; `None`: the weights tell.
    pub(super) is_tied: Option<bool>,
    /// transformers computes with an output matrix whatever `tie_word_embeddings` says: where it is
    /// true the weights tell.
    pub(super) is_never_tied: bool,
    pub(super) writes_vocab_size: bool,
    pub(super) writes_head_dim: bool,
    /// Also where it is that of the head.
    pub(super) writes_rotary_dim: bool,
    /// Base of the rotary embedding; `None`: readers have a default.
    pub(super) rope_base: Option<f64>,
    /// Base in layers with a window, if different.
    pub(super) window_rope_base: Option<f64>,
    /// Readers round the ends of `YaRN`'s ramp where no key says so.
    pub(super) yarn_truncate: bool,
    /// The scaling of the rotary embedding must be named: transformers has another default than
    /// none.
    pub(super) needs_scaling: bool,
    /// Scales long contexts by `LongRoPE`, and not by `YaRN`.
    pub(super) has_long_rope: bool,
    /// `LongRoPE` has factors of cosines and sines by name (`short_mscale`, `long_mscale`).
    pub(super) has_long_rope_scales: bool,
    /// May scale queries by their position, and has a key for `YaRN`'s `mscale_all_dim`.
    pub(super) is_mistral3: bool,
    /// The last of every so many layers does not rotate queries and keys (`NoPE`).
    pub(super) still_every: Option<usize>,
    /// Field that is `rope` if layers rotate queries and keys; `None`: they do.
    pub(super) rotation_switch: Option<&'static str>,
    /// Has factors of embeddings, scores, updates of the residual stream, and logits.
    pub(super) has_factors: bool,
    /// Has factors that GGUF has in its weights.
    pub(super) has_multipliers: bool,
    pub(super) soft_caps: SoftCaps,
    /// Layers with a window differ from the others in more than that.
    pub(super) has_layer_kinds: bool,
    /// Has several residual streams, and layers that read the keys and values of others.
    pub(super) has_streams: bool,
    /// `None`: every layer sees the whole context.
    pub(super) window: Option<Window>,
    /// Most layers see the tokens of their chunk, and the others do not rotate.
    pub(super) is_chunked: bool,
    /// `None`: no mixture of experts.
    pub(super) experts: Option<&'static Experts>,
    /// Every layer has latent attention, whose tensors come behind those of the layer.
    pub(super) is_latent: bool,
    /// `None`: every layer has attention.
    pub(super) recurrent: Option<Recurrent>,
    /// The tensors of a layer with a state.
    pub(super) recurrent_layer: Parts,
    /// The tensors of a layer without experts between or before layers that have them, or of a
    /// feed-forward network alone.
    pub(super) dense_layer: Parts,
    /// The tensors of a layer of experts alone.
    pub(super) expert_layer: Parts,
    /// The tensors behind those of a layer in models with experts, and in models without, where a
    /// family has both.
    pub(super) networks: [Parts; 2],
    /// Field that says if heads of queries and keys are normed, false where it is absent; `None`:
    /// the tables of tensors tell.
    pub(super) head_norm_switch: Option<&'static str>,
    /// Heads that predict further tokens; `None`: there are none that are read.
    pub(super) prediction: Option<Prediction>,
    /// Share of a head that is rotated, unless the file names one.
    pub(super) partial_rotary: f64,
    /// Rotary positions of images have three parts, whose numbers of pairs other readers want.
    pub(super) rotary_sections: Option<[i32; 4]>,
    /// Field with the width of the feed-forward network.
    pub(super) ffn_dim: &'static str,
    /// The width of the feed-forward network is computed from the field.
    pub(super) adjusts_ffn_dim: bool,
    /// Attends to both sides, and gives vectors of texts alone: the form of a decoder's file.
    pub(super) is_encoder: bool,
}

/// Soft caps that a family may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SoftCaps {
    None,
    /// Of scores and of logits, with these defaults.
    Both {
        scores: f64,
        logits: f64,
    },
    /// Of logits, without a default.
    Logits,
    /// The same in a family without a factor of scores; `usual`: where the field is absent.
    LogitsAlone {
        usual: Option<f64>,
    },
}

/// Fields of an encoder's `config.json`.
#[derive(Debug)]
pub(super) struct Encoder {
    pub(super) model_dim: &'static str,
    pub(super) ffn_dim: &'static str,
    pub(super) n_layers: &'static str,
    pub(super) n_heads: &'static str,
    /// `None`: the usual one.
    pub(super) norm_eps: Option<&'static str>,
    /// Where the file does not name one.
    pub(super) usual_norm_eps: f64,
    /// Number of positions.
    pub(super) context: &'static str,
    /// `None`: there are no token types.
    pub(super) n_token_types: Option<&'static str>,
    /// The id whose row is the last one before the first position; `None`: positions begin at
    /// row 0.
    pub(super) padding: Option<&'static str>,
    /// `None`: an embedding of positions.
    pub(super) rotary: Option<Rotary>,
    /// Has a head that scores pairs of texts.
    pub(super) ranks: bool,
}

/// Name parts of tensors outside their own names: prefixes, and tensors outside layers.
#[derive(Debug)]
pub(super) struct Names {
    /// The beginning that messages show.
    pub(super) shown_prefix: &'static str,
    /// Text before the number of a layer.
    pub(super) layers: &'static str,
    /// The tensors that are in no layer.
    pub(super) outside: &'static [Part],
    /// Beginnings of names that nothing here computes with.
    pub(super) unused: &'static [&'static str],
}

/// A tensor, or a matrix or norm with its bias.
#[derive(Debug)]
pub(super) struct Part {
    /// The name between that of the layer and `.weight`.
    pub(super) hf: &'static str,
    /// The same in GGUF, where layers are `blk.N.`.
    pub(super) gguf: &'static str,
    pub(super) shape: Shape,
    pub(super) bias: Bias,
}

/// Tensors in groups, which tables share.
pub(super) type Parts = &'static [&'static [Part]];

impl Part {
    /// The name in GGUF behind `prefix`, of the tensor that ends in `suffix` in folders.
    pub(super) fn gguf_name(&self, prefix: &str, suffix: &str) -> String {
        match self.shape.is_bare() || self.shape == Shape::BareNorm {
            true => format!("{prefix}{}", self.gguf),
            false => format!("{prefix}{}.{suffix}", self.gguf),
        }
    }
}

/// Shapes, in terms of the hyperparameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// The embedding of tokens.
    Embedding,
    /// The embedding of positions.
    Positions,
    /// The embedding of token types.
    TokenTypes,
    /// Hidden layer of a classification head.
    HeadHidden,
    /// From an embedding beside a hidden state to the residual stream of a prediction head.
    PairProjection,
    /// Output of a classification head with one label.
    HeadOutput,
    /// A norm over the residual stream.
    ModelNorm,
    /// The same, which the first layer lacks.
    LaterNorm,
    /// The same; in GGUF its name has no suffix.
    BareNorm,
    /// A norm over one head.
    HeadNorm,
    /// A norm over all query heads.
    QueryNorm,
    /// A norm over all key heads.
    KeyNorm,
    /// A row for each token with the embeddings of all layers.
    LayerInputs,
    /// Projection of the embedding to those.
    LayerInputProjection,
    /// A norm over the embedding of a layer.
    LayerInputNorm,
    /// Gate of the embedding of a layer.
    LayerInputGate,
    LayerInputOutput,
    /// From a residual stream to the gates of all.
    StreamRouter,
    /// From the gates to the shares of all streams in each.
    StreamPrediction,
    /// From the gates to a share for each stream.
    StreamCorrection,
    /// A factor for each dimension of a residual stream; its name has no suffix.
    StreamScale,
    /// Halves of a low-rank projection beside the mixer.
    LowRankDown,
    LowRankUp,
    /// Factor behind a layer; its name has no suffix.
    LayerScale,
    /// A score for each query head; its name has no suffix.
    Sinks,
    /// Queries, and behind each head's rows those of its gate.
    GatedQuery,
    /// Queries, keys and values of layers with a state.
    StateInput,
    /// Gate of the output of these layers.
    StateGate,
    /// Queries, keys, values and gates of these layers, interleaved by key head; GGUF has the
    /// gates apart.
    InterleavedInput,
    /// A row for each head of these layers.
    StateHeads,
    /// Two rows for each head, those of a key head together.
    InterleavedHeads,
    /// A number for each head; its name has no suffix.
    StateBias,
    /// Logarithm of a decay for each head, which GGUF has as its negative; no suffix.
    StateDecay,
    /// Weights of a convolution of queries, keys and values.
    StateTaps,
    /// A norm over one head of values.
    StateNorm,
    /// Gate, inputs, `B`, `C` and time steps of Mamba-2.
    MambaInput,
    /// Logarithm of a decay for each head, which GGUF has as its negative in a matrix of one
    /// column; no suffix.
    MambaDecay,
    /// A number for each head, in a matrix of one column in GGUF; its name has no suffix.
    MambaSkip,
    /// Norms of all groups of heads, in GGUF a row each.
    MambaNorm,
    StateOutput,
    /// Two gates and the input of a short convolution.
    ConvolutionInput,
    /// Weights of a short convolution.
    ConvolutionTaps,
    ConvolutionOutput,
    Query,
    Key,
    Value,
    /// To the latent of queries.
    QueryLatent,
    /// A norm over it.
    QueryLatentNorm,
    /// Queries of latent attention, from the latent or the residual stream.
    LatentQuery,
    /// To the latent of keys and values, and the rotated key.
    Latent,
    /// A norm over the latent.
    LatentNorm,
    LatentOutput,
    /// Queries, keys and values in one matrix.
    QueryKeyValue,
    AttentionOutput,
    /// Gate or up projection.
    Up,
    /// Gate and up projection in one matrix.
    GateUp,
    /// Gate and up projection in one matrix, which GGUF has apart; its name there is that of the
    /// gate.
    GateAndUp,
    Down,
    /// From the residual stream to logits of experts.
    Router,
    /// A number for each expert, added for the selection; its name has no suffix.
    SelectionBias,
    /// A factor for each dimension of the router's input; its name has no suffix.
    RouterScale,
    /// A factor for each expert; its name has no suffix.
    ExpertScales,
    /// Direction of the gate of the shared experts.
    SharedGate,
    /// Gate or up projection of the shared experts.
    SharedUp,
    /// As [`Self::GateAndUp`], of the shared experts.
    SharedGateAndUp,
    SharedDown,
}

impl Shape {
    /// True for tensors whose names have no suffix in folders; the tables have all of their names
    /// in GGUF.
    pub(super) fn is_bare(self) -> bool {
        matches!(
            self,
            Self::Sinks
                | Self::StateBias
                | Self::StateDecay
                | Self::MambaDecay
                | Self::MambaSkip
                | Self::SelectionBias
                | Self::LayerScale
                | Self::StreamScale
                | Self::RouterScale
                | Self::ExpertScales
        )
    }

    /// True for tensors outside of layers that models without embeddings per layer lack.
    pub(super) fn is_of_layer_inputs(self) -> bool {
        matches!(self, Self::LayerInputs | Self::LayerInputProjection | Self::LayerInputNorm)
    }
}

/// Presence of a bias beside a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    Never,
    /// As `attention_bias` or `mlp_bias` say; the weights tell too.
    Maybe,
    Always,
}

pub(super) const fn part(hf: &'static str, gguf: &'static str, shape: Shape, bias: Bias) -> Part {
    Part { hf, gguf, shape, bias }
}
