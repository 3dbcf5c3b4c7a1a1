//! Kernel keys: all inputs of the generator for a kernel's source.

use crate::activation::Activation;
use crate::expert_keys::{
    ExpertAffineKernel, ExpertScaleKernel, ExpertStack, ExpertSumKernel, RouterKernel, RouterLogitsKernel,
    SortKernel,
};
use crate::head_key::{CutHeadsKernel, stored_head_dim};
use crate::kv_format::KvFormat;
use crate::largest_key::{ArgmaxKernel, LargestKernel};
use crate::latent_key::{LatentKeysKernel, LatentQueriesKernel, PartNormKernel};
use crate::layer_keys::{HeadValues, RowPart};
use crate::low_rank_key::LowRankKernel;
use crate::repack::Format;
use crate::rope_layout::RopeLayout;
use crate::split_key::{ColumnSplits, SumSplitsKernel};
use crate::state_keys::StateKernel;
use crate::stream_keys::StreamKernel;
use crate::window::AttentionWindow;

/// Largest number of activation rows of a workgroup of a [`Product`].
pub const MAX_BATCH: u32 = 8;

/// Largest number of activation rows of a [`Product`].
pub const MAX_PRODUCT_ROWS: u32 = 64;

/// Features of the device that kernels are generated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// Subgroup size for shuffles; `None`: sums go through workgroup memory.
    pub subgroup: Option<u32>,
    /// f16 values in storage buffers.
    pub f16: bool,
    /// Side of the cooperative matrices of f16 with f32 sums, 8 or 16.
    pub cooperative: Option<u32>,
}

/// Work division of a matrix product over threads.
///
/// Only `lanes` affects the order of sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Weight rows per team.
    pub rows: u32,
    /// Threads per team; they share each row's columns. A power of two, at most 256.
    pub lanes: u32,
    /// Teams per workgroup.
    pub teams: u32,
    /// Steps whose loads are issued together.
    pub unroll: u32,
}

/// Matrix product of few activation rows (decode): `y[b, r] = sum_c w[r, c] x[b, c]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Weight format.
    pub format: Format,
    /// Weight rows.
    pub rows: u32,
    /// Weight columns.
    pub cols: u32,
    /// Activation rows: 1 to 8, or a multiple of 8 up to 64.
    pub batch: u32,
    /// Values per output row; `rows` of them from `first` on are stored.
    pub width: u32,
    /// Offset of the first stored value in an output row.
    pub first: u32,
    /// Division over threads.
    pub tile: Tile,
}

/// Matrix product of many activation rows (prefill).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GemmKernel {
    /// Weight format.
    pub format: Format,
    /// Weight rows.
    pub rows: u32,
    /// Weight columns.
    pub cols: u32,
    /// Values per output row; `rows` of them from `first` on are stored.
    pub width: u32,
    /// Offset of the first stored value in an output row.
    pub first: u32,
    /// Activation rows per workgroup: 16, 32 or 64. Results do not depend on it.
    pub tile_batch: u32,
}

/// Work division of a product with cooperative matrices. Results do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CooperativeTile {
    /// Activation rows per workgroup.
    pub batch: u32,
    /// Weight rows per workgroup.
    pub rows: u32,
    /// Columns between two barriers, 32 or 64.
    pub depth: u32,
    /// Subgroups along the activation rows.
    pub across: u32,
    /// Subgroups along the weight rows.
    pub down: u32,
    /// Stages in workgroup memory: with 2, the next one is loaded during the products of the first.
    pub stages: u32,
}

/// Matrix product of many activation rows (prefill) with cooperative matrices.
///
/// The activations come from [`ExpandKernel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CooperativeKernel {
    /// Weight format.
    pub format: Format,
    /// Weight rows.
    pub rows: u32,
    /// Weight columns.
    pub cols: u32,
    /// Values per output row; `rows` of them from `first` on are stored.
    pub width: u32,
    /// Offset of the first stored value in an output row.
    pub first: u32,
    /// Division over subgroups.
    pub tile: CooperativeTile,
    /// Splits of the columns. Of those that are apart the output are the sums of each.
    pub splits: ColumnSplits,
}

