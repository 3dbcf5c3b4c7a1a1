//! Layers that keep a state per sequence: causal convolution, gated delta rule, selective scan, and
//! the gates behind them.
//!
//! States are in slots of a buffer. A [`Span`] names the rows of a sequence in a launch and the
//! slot of the state before them. The state behind a row is kept in a slot where one is named for
//! that row, which no span of the launch begins with: so the states before a launch stay, its
//! result may be dropped, and a sequence can go back behind any row whose state was kept.

use crate::dispatch::Dispatch;
use crate::error::{Error, Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::rows::check_groups;
use crate::state_keys::{
    ConvolutionForm, ConvolutionKernel, DeltaRuleKernel, GateKernel, GateNorm, SelectiveScanKernel,
    SplitGatesKernel, StateKernel,
};
use crate::wgsl::{self, CONVOLUTION_THREADS, MatrixTile, TILE_ROWS};

/// Bytes of a span and a row.
const ENTRY_BYTES: u64 = 32;

/// Rows of a sequence in a launch, and the slots of its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Slot of the state before the first row; `None`: zeros.
    pub from: Option<u32>,
    /// First row.
    pub first: u32,
    /// Number of rows.
    pub rows: u32,
}

/// Spans of a launch, and the slots of the states behind its rows.
///
/// An entry of 8 words has a span, and the slot of the row of the same number.
#[derive(Debug, Clone)]
pub struct Spans {
    buffer: Buffer,
    /// Spans that a launch computes.
    launched: u32,
}

impl Spans {
    /// Allocates the spans of launches of `rows` rows: as many, none of which has rows.
    ///
    /// # Errors
    /// As [`Gpu::zeroed`].
    pub fn new(gpu: &Gpu, rows: u32) -> Result<Self> {
        Ok(Self { buffer: gpu.zeroed(u64::from(rows) * ENTRY_BYTES)?, launched: rows })
    }

    /// The same spans for launches that compute the first one alone.
    #[must_use]
    pub fn of_one_sequence(&self) -> Self {
        Self { buffer: self.buffer.clone(), launched: 1 }
    }

    /// Number of rows.
    pub fn rows(&self) -> u32 {
        (self.buffer.len() / ENTRY_BYTES) as u32
    }

    /// Writes the first spans, and the slots of the states behind rows, `(row, slot)`. Further
    /// spans have no rows, they read and write nothing; the states behind other rows are not kept.
    /// Ordered before later dispatches.
    ///
    /// # Errors
    /// [`Error::Shape`] for more spans or other rows than there are, and for a slot that a span
    /// begins with; those of [`Gpu::write`].
    pub fn write(&self, gpu: &Gpu, spans: &[Span], kept: &[(u32, u32)]) -> Result<()> {
        let n = self.rows() as usize;
        let mut entries = vec![([wgsl::NO_STATE, 0, 0, 0], [wgsl::NO_STATE, 0, 0, 0]); n];
        let shape = |what, found: u64| Error::Shape { what, expected: format!("at most {n}"), found };
        if spans.len() > n {
            return Err(shape("spans", spans.len() as u64));
        }
        for (entry, &Span { from, first, rows }) in entries.iter_mut().zip(spans) {
            let end = u64::from(first) + u64::from(rows);
            if end > n as u64 {
                return Err(shape("rows up to the end of a span", end));
            }
            entry.0 = [from.unwrap_or(wgsl::NO_STATE), rows, first, 0];
        }
        for &(row, slot) in kept {
            if spans.iter().any(|span| span.from == Some(slot)) {
                let expected = "none that a span begins with".to_owned();
                return Err(Error::Shape { what: "slot of a state to keep", expected, found: slot.into() });
            }
            let entry = entries.get_mut(row as usize);
            let entry =
                entry.ok_or_else(|| shape("rows up to one with a state to keep", u64::from(row) + 1))?;
            entry.1[0] = slot;
        }
        for (i, span) in spans.iter().enumerate() {
            // From the last stop to the first: each knows the next one.
            let mut next = span.rows;
            for stop in (1..=span.rows).rev() {
                let row = &mut entries[(span.first + stop - 1) as usize].1;
                if row[0] != wgsl::NO_STATE || stop == span.rows {
                    row[1] = next;
                    next = stop;
                }
            }
            entries[i].0[3] = next;
        }
        let words: Vec<[u32; 4]> = entries.into_iter().flat_map(|(span, row)| [span, row]).collect();
        gpu.write(&self.buffer, &words)
    }

    /// Fails if launches have other rows.
    fn check(&self, rows: u64) -> Result<()> {
        expect_size("rows of the spans", rows, self.rows().into())
    }
}

