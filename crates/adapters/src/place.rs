//! The products of a decoder that an adapter can change, and their sizes.

use std::fmt;
use std::ops::Range;

/// Target module: a matrix of a decoder that an adapter can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Projection {
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Joint projection to queries, keys and values, stacked in this order.
    QueryKeyValue,
    /// Output projection of attention.
    AttentionOutput,
    /// Gate projection of the feed-forward network.
    Gate,
    /// Up projection of the feed-forward network.
    Up,
    /// Joint gate and up projection, gate first.
    GateUp,
    /// Down projection of the feed-forward network.
    Down,
    /// Output matrix (logits); belongs to no layer.
    Logits,
    /// Identity behind the final norm, `h + s B A h`: no matrix of a file; belongs to no layer.
    FinalHidden,
}

/// Products that have the same input. An adapter's factors `A` for them are one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Site {
    /// Queries, keys and values: targets 0, 1 and 2.
    AttentionInput,
    /// The output of attention: target 0.
    AttentionOutput,
    /// Gate and up: targets 0 and 1.
    FeedForwardInput,
    /// Down: target 0.
    FeedForwardOutput,
    /// Logits: target 0. In no layer; counted as one of layer 0.
    Logits,
    /// The final hidden state, behind the final norm: target 0. In no layer; counted as one of
    /// layer 0.
    FinalHidden,
}

impl Site {
    /// True if each layer has such a site.
    pub(crate) fn is_in_layers(self) -> bool {
        !matches!(self, Self::Logits | Self::FinalHidden)
    }
}

/// Shape that an adapter must match: the sizes of a model and the order of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseModel {
    /// The model's architecture, as GGUF files name it.
    pub architecture: String,
    /// Decoder layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub model_dim: usize,
    /// Query heads times their width; 0 in models with layers that keep a state, whose attention
    /// adapters do not change.
    pub query_dim: usize,
    /// Key heads times their width.
    pub kv_dim: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub ffn_dim: usize,
    /// Logits.
    pub vocab_size: usize,
    /// Rows of query and key matrices are in the order of Llama's GGUF files: the two halves of a
    /// head interleaved.
    pub interleaved_heads: bool,
    /// The model's file has queries, keys and values in one tensor.
    pub joint_attention: bool,
    /// The model's file has gate and up in one tensor, under the name of up.
    pub joint_feed_forward: bool,
}

/// Order of the rows of query and key heads in a file; rotary pairs follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As the weights on the Hugging Face hub: a head is its two halves.
    HuggingFace,
    /// As a GGUF file of the model.
    Gguf,
}

/// Outputs of an update that belong to one target of its site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) index: usize,
    /// Rows of `B`.
    pub(crate) rows: Range<usize>,
    /// The rows are heads, which the rotary embedding rotates.
    pub(crate) heads: bool,
}

impl BaseModel {
    /// The projection that a file means: in GGUF files, gate and up in one tensor are called
    /// `ffn_up`.
    pub(crate) fn meant(&self, projection: Projection, row_order: RowOrder) -> Projection {
        match projection {
            Projection::Up if self.joint_feed_forward && row_order == RowOrder::Gguf => Projection::GateUp,
            other => other,
        }
    }

    /// Site of a projection.
    pub fn site(&self, projection: Projection) -> Site {
        match projection {
            Projection::Query | Projection::Key | Projection::Value | Projection::QueryKeyValue => {
                Site::AttentionInput
            }
            Projection::AttentionOutput => Site::AttentionOutput,
            Projection::Gate | Projection::Up | Projection::GateUp => Site::FeedForwardInput,
            Projection::Down => Site::FeedForwardOutput,
            Projection::Logits => Site::Logits,
            Projection::FinalHidden => Site::FinalHidden,
        }
    }

    /// Input width of the products of a site.
    pub fn inputs(&self, site: Site) -> usize {
        match site {
            Site::AttentionInput | Site::FeedForwardInput | Site::Logits | Site::FinalHidden => {
                self.model_dim
            }
            Site::AttentionOutput => self.query_dim,
            Site::FeedForwardOutput => self.ffn_dim,
        }
    }

    /// Values in a row of a product of a site; `None` if it has no such target.
    pub(crate) fn outputs(&self, site: Site, target: usize) -> Option<usize> {
        self.output_widths(site).get(target).copied()
    }

