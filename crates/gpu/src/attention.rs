//! Attention over paged keys and values.

use crate::dispatch::Dispatch;
use crate::error::{Error, Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::kernel::{AttentionKernel, AttentionOutput, Kernel, MergeKernel, Target, TiledAttentionKernel};
use crate::kv::KvBlocks;
use crate::kv_format::{KV_BLOCK_TOKENS, KvFormat};
use crate::memory::Buffer;
use crate::rows::{RowOutput, check_groups, output_buffers};
use crate::wgsl::{
    SPLIT_TOKENS, TILED_SPLIT_TOKENS, choose_heads, choose_tile_heads, partial_words, tiled_grid,
};
use crate::window::AttentionWindow;

/// Queries, and the sinks of their heads.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// f32, `[sequences, heads, head_dim]`.
    pub rows: &'a Buffer,
    /// Attention sinks, f32, `[heads]`: scores, unscaled and without a cap, that take part in the
    /// softmax and have no value.
    pub sinks: Option<&'a Buffer>,
}

impl<'a> From<&'a Buffer> for Queries<'a> {
    fn from(rows: &'a Buffer) -> Self {
        Self { rows, sinks: None }
    }
}

/// Positions and block tables of the sequences of a batch.
#[derive(Debug, Clone)]
pub struct Sequences {
    /// Position of each sequence's query, u32, `[sequences]`: it attends to tokens 0 to this one.
    /// With [`AttentionKernel::one_sequence`] the positions of its queries, `[rows]`.
    pub positions: Buffer,
    /// Block table: u32, `[sequences, blocks per sequence]`.
    ///
    /// A multiple of 4 blocks per sequence; entries beyond the position are not read. With
    /// [`AttentionKernel::one_sequence`] one row for all queries.
    pub table: Buffer,
}

impl AttentionKernel {
    /// Creates attention of `heads` query heads over `kv_heads` KV heads.
    ///
    /// Scores are scaled by `1 / sqrt(head_dim)`, all tokens visible.
    pub fn new(heads: u32, kv_heads: u32, head_dim: u32) -> Self {
        let scale_bits = (1.0 / (head_dim as f32).sqrt()).to_bits();
        let output = AttentionOutput::Partial;
        Self {
            heads,
            kv_heads,
            head_dim,
            values_from: None,
            format: KvFormat::F16,
            scale_bits,
            soft_cap_bits: None,
            window: None,
            sinks: false,
            one_sequence: false,
            workgroup_heads: None,
            output,
        }
    }

    /// Sets the scale of the scores.
    #[must_use]
    pub fn scale(self, scale: f32) -> Self {
        Self { scale_bits: scale.to_bits(), ..self }
    }

    /// Sets the soft cap: scores become `cap tanh(score / cap)`.
    #[must_use]
    pub fn soft_cap(self, cap: f32) -> Self {
        Self { soft_cap_bits: Some(cap.to_bits()), ..self }
    }

    /// Sets the sliding window in tokens, the query's own included.
    #[must_use]
    pub fn window(self, tokens: u32) -> Self {
        Self { window: Some(AttentionWindow::Sliding(tokens)), ..self }
    }

    /// Sets the length of chunks in tokens: a query sees those of its own chunk up to itself.
    #[must_use]
    pub fn chunk(self, tokens: u32) -> Self {
        Self { window: Some(AttentionWindow::Chunk(tokens)), ..self }
    }

    /// Takes the dimensions of the keys from `first` on as values.
    #[must_use]
    pub fn values_from(self, first: u32) -> Self {
        Self { values_from: Some(first), ..self }
    }

    /// Values per head of the output.
    pub fn value_dim(&self) -> u32 {
        self.head_dim - self.values_from.unwrap_or(0).min(self.head_dim)
    }

    /// Treats rows as queries of one sequence (prefill), with keys and values already written.
    #[must_use]
    pub fn one_sequence(self) -> Self {
        Self { one_sequence: true, ..self }
    }