/// Activations in f16, each row times a power of two, for [`CooperativeKernel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpandKernel {
    /// Values per row.
    pub cols: u32,
    /// Input in 8 bits instead of f32.
    pub quantized: bool,
}

/// Gather of matrix rows by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GatherKernel {
    /// Weight format.
    pub format: Format,
    /// Weight rows.
    pub rows: u32,
    /// Weight columns.
    pub cols: u32,
    /// Bits of the scale of all values.
    pub scale_bits: u32,
    /// Indices out of range are those of the first row; else of the last.
    pub first_beyond: bool,
}

/// In-place `RMSNorm` of query and key heads, each by itself or all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadNormKernel {
    /// Query heads.
    pub heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Bits of `eps`, added to the mean square.
    pub eps_bits: u32,
    /// All heads of the query, and all of the key, have one norm.
    pub together: bool,
    /// Values; they are kept where heads have one norm together.
    pub values: HeadValues,
}

/// In-place addition `x += y`, with `y` repeated over `x`, times a factor or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddKernel {
    /// Values of `x`.
    pub values: u32,
    /// Values of `y`.
    pub period: u32,
    /// The sum is multiplied by a factor.
    pub scaled: bool,
}

/// Operation on each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowOp {
    /// Identity.
    Copy,
    /// `x / sqrt(mean(x^2) + eps) * weight`; holds the bits of `eps`.
    RmsNorm(u32),
    /// `residual += delta`, then [`RowOp::RmsNorm`] of the residual.
    AddRmsNorm(u32),
    /// `residual += scale delta`, then [`RowOp::RmsNorm`] of the residual.
    AddScaledRmsNorm {
        /// Bits of `eps`.
        eps_bits: u32,
        /// Bits of `scale`.
        scale_bits: u32,
    },
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`; holds the bits of `eps`.
    LayerNorm(u32),
    /// `residual += delta`, then [`RowOp::LayerNorm`] of the residual.
    AddLayerNorm(u32),
    /// `f(gate) * up`, both halves of a row of `2 cols` values; of an activation without a gate
    /// `f(x)` of a row of `cols` values.
    Gated(Activation),
    /// Identity of a part of longer rows.
    Part(RowPart),
    /// `f(gate) * up` with `up` a part of longer rows.
    GatedPart(Activation, RowPart),
    /// Rows of two halves of `cols / 2` values, one from each input.
    Join,
}

/// Operation on rows of `cols` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowKernel {
    /// The operation.
    pub op: RowOp,
    /// Values per output row.
    pub cols: u32,
    /// Output in 8 bits instead of f32.
    pub quantize: bool,
}

/// RoPE in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeKernel {
    /// Heads per row.
    pub heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Number of leading dimensions of a head that RoPE rotates.
    pub rotary_dim: u32,
    /// Dimension pairing.
    pub layout: RopeLayout,
}

/// [`RopeKernel`] of queries and keys, with a write of keys and values to their blocks. Heads are
/// filled up with zeros to a [`stored_head_dim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeKvKernel {
    /// RoPE of queries and keys, with the number of query heads.
    pub rope: RopeKernel,
    /// KV heads.
    pub kv_heads: u32,
    /// Format of keys and values; [`Gpu::rope_kv`](crate::Gpu::rope_kv) sets that of the blocks.
    pub format: KvFormat,
    /// Queries are multiplied by a factor of their position;
    /// [`Gpu::rope_kv`](crate::Gpu::rope_kv) sets it.
    pub scaled: bool,
}

/// Destination of [`AttentionKernel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionOutput {
    /// Partial results per split of 256 tokens, for [`MergeKernel`].
    Partial,
    /// f32; one split.
    F32,
    /// 8 bits; one split.
    Quantized,
}