    /// Values in a row of the product of each target of a site.
    pub fn output_widths(&self, site: Site) -> Vec<usize> {
        match site {
            Site::AttentionInput => vec![self.query_dim, self.kv_dim, self.kv_dim],
            Site::AttentionOutput | Site::FeedForwardOutput | Site::FinalHidden => vec![self.model_dim],
            Site::FeedForwardInput => vec![self.ffn_dim, self.ffn_dim],
            Site::Logits => vec![self.vocab_size],
        }
    }

    /// Target and rows of each part of a projection's `B`, from the top.
    pub fn target_rows(&self, projection: Projection) -> Vec<(usize, Range<usize>)> {
        self.targets(projection).into_iter().map(|target| (target.index, target.rows)).collect()
    }

    /// Targets of the rows of a projection's `B`, from the top.
    pub(crate) fn targets(&self, projection: Projection) -> Vec<Target> {
        let (query, kv, ffn) = (self.query_dim, self.kv_dim, self.ffn_dim);
        let target = |index, first, n, heads| Target { index, rows: first..first + n, heads };
        match projection {
            Projection::Query => vec![target(0, 0, query, true)],
            Projection::Key => vec![target(1, 0, kv, true)],
            Projection::Value => vec![target(2, 0, kv, false)],
            Projection::QueryKeyValue => {
                vec![target(0, 0, query, true), target(1, query, kv, true), target(2, query + kv, kv, false)]
            }
            Projection::AttentionOutput | Projection::Down | Projection::FinalHidden => {
                vec![target(0, 0, self.model_dim, false)]
            }
            Projection::Gate => vec![target(0, 0, ffn, false)],
            Projection::Up => vec![target(1, 0, ffn, false)],
            Projection::GateUp => vec![target(0, 0, ffn, false), target(1, ffn, ffn, false)],
            Projection::Logits => vec![target(0, 0, self.vocab_size, false)],
        }
    }

    /// Position, in the order of GGUF files of Llama, of row `row` of a query or key matrix in
    /// Hugging Face's order: a head is its two halves there, and pairs of their rows here.
    pub(crate) fn interleaved_row(&self, row: usize) -> usize {
        let (head, at) = (row / self.head_dim, row % self.head_dim);
        let half = self.head_dim / 2;
        head * self.head_dim + 2 * (at % half) + at / half
    }
}

/// Rows of `width` values of a projection in another row order.
pub(crate) fn reorder(
    rows: Vec<f32>,
    width: usize,
    projection: Projection,
    base: &BaseModel,
    (from, to): (RowOrder, RowOrder),
) -> Vec<f32> {
    let targets = base.targets(projection);
    if from == to || !base.interleaved_heads || !targets.iter().any(|target| target.heads) {
        return rows;
    }
    let mut out = rows.clone();
    for target in targets.iter().filter(|target| target.heads) {
        for row in 0..target.rows.len() {
            let interleaved = target.rows.start + base.interleaved_row(row);
            let halves = target.rows.start + row;
            let (at, source) =
                if to == RowOrder::Gguf { (interleaved, halves) } else { (halves, interleaved) };
            out[at * width..][..width].copy_from_slice(&rows[source * width..][..width]);
        }
    }
    out
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AttentionInput => "attention input",
            Self::AttentionOutput => "attention output",
            Self::FeedForwardInput => "feed-forward input",
            Self::FeedForwardOutput => "feed-forward output",
            Self::Logits => "logits",
            Self::FinalHidden => "final hidden state",
        })
    }
}

/// Architecture and sizes, for messages.
impl fmt::Display for BaseModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { architecture, n_layers, model_dim, kv_dim, ffn_dim, vocab_size, .. } = self;
        // The name comes from a file.
        let architecture = crate::shortened::shortened(architecture);
        write!(
            f,
            "{architecture} with {n_layers} layers of {model_dim} ({kv_dim} for keys, {ffn_dim} in the \
             feed-forward network, {vocab_size} tokens)"
        )
    }
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::QueryKeyValue => "query-key-value",
            Self::AttentionOutput => "attention output",
            Self::Gate => "gate",
            Self::Up => "up",
            Self::GateUp => "gate-up",
            Self::Down => "down",
            Self::Logits => "logits",
            Self::FinalHidden => "final hidden state",
        })
    }
}