    /// Largest number of splits of 256 tokens visible in a sequence of at most `tokens` tokens.
    fn splits(&self, tokens: u64) -> u64 {
        let split = u64::from(SPLIT_TOKENS);
        let all = tokens.div_ceil(split);
        self.window.map_or(all, |window| all.min((u64::from(window.tokens()) + split - 2) / split + 1))
    }

    /// Bytes of scratch memory for [`Gpu::attention`] and [`Gpu::prefill_attention`]; 0 if one
    /// split holds all visible tokens.
    ///
    /// `tokens`: capacity of the block table in tokens.
    pub fn scratch_bytes(&self, sequences: u32, tokens: u32) -> u64 {
        match self.splits(tokens.into()) {
            0 | 1 if !(self.one_sequence && tokens > TILED_SPLIT_TOKENS) => 0,
            splits => {
                let words = u64::from(self.heads) * u64::from(partial_words(self.value_dim()));
                splits * u64::from(sequences) * words * 16
            }
        }
    }
}

/// Attention of one layer.
impl Gpu {
    /// Computes attention, `out = softmax(scale q k) v`, of one query per sequence.
    ///
    /// One launch, or two to be run in order if the table has capacity for more than 256 visible
    /// tokens.
    ///
    /// `queries`: f32, `[sequences, heads, head_dim]`; `scratch`: at least
    /// [`AttentionKernel::scratch_bytes`]; `out`: `[sequences, heads value_dim]`. The format of
    /// keys and values is that of the blocks, which have no values with
    /// [`AttentionKernel::values_from`].
    ///
    /// # Numerics
    /// With `A = scale max sum |q k|` over the visible tokens (plus 128 soft caps, and the
    /// magnitude of the head's sink) and `t` tokens, `|out - exact| <= ((head_dim + 8) A + t / 64 +
    /// 64) 2^-23 sum p |v|` over keys and values as stored, with sinks `2^-114 sum |v|` more. A
    /// sequence's bits are independent of the other sequences, of its blocks and of the capacity of
    /// the table.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn attention<'a>(
        &self,
        kernel: AttentionKernel,
        queries: impl Into<Queries<'a>>,
        kv: &KvBlocks,
        sequences: &Sequences,
        scratch: &Buffer,
        out: &RowOutput,
    ) -> Result<Vec<Dispatch>> {
        let queries = queries.into();
        let kernel = AttentionKernel { format: kv.format(), sinks: queries.sinks.is_some(), ..kernel };
        Kernel::Attention(kernel).check(self.info())?;
        let operands = Operands { queries, kv, sequences, scratch, out };
        let (rows, tokens) = operands.check(&kernel)?;
        let splits = kernel.splits(tokens);
        let own = kernel.workgroup_heads.unwrap_or_else(|| choose_heads(&kernel, splits, rows));
        let output = operands.output(splits);
        let sinks = kernel.sinks && output != AttentionOutput::Partial;
        let key = AttentionKernel { workgroup_heads: Some(own), output, sinks, ..kernel };
        let grid = (splits * u64::from(key.heads / own), rows);
        self.launch_attention(&operands, &Kernel::Attention(key), &key, (grid, SPLIT_TOKENS))
    }

    /// Computes attention of many queries of one sequence (prefill).
    ///
    /// With cooperative matrices on targets with squares of 16 and f16 and for heads of a multiple
    /// of 16 values up to 128, else as [`Gpu::attention`]. The choice does not depend on the number
    /// of rows.
    ///
    /// `kernel`: of [one sequence](AttentionKernel::one_sequence), all of whose tokens from the
    /// first visible one of any row to the last are in its blocks. Operands as those of
    /// [`Gpu::attention`].
    ///
    /// # Numerics
    /// With cooperative matrices queries and the exponentials are rounded to f16 (11 bits; queries
    /// are scaled by a power of two, so that none overflows). With `A` and `t` as in
    /// [`Gpu::attention`] and `d = (r + (head_dim + 8) 2^-22) A`, `r = 2^-11`, `|out - exact| <= (2
    /// d + 2 r + (t + 64) 2^-22) sum p |v| + 2^-33 sum |v|`. Keys and values in Q8 are rounded to
    /// f16 as well, `2^-25` absolute: `r = 2^-10`, `d` grows by `2^-25 scale max sum |q|`, the
    /// bound by `2^-25`, and values beyond 65504 count as infinite. A row's bits are independent of
    /// the other rows, of the tile, of its blocks and of the capacity of the table. Infinite values
    /// give unspecified results in all rows.
    ///
    /// # Errors
    /// See [`Gpu::attention`].
    pub fn prefill_attention<'a>(
        &self,
        kernel: AttentionKernel,
        queries: impl Into<Queries<'a>>,
        kv: &KvBlocks,
        sequences: &Sequences,
        scratch: &Buffer,
        out: &RowOutput,
    ) -> Result<Vec<Dispatch>> {
        let rows = (sequences.positions.len() / 4) as u32;
        match TiledAttentionKernel::choose(kernel, rows, self.target()) {
            Some(tiled) => self.tiled_attention(tiled, queries, kv, sequences, scratch, out),
            None => self.attention(kernel, queries, kv, sequences, scratch, out),
        }
    }

    /// Computes [`Gpu::prefill_attention`] with cooperative matrices and an explicit tile.
    ///
    /// On a device with f16 but without cooperative matrices the products are written out, for
    /// tests.
    ///
    /// # Errors
    /// See [`Gpu::attention`]; [`Error::MissingFeature`] without f16; [`Error::Shape`] for a tile
    /// that the device cannot run.
    pub fn tiled_attention<'a>(
        &self,
        kernel: TiledAttentionKernel,
        queries: impl Into<Queries<'a>>,
        kv: &KvBlocks,
        sequences: &Sequences,
        scratch: &Buffer,
        out: &RowOutput,
    ) -> Result<Vec<Dispatch>> {
        let (queries, attention) = (queries.into(), kernel.attention);
        let attention = AttentionKernel { format: kv.format(), sinks: queries.sinks.is_some(), ..attention };
        Kernel::TiledAttention(TiledAttentionKernel { attention, ..kernel }).check(self.info())?;
        let operands = Operands { queries, kv, sequences, scratch, out };
        let (rows, tokens) = operands.check(&attention)?;
        let output = operands.output(tokens.div_ceil(TILED_SPLIT_TOKENS.into()));
        let sinks = attention.sinks && output != AttentionOutput::Partial;
        let attention = AttentionKernel { output, sinks, ..attention };
        let key = TiledAttentionKernel { attention, ..kernel };
        let grid = tiled_grid(&key, rows, tokens);
        self.launch_attention(&operands, &Kernel::TiledAttention(key), &attention, (grid, TILED_SPLIT_TOKENS))
    }

    /// The launch of an attention kernel, and that of the merge after partial results.
    fn launch_attention(
        &self,
        operands: &Operands<'_>,
        kernel: &Kernel,
        key: &AttentionKernel,
        (grid, split_tokens): ((u64, u64), u32),
    ) -> Result<Vec<Dispatch>> {
        let Operands { queries, kv, sequences, scratch, out } = operands;
        let Sequences { positions, table } = sequences;
        let &AttentionKernel { heads, window, output, .. } = key;
        let head_dim = key.value_dim();
        check_groups("splits and heads", grid.0)?;
        check_groups("tiles of rows", grid.1)?;
        let grid = (grid.0 as u32, grid.1 as u32);
        let (rows, tokens) = operands.check(key)?;
        let outputs = output_buffers(out, rows as u32, heads * head_dim)?;
        let inputs = [queries.rows, kv.keys()].into_iter().chain(kv.values()).chain([positions, table]);
        let mut buffers: Vec<Buffer> = inputs.cloned().collect();
        let added = queries.sinks.cloned();
        if output != AttentionOutput::Partial {
            buffers.extend(outputs.into_iter().chain(added));
            return Ok(vec![self.prepare(kernel, buffers, grid)?]);
        }
        let needed = key.scratch_bytes(rows as u32, tokens as u32);
        if scratch.len() < needed {
            let expected = format!("at least {needed} bytes");
            return Err(Error::Shape { what: "scratch memory", expected, found: scratch.len() });
        }
        buffers.push((*scratch).clone());
        // The merge adds them, once.
        let (quantize, sinks) = (matches!(out, RowOutput::Quantized(_)), added.is_some());
        let merge =
            Kernel::MergeSplits(MergeKernel { heads, head_dim, window, split_tokens, sinks, quantize });
        let mut merged = vec![(*scratch).clone(), positions.clone()];
        merged.extend(outputs.into_iter().chain(added));
        Ok(vec![self.prepare(kernel, buffers, grid)?, self.prepare(&merge, merged, (heads, rows as u32))?])
    }
}