/// Attention of one query per sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionKernel {
    /// Query heads.
    pub heads: u32,
    /// KV heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Values are the dimensions of the keys from this one on, a multiple of 8 (latent attention);
    /// `None`: blocks have values.
    pub values_from: Option<u32>,
    /// Format of keys and values; [`Gpu::attention`](crate::Gpu::attention) sets that of the
    /// blocks.
    pub format: KvFormat,
    /// Bits of the scale of the scores.
    pub scale_bits: u32,
    /// Bits of the soft cap of the scores.
    pub soft_cap_bits: Option<u32>,
    /// Tokens that a query sees; `None`: all before it.
    pub window: Option<AttentionWindow>,
    /// Sinks of the heads: scores without a value; [`Gpu::attention`](crate::Gpu::attention) sets
    /// it.
    pub sinks: bool,
    /// All rows are queries of one sequence and share its row of the block table.
    pub one_sequence: bool,
    /// Query heads per workgroup, a divisor of those per KV head.
    ///
    /// `None`: chosen by [`Gpu::attention`](crate::Gpu::attention). Results do not depend on it.
    pub workgroup_heads: Option<u32>,
    /// Destination; [`Gpu::attention`](crate::Gpu::attention) sets it.
    pub output: AttentionOutput,
}

/// Attention of many queries of one sequence (prefill) with cooperative matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TiledAttentionKernel {
    /// Heads, scores and destination; `workgroup_heads` of a tile share keys and values.
    pub attention: AttentionKernel,
    /// Queries per workgroup, of all its heads: 16, 32 or 64. Results do not depend on it.
    pub queries: u32,
}

/// Merge of the splits of [`AttentionKernel`] or [`TiledAttentionKernel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MergeKernel {
    /// Query heads.
    pub heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Tokens that a query sees; `None`: all before it.
    pub window: Option<AttentionWindow>,
    /// Tokens per split.
    pub split_tokens: u32,
    /// Sinks of the heads.
    pub sinks: bool,
    /// Output in 8 bits instead of f32.
    pub quantize: bool,
}

/// Key of a kernel; with a [`Target`] it determines the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Matrix product.
    Product(Product),
    /// Matrix product of many activation rows.
    Gemm(GemmKernel),
    /// Matrix product of many activation rows with cooperative matrices.
    Cooperative(CooperativeKernel),
    /// Sum of its splits.
    SumSplits(SumSplitsKernel),
    /// Activations in f16.
    Expand(ExpandKernel),
    /// Matrix product of pairs of a row and an expert with the experts' matrices: a key of one row.
    ExpertProduct(Product, ExpertStack),
    /// The same of sorted pairs.
    ExpertGemm(GemmKernel, ExpertStack),
    /// The same with cooperative matrices.
    ExpertCooperative(CooperativeKernel, ExpertStack),
    /// Logits of a router.
    RouterLogits(RouterLogitsKernel),
    /// Choice of experts.
    Route(RouterKernel),
    /// Sort of pairs by expert.
    SortPairs(SortKernel),
    /// Weights and biases of the outputs of experts.
    ExpertAffine(ExpertAffineKernel),
    /// Factors of the weights of pairs.
    ExpertScale(ExpertScaleKernel),
    /// Sum of the outputs of a row's experts.
    ExpertSum(ExpertSumKernel),
    /// Gather of matrix rows by index.
    Gather(GatherKernel),
    /// Operation on rows.
    Rows(RowKernel),
    /// Half of low-rank updates.
    LowRank(LowRankKernel),
    /// Kernel of layers with a state.
    State(StateKernel),
    /// Kernel of several residual streams.
    Stream(StreamKernel),
    /// RoPE.
    Rope(RopeKernel),
    /// RoPE and KV write.
    RopeKv(RopeKvKernel),
    /// `RMSNorm` of a part of each row.
    PartNorm(PartNormKernel),
    /// Division of the queries of latent attention.
    LatentQueries(LatentQueriesKernel),
    /// Write of the keys of latent attention.
    LatentKeys(LatentKeysKernel),
    /// Attention over paged keys and values.
    Attention(AttentionKernel),
    /// Attention of many queries of one sequence.
    TiledAttention(TiledAttentionKernel),
    /// Merge of the splits of attention.
    MergeSplits(MergeKernel),
    /// `RMSNorm` of heads.
    HeadNorm(HeadNormKernel),
    /// Copy of the first values of heads.
    CutHeads(CutHeadsKernel),
    /// In-place addition.
    Add(AddKernel),
    /// Copy of one row, of this many values.
    CopyRow(u32),
    /// Order and index of the largest of each 1024 values of a row.
    Argmax(ArgmaxKernel),
    /// The largest of each 1024 candidates of a row.
    Largest(LargestKernel),
    /// Read of this many 16-byte words without stores: bandwidth measurements.
    Read(u32),
    /// Index of the largest of this many candidates per row, from [`Kernel::Argmax`].
    ArgmaxMerge(u32),
}