/// Operations of layers with a state. Rows of no span keep the output that they had.
impl Gpu {
    /// Prepares a causal convolution: `out[r, c] = f(sum_j w[j, c] x[r - taps + 1 + j, c])`, where
    /// the rows before the first one of a span are in its state.
    ///
    /// `x`: f32, `[rows, width]`; `weights`: f32, `[taps, channels]`, those of the oldest row
    /// first; `bias`: f32, `[channels]`, present as the key says; `state`: f32, `[slots, taps - 1,
    /// channels]`; `out`: f32, `[rows, channels]`.
    ///
    /// # Numerics
    /// With `M = sum |w x| + |bias|`, `|error| <= (taps + 68) 2^-23 M`, times the second part of
    /// the row if gated. A row's bits are independent of the other rows and of the cut of a
    /// sequence into spans.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn convolve(
        &self,
        key: ConvolutionKernel,
        x: &Buffer,
        (weights, bias): (&Buffer, Option<&Buffer>),
        (state, spans): (&Buffer, &Spans),
        out: &Buffer,
    ) -> Result<Dispatch> {
        let kernel = Kernel::State(StateKernel::Convolve(key));
        kernel.check(self.info())?;
        let channels = u64::from(key.channels) * 4;
        let rows = rows_of(out, channels)?;
        expect_size("bytes of the rows", rows * u64::from(key.width) * 4, x.len())?;
        expect_size("bytes of the weights", u64::from(key.taps) * channels, weights.len())?;
        expect_multiple("bytes of the states", key.state_values() * 4, state.len())?;
        let biased = key.form == (ConvolutionForm::Silu { biased: true });
        let found = bias.map_or(0, Buffer::len);
        expect_size("bytes of the biases", if biased { channels } else { 0 }, found)?;
        let mut buffers = vec![x.clone(), weights.clone()];
        buffers.extend(bias.cloned());
        buffers.extend([state.clone(), spans.buffer.clone(), out.clone()]);
        let words = (key.channels / 4).div_ceil(CONVOLUTION_THREADS);
        spans.check(rows)?;
        let parts = if key.one_sequence { (rows as u32).div_ceil(TILE_ROWS) } else { spans.launched };
        self.prepare(&kernel, buffers, (words, parts))
    }

    /// Prepares the gated delta rule. With the state `S` of a head, `[key_dim, value_dim]`, and the
    /// query and key of a row divided by their length, the query also by the root of `key_dim`:
    ///
    /// ```text
    /// decay = exp(factor softplus(a + bias))
    /// S = decay S
    /// S = S + key (sigmoid(b) (value - S^T key))^T
    /// out = S^T query
    /// ```
    ///
    /// `x`: f32, `[rows, channels]`, queries, keys and values; `rates`: f32, `[rows, 2,
    /// value_heads]`, `a` and `b`; `heads`: f32, `[2, value_heads]`, biases and factors; `state`:
    /// f32, `[slots, value_heads, key_dim / 4, value_dim, 4]`; `out`: f32, `[rows, value_heads,
    /// value_dim]`. Rows of a span are computed in order.
    ///
    /// # Numerics
    /// `|error| <= n (key_dim + 128) 2^-23 M` for the row `n` of a sequence, where `M` is the
    /// result of the same recursion over magnitudes, and exponents of decays are -10 or above.
    /// Bits are independent of the other spans and of the cut of a sequence into spans.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn delta_rule(
        &self,
        key: DeltaRuleKernel,
        (x, rates): (&Buffer, &Buffer),
        heads: &Buffer,
        (state, spans): (&Buffer, &Spans),
        out: &Buffer,
    ) -> Result<Dispatch> {
        let kernel = Kernel::State(StateKernel::DeltaRule(key));
        kernel.check(self.info())?;
        let rows = rows_of(out, u64::from(key.value_heads) * u64::from(key.value_dim) * 4)?;
        let per_head = u64::from(key.value_heads) * 4;
        expect_size("bytes of the rows", rows * u64::from(key.channels()) * 4, x.len())?;
        expect_size("bytes of decays and rates", rows * 2 * per_head, rates.len())?;
        expect_size("bytes of biases and factors", 2 * per_head, heads.len())?;
        expect_multiple("bytes of the states", key.state_values() * 4, state.len())?;
        spans.check(rows)?;
        let tile = MatrixTile::new(key.key_dim, key.value_dim);
        let buffers = [x, rates, heads, &spans.buffer, state, out].map(Buffer::clone);
        let groups = tile.blocks * key.value_heads;
        check_groups("parts of heads", groups.into())?;
        self.prepare(&kernel, buffers.into(), (groups, spans.launched))
    }

    /// Prepares a selective scan. With the state `S` of a head, `[state_dim, head_dim]`, and the
    /// weights `B` and `C` of its group in a row:
    ///
    /// ```text
    /// step = softplus(a + bias)
    /// S = exp(factor step) S + B (step x)^T
    /// out = S^T C + skip x
    /// ```
    ///
    /// `x`: f32, `[rows, channels]`, inputs of heads, `B` and `C`; `steps`: f32, `[rows, heads]`,
    /// `a`; `heads`: f32, `[3, heads]`, biases, factors and skips; `state`: f32, `[slots, heads,
    /// state_dim / 4, head_dim, 4]`; `out`: f32, `[rows, heads, head_dim]`. Rows of a span are
    /// computed in order.
    ///
    /// # Numerics
    /// `|error| <= (n + state_dim + 128) 2^-23 M`, as [`Gpu::delta_rule`] with the decays of `n`
    /// rows in `M`.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn selective_scan(
        &self,
        key: SelectiveScanKernel,
        (x, steps): (&Buffer, &Buffer),
        heads: &Buffer,
        (state, spans): (&Buffer, &Spans),
        out: &Buffer,
    ) -> Result<Dispatch> {
        let kernel = Kernel::State(StateKernel::SelectiveScan(key));
        kernel.check(self.info())?;
        let rows = rows_of(out, u64::from(key.heads) * u64::from(key.head_dim) * 4)?;
        let per_head = u64::from(key.heads) * 4;
        expect_size("bytes of the rows", rows * u64::from(key.channels()) * 4, x.len())?;
        expect_size("bytes of time steps", rows * per_head, steps.len())?;
        expect_size("bytes of biases, factors and skips", 3 * per_head, heads.len())?;
        expect_multiple("bytes of the states", key.state_values() * 4, state.len())?;
        spans.check(rows)?;
        let tile = MatrixTile::new(key.state_dim, key.head_dim);
        let buffers = [x, steps, heads, &spans.buffer, state, out].map(Buffer::clone);
        let groups = tile.blocks * key.heads;
        check_groups("parts of heads", groups.into())?;
        self.prepare(&kernel, buffers.into(), (groups, spans.launched))
    }

    /// Prepares `out = x * f(gate)`, with `f` SiLU or the sigmoid, in groups of `dim` values with
    /// or without a norm ([`GateNorm`]).
    ///
    /// `x`, `out`: f32, `[rows, groups, dim]`; `gates`: f32, `[rows, width]`, those of a group from
    /// `first + step` times its index on; `weights` of a norm: f32, `[dim]`, or `[groups, dim]`
    /// behind the product.
    ///
    /// # Numerics
    /// Relative error at most `(dim / 64 + 192) 2^-23` where gates are above -80.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn gate(
        &self,
        key: GateKernel,
        (x, gates): (&Buffer, &Buffer),
        weights: Option<&Buffer>,
        out: &Buffer,
    ) -> Result<Dispatch> {
        let kernel = Kernel::State(StateKernel::Gate(key));
        kernel.check(self.info())?;
        let group = u64::from(key.dim) * 4;
        let rows = rows_of(out, u64::from(key.groups) * group)?;
        expect_size("bytes of the values", out.len(), x.len())?;
        expect_size("bytes of the gates", rows * u64::from(key.width) * 4, gates.len())?;
        let norms = match key.norm {
            GateNorm::None => 0,
            GateNorm::Before(_) => 1,
            GateNorm::Behind(_) => u64::from(key.groups),
        };
        expect_size("bytes of the weights", norms * group, weights.map_or(0, Buffer::len))?;
        check_groups("groups", key.groups.into())?;
        let mut buffers = vec![x.clone(), gates.clone()];
        buffers.extend(weights.cloned());
        buffers.push(out.clone());
        self.prepare(&kernel, buffers, (key.groups, rows as u32))
    }

    /// Prepares the copy of queries, keys and values from rows where a gate is behind each query
    /// head.
    ///
    /// `x`: f32, `[rows, 2 heads + 2 kv_heads, head_dim]`; `qkv`: f32, `[rows, heads + 2 kv_heads,
    /// head_dim]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn split_gates(&self, key: SplitGatesKernel, x: &Buffer, qkv: &Buffer) -> Result<Dispatch> {
        let kernel = Kernel::State(StateKernel::SplitGates(key));
        kernel.check(self.info())?;
        let head = u64::from(key.head_dim) * 4;
        let all = u64::from(key.heads) + 2 * u64::from(key.kv_heads);
        let rows = rows_of(qkv, all * head)?;
        expect_size("bytes of the rows", rows * (all + u64::from(key.heads)) * head, x.len())?;
        let groups = (all * head / 16).div_ceil(CONVOLUTION_THREADS.into());
        check_groups("parts of a row", groups)?;
        self.prepare(&kernel, vec![x.clone(), qkv.clone()], (groups as u32, rows as u32))
    }
}

/// Number of rows of an output with `bytes` bytes per row.
fn rows_of(out: &Buffer, bytes: u64) -> Result<u64> {
    expect_multiple("bytes of the output", bytes.max(1), out.len())?;
    let rows = out.len() / bytes.max(1);
    check_groups("rows", rows)?;
    Ok(rows)
}