/// Operands of an attention kernel.
struct Operands<'a> {
    queries: Queries<'a>,
    kv: &'a KvBlocks,
    sequences: &'a Sequences,
    scratch: &'a Buffer,
    out: &'a RowOutput,
}

impl Operands<'_> {
    /// Rows, and capacity of a sequence's table in tokens, after a check of all sizes.
    fn check(&self, kernel: &AttentionKernel) -> Result<(u64, u64)> {
        let Sequences { positions, table } = self.sequences;
        expect_multiple("bytes of positions", 4, positions.len())?;
        let rows = positions.len() / 4;
        check_groups("sequences", rows)?;
        let tables = if kernel.one_sequence { 1 } else { rows };
        expect_multiple("bytes of the block table", tables * 16, table.len())?;
        if matches!(self.out, RowOutput::Quantized(_)) {
            expect_multiple("head dimension of an output in 8 bits", 32, kernel.value_dim().into())?;
        }
        self.kv.expect(kernel.kv_heads, kernel.head_dim, kernel.values_from.is_none())?;
        let width = u64::from(kernel.heads) * u64::from(kernel.head_dim);
        expect_size("bytes of the queries", rows * width * 4, self.queries.rows.len())?;
        if let Some(sinks) = self.queries.sinks {
            expect_size("bytes of the sinks", u64::from(kernel.heads) * 4, sinks.len())?;
        }
        Ok((rows, table.len() / 4 / tables * u64::from(KV_BLOCK_TOKENS)))
    }

    /// Destination of the kernel for this number of splits.
    fn output(&self, splits: u64) -> AttentionOutput {
        match self.out {
            _ if splits > 1 => AttentionOutput::Partial,
            RowOutput::Quantized(_) => AttentionOutput::Quantized,
            RowOutput::F32(_) => AttentionOutput::F32,
        }
    }
}

/// Largest head dimension for which tiles are faster than rows one by one (ADR-0051).
const FASTER_HEAD_DIM: u32 = 128;

impl TiledAttentionKernel {
    /// The measured choice for a number of rows; `None` where rows are to be computed one by one.
    ///
    /// The existence of a tile depends on the heads and the target only, so that a row's bits do
    /// not depend on the rows beside it. A tile of 16 queries has a single subgroup to load keys
    /// and values.
    pub fn choose(kernel: AttentionKernel, rows: u32, target: Target) -> Option<Self> {
        let is_faster = target.cooperative == Some(16)
            && target.f16
            && kernel.values_from.is_none()
            && kernel.head_dim.is_multiple_of(16)
            && kernel.head_dim <= FASTER_HEAD_DIM;
        if !is_faster {
            return None;
        }
        let own = choose_tile_heads(&kernel);
        let attention = AttentionKernel { workgroup_heads: Some(own), ..kernel };
        let queries = rows.saturating_mul(own).checked_next_power_of_two().map_or(64, |n| n.clamp(32, 64));
        Some(Self { attention, queries })
    }
}