impl Tile {
    /// Threads per workgroup.
    pub fn threads(&self) -> u32 {
        self.lanes * self.teams
    }

    /// Weight rows per workgroup.
    pub fn rows_per_workgroup(&self) -> u32 {
        self.rows * self.teams
    }
}

impl CooperativeTile {
    /// Subgroups per workgroup.
    pub fn subgroups(&self) -> u32 {
        self.across * self.down
    }
}

impl Product {
    /// Steps of all lanes over one row: groups of 32 values, of 8 for F16.
    pub(crate) fn steps_per_row(&self) -> u32 {
        self.cols / self.format.step_values()
    }
}

impl Product {
    fn name(&self) -> String {
        let Self { rows, cols, batch, tile, .. } = self;
        let Tile { rows: own, lanes, teams, unroll } = tile;
        let (format, part) = (self.format.name().to_lowercase(), part_name(*rows, self.first, self.width));
        format!("product_{format}_{rows}x{cols}_b{batch}_r{own}l{lanes}t{teams}u{unroll}{part}")
    }
}

impl GemmKernel {
    fn name(&self) -> String {
        let Self { rows, cols, tile_batch, .. } = self;
        let part = part_name(*rows, self.first, self.width);
        format!("gemm_{}_{rows}x{cols}_b{tile_batch}{part}", self.format.name().to_lowercase())
    }
}

impl CooperativeKernel {
    fn name(&self) -> String {
        let Self { rows, cols, tile, .. } = self;
        let CooperativeTile { batch, rows: own, depth, across, down, stages } = tile;
        let tile = format!("b{batch}r{own}d{depth}_{across}x{down}s{stages}");
        let (splits, part) = (self.splits.name(), part_name(*rows, self.first, self.width));
        format!("cooperative_{}_{rows}x{cols}_{tile}{splits}{part}", self.format.name().to_lowercase())
    }
}

impl RowKernel {
    fn name(&self) -> String {
        let op = match self.op {
            RowOp::Copy => "copy".to_owned(),
            RowOp::RmsNorm(eps) => format!("rms_norm_{eps:x}"),
            RowOp::AddRmsNorm(eps) => format!("add_rms_norm_{eps:x}"),
            RowOp::AddScaledRmsNorm { eps_bits, scale_bits } => {
                format!("add_{scale_bits:x}_rms_norm_{eps_bits:x}")
            }
            RowOp::LayerNorm(eps) => format!("layer_norm_{eps:x}"),
            RowOp::AddLayerNorm(eps) => format!("add_layer_norm_{eps:x}"),
            RowOp::Part(part) => format!("part_{}", part.name()),
            RowOp::Gated(activation) => activation.name(),
            RowOp::GatedPart(activation, part) => format!("{}_{}", activation.name(), part.name()),
            RowOp::Join => "join".to_owned(),
        };
        format!("{op}_{}_{}", self.cols, if self.quantize { "q8" } else { "f32" })
    }
}

impl RopeKvKernel {
    /// Values of a head of queries and in the blocks.
    pub(crate) fn stored_dim(&self) -> u32 {
        match self.format {
            KvFormat::F16 => stored_head_dim(self.rope.head_dim),
            KvFormat::Q8 => self.rope.head_dim,
        }
    }
}

impl RopeKernel {
    fn name(&self) -> String {
        format!("rope_{:?}_{}x{}_{}", self.layout, self.heads, self.head_dim, self.rotary_dim).to_lowercase()
    }
}

impl AttentionKernel {
    fn name(&self) -> String {
        let cap = self.soft_cap_bits.map_or(String::new(), |cap| format!("_cap{cap:x}"));
        let output = match self.output {
            AttentionOutput::Partial => "partial",
            AttentionOutput::F32 => "f32",
            AttentionOutput::Quantized => "q8",
        };
        let Self { heads, kv_heads, head_dim, scale_bits, window, .. } = self;
        let own = self.workgroup_heads.unwrap_or(1);
        let table = if self.one_sequence { "_one" } else { "" };
        let (window, format) = (AttentionWindow::name(*window), self.format.suffix());
        let shape = format!("{heads}x{head_dim}_kv{kv_heads}{format}_h{own}{window}{table}");
        let sinks = sinks_name(self.sinks);
        let values = self.values_from.map_or(String::new(), |first| format!("_values{first}"));
        format!("{shape}{values}_scale{scale_bits:x}{cap}{sinks}_{output}")
    }
}

/// Part of an output row that a product stores.
fn part_name(rows: u32, first: u32, width: u32) -> String {
    if width == rows { String::new() } else { format!("_at{first}of{width}") }
}

fn sinks_name(sinks: bool) -> &'static str {
    if sinks { "_sinks" } else { "" }
}

impl Kernel {
    /// Short name for labels and files, unique per kernel.
    pub fn name(&self) -> String {
        match self {
            Self::Product(p) => p.name(),
            Self::Gemm(g) => g.name(),
            Self::Cooperative(g) => g.name(),
            Self::SumSplits(s) => s.name(),
            Self::ExpertProduct(p, stack) => format!("{}{}", p.name(), stack.name()),
            Self::ExpertGemm(g, stack) => format!("{}{}", g.name(), stack.name()),
            Self::ExpertCooperative(g, stack) => format!("{}{}", g.name(), stack.name()),
            Self::RouterLogits(k) => k.name(),
            Self::Route(r) => r.name(),
            Self::SortPairs(k) => k.name(),
            Self::ExpertAffine(k) => k.name(),
            Self::ExpertScale(k) => k.name(),
            Self::ExpertSum(k) => k.name(),
            Self::Expand(e) => format!("expand_{}_{}", e.cols, if e.quantized { "q8" } else { "f32" }),
            Self::Gather(g) => {
                let name = g.format.name().to_lowercase();
                let beyond = if g.first_beyond { "_or_first" } else { "" };
                format!("gather_{name}_{}x{}_scale{:x}{beyond}", g.rows, g.cols, g.scale_bits)
            }
            Self::Rows(r) => r.name(),
            Self::LowRank(l) => l.name(),
            Self::State(k) => k.name(),
            Self::Stream(k) => k.name(),
            Self::Rope(r) => r.name(),
            Self::RopeKv(k) => {
                let scaled = if k.scaled { "_scaled" } else { "" };
                format!("{}_kv{}{}{scaled}", k.rope.name(), k.kv_heads, k.format.suffix())
            }
            Self::PartNorm(k) => k.name(),
            Self::LatentQueries(k) => k.name(),
            Self::LatentKeys(k) => k.name(),
            Self::Attention(a) => format!("attention_{}", a.name()),
            Self::TiledAttention(t) => format!("tiled_attention_q{}_{}", t.queries, t.attention.name()),
            Self::MergeSplits(m) => {
                let output = if m.quantize { "q8" } else { "f32" };
                let MergeKernel { heads, head_dim, split_tokens, .. } = m;
                let (window, sinks) = (AttentionWindow::name(m.window), sinks_name(m.sinks));
                format!("merge_splits_{heads}x{head_dim}{window}_of{split_tokens}{sinks}_{output}")
            }
            Self::HeadNorm(h) => {
                let HeadNormKernel { heads, kv_heads, head_dim, eps_bits, together, values } = h;
                let name = if *together { "joint_head_norm" } else { "head_norm" };
                let values = match values {
                    HeadValues::Kept => "",
                    HeadValues::Normed => "_values",
                    HeadValues::Keys => "_values_of_keys",
                };
                format!("{name}_{heads}x{head_dim}_kv{kv_heads}_{eps_bits:x}{values}")
            }
            Self::Add(a) => {
                format!("add_{}_every{}{}", a.values, a.period, if a.scaled { "_scaled" } else { "" })
            }
            Self::CutHeads(k) => k.name(),
            Self::CopyRow(n) => format!("copy_row_{n}"),
            Self::Argmax(a) => a.name(),
            Self::ArgmaxMerge(n) => format!("argmax_merge_{n}"),
            Self::Largest(l) => l.name(),
            Self::Read(n) => format!("read_{n}"),
        }
    }
}
