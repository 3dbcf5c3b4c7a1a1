//! Operations on rows of activations.

use crate::activation::Activation;
use crate::dispatch::Dispatch;
use crate::error::{Error, Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::kernel::{AddKernel, HeadNormKernel, Kernel, RopeKernel, RowKernel, RowOp};
use crate::largest_key::ArgmaxKernel;
use crate::layer_keys::RowPart;
use crate::memory::Buffer;
use crate::wgsl::{
    ADD_THREADS, ARGMAX_VALUES, READ_WORDS, ROPE_THREADS, grid, head_norm_groups, workgroups_per_row,
};

/// Largest grid extent that every device has.
const MAX_GROUPS: u64 = 65_535;

/// 8-bit activations, `[rows, cols]`: per 32 values an f32 scale and the sums of both halves'
/// quants.
///
/// Per group `scale = max |x| / 127`, `q = round(x 127 / max |x|)`; groups below 4e-37 become zero.
#[derive(Debug, Clone)]
pub struct Quantized {
    rows: u32,
    cols: u32,
    quants: Buffer,
    scales: Buffer,
}

impl Quantized {
    /// Allocates `rows` rows of `cols` values.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `cols` is a multiple of 32; those of [`Gpu::zeroed`].
    pub fn new(gpu: &Gpu, rows: u32, cols: u32) -> Result<Self> {
        expect_multiple("columns", 32, cols.into())?;
        expect_multiple("rows", 1, rows.into())?;
        let values = u64::from(rows) * u64::from(cols);
        Ok(Self { rows, cols, quants: gpu.zeroed(values)?, scales: gpu.zeroed(values / 4)? })
    }

    /// Number of rows.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> u32 {
        self.cols
    }

    /// Total number of values.
    pub fn values(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols)
    }

    /// Quants: per row two planes, `[2, cols / 32, 16]` signed bytes; plane `h` holds values `16 h`
    /// to `16 h + 15` of each group.
    pub fn quants(&self) -> &Buffer {
        &self.quants
    }

    /// Scale (f32) and sums of the quants of both halves (two i16) of each group, `[rows, cols /
    /// 32, 2]`.
    pub fn scales(&self) -> &Buffer {
        &self.scales
    }
}

/// Output of a row operation.
#[derive(Debug, Clone)]
pub enum RowOutput {
    /// f32, `[rows, cols]`.
    F32(Buffer),
    /// 8 bits.
    Quantized(Quantized),
}

impl From<Buffer> for RowOutput {
    fn from(buffer: Buffer) -> Self {
        Self::F32(buffer)
    }
}

impl From<Quantized> for RowOutput {
    fn from(quantized: Quantized) -> Self {
        Self::Quantized(quantized)
    }
}

/// Operations on rows; every function prepares one launch.
impl Gpu {
    /// Quantizes `x` to 8 bits. `x`: f32, `[rows, cols]` of `out`.
    ///
    /// # Numerics
    /// `|x - scale q| <= scale (1/2 + 2^-14)`.
    ///
    /// # Errors
    /// [`Error::Shape`] for an operand of another size.
    pub fn quantize(&self, x: &Buffer, out: &Quantized) -> Result<Dispatch> {
        let (rows, cols) = (out.rows, out.cols);
        self.row_op(RowOp::Copy, rows, cols, vec![x.clone()], &[cols], &out.clone().into())
    }

    /// Prepares `out = x / sqrt(mean(x^2) + eps) * weight` per row.
    ///
    /// `x`: f32, `[rows, cols]`; `weight`: f32, `[cols]`.
    ///
    /// # Numerics
    /// Relative error at most `(cols / 2048 + 16) 2^-23`, before quantization.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn rms_norm(
        &self,
        x: &Buffer,
        weight: &Buffer,
        eps: f32,
        rows: u32,
        out: &RowOutput,
    ) -> Result<Dispatch> {
        let cols = (weight.len() / 4) as u32;
        let inputs = vec![x.clone(), weight.clone()];
        self.row_op(RowOp::RmsNorm(eps.to_bits()), rows, cols, inputs, &[cols, 0], out)
    }

    /// Prepares `residual += delta`, then `out` = [`Gpu::rms_norm`] of the residual.
    ///
    /// # Errors
    /// See [`Gpu::rms_norm`].
    pub fn add_rms_norm(
        &self,
        residual: &Buffer,
        delta: &Buffer,
        weight: &Buffer,
        eps: f32,
        rows: u32,
        out: &RowOutput,
    ) -> Result<Dispatch> {
        self.add_norm(RowOp::AddRmsNorm(eps.to_bits()), [residual, delta, weight], rows, out)
    }

    /// Prepares `residual += scale delta`, then `out` = [`Gpu::rms_norm`] of the residual.
    ///
    /// # Errors
    /// See [`Gpu::rms_norm`].
    pub fn add_scaled_rms_norm(
        &self,
        residual: &Buffer,
        (delta, scale): (&Buffer, f32),
        weight: &Buffer,
        eps: f32,
        rows: u32,
        out: &RowOutput,
    ) -> Result<Dispatch> {
        let op = RowOp::AddScaledRmsNorm { eps_bits: eps.to_bits(), scale_bits: scale.to_bits() };
        self.add_norm(op, [residual, delta, weight], rows, out)
    }

    /// Prepares `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` per row.
    ///
    /// `x`: f32, `[rows, cols]`; `weight`, `bias`: f32, `[cols]`.
    ///
    /// # Numerics
    /// With `n = (cols / 2048 + 16) 2^-23`, `s = 1 / sqrt(variance + eps)` and `M = mean(|x|)`, an
    /// error of at most `2 n (|weight| s (M + |x - mean|) + |bias|)`, before quantization, for `s M
    /// <= 1024`.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn layer_norm(
        &self,
        x: &Buffer,
        (weight, bias): (&Buffer, &Buffer),
        eps: f32,
        rows: u32,
        out: &RowOutput,
    ) -> Result<Dispatch> {
        let cols = (weight.len() / 4) as u32;
        let inputs = [x, weight, bias].map(Buffer::clone).into();
        self.row_op(RowOp::LayerNorm(eps.to_bits()), rows, cols, inputs, &[cols, 0, 0], out)
    }

    /// Prepares `residual += delta`, then `out` = [`Gpu::layer_norm`] of the residual.
    ///
    /// # Errors
    /// See [`Gpu::layer_norm`].
    pub fn add_layer_norm(
        &self,
        (residual, delta): (&Buffer, &Buffer),
        (weight, bias): (&Buffer, &Buffer),
        eps: f32,
        rows: u32,
        out: &RowOutput,
    ) -> Result<Dispatch> {
        let cols = (weight.len() / 4) as u32;
        let inputs = [residual, delta, weight, bias].map(Buffer::clone).into();
        self.row_op(RowOp::AddLayerNorm(eps.to_bits()), rows, cols, inputs, &[cols, cols, 0, 0], out)
    }

    /// A norm behind an addition: of residual, addend and weights.
    fn add_norm(&self, op: RowOp, operands: [&Buffer; 3], rows: u32, out: &RowOutput) -> Result<Dispatch> {
        let cols = (operands[2].len() / 4) as u32;
        self.row_op(op, rows, cols, operands.map(Buffer::clone).into(), &[cols, cols, 0], out)
    }

    /// Prepares `out = x`. `x`: f32, `[rows, cols]`.
    ///
    /// # Numerics
    /// Exact in f32, else as [`Gpu::quantize`].
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn copy_rows(&self, x: &Buffer, rows: u32, out: &RowOutput) -> Result<Dispatch> {
        expect_multiple("bytes of the rows", u64::from(rows.max(1)) * 4, x.len())?;
        let cols = (x.len() / 4 / u64::from(rows.max(1))) as u32;
        self.row_op(RowOp::Copy, rows, cols, vec![x.clone()], &[cols], out)
    }

    /// Prepares `out = activation(gate) * up`, or of an activation without a gate `out =
    /// activation(up)`.
    ///
    /// `gate_up`: f32, `[rows, 2, cols]`, the product with both matrices stacked; without a gate
    /// `[rows, cols]`.
    ///
    /// # Numerics
    /// Error at most `64 * 2^-23 |exact| + 1e-33 |gate up|` for SiLU; for GELU (the tanh form)
    /// `64 * 2^-23 |gate up|`. Of the clamped SiLU as of SiLU, with the clamped gate and `1 + up`.
    /// Of the squared `ReLU` `2^-23 |exact| + 2^-126`.
    ///
    /// # Errors
    /// [`Error::Shape`] for an operand of another size.
    pub fn gated(
        &self,
        activation: Activation,
        gate_up: &Buffer,
        rows: u32,
        cols: u32,
        out: &RowOutput,
    ) -> Result<Dispatch> {
        let op = RowOp::Gated(activation);
        let width = cols.saturating_mul(activation.inputs());
        self.row_op(op, rows, cols, vec![gate_up.clone()], &[width], out)
    }

    /// Prepares a copy of a part of each row, filled up with zeros.
    ///
    /// `x`: f32, `[rows, part.width]`; `out`: `[rows, cols]`.
    ///
    /// # Numerics
    /// As [`Gpu::copy_rows`].
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn copy_part(
        &self,
        part: RowPart,
        x: &Buffer,
        (rows, cols): (u32, u32),
        out: &RowOutput,
    ) -> Result<Dispatch> {
        self.row_op(RowOp::Part(part), rows, cols, vec![x.clone()], &[part.width], out)
    }

    /// Prepares `out = activation(gate) * up`, with `up` a part of longer rows.
    ///
    /// `gate`: f32, `[rows, part.values]`; `up`: f32, `[rows, part.width]`; `out`: `[rows, cols]`,
    /// zeros behind the values of the part.
    ///
    /// # Numerics
    /// As [`Gpu::gated`].
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn gated_part(
        &self,
        (activation, part): (Activation, RowPart),
        (gate, up): (&Buffer, &Buffer),
        (rows, cols): (u32, u32),
        out: &RowOutput,
    ) -> Result<Dispatch> {
        let op = RowOp::GatedPart(activation, part);
        let widths = [part.values, part.width];
        self.row_op(op, rows, cols, vec![gate.clone(), up.clone()], &widths, out)
    }

    /// Prepares rows that are those of `x`, and behind each of them that of `y`.
    ///
    /// `x`, `y`: f32, `[rows, cols]`; `out`: `[rows, 2 cols]`.
    ///
    /// # Numerics
    /// As [`Gpu::copy_rows`].
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn join_rows(
        &self,
        [x, y]: [&Buffer; 2],
        (rows, cols): (u32, u32),
        out: &RowOutput,
    ) -> Result<Dispatch> {
        let inputs = vec![x.clone(), y.clone()];
        self.row_op(RowOp::Join, rows, cols.saturating_mul(2), inputs, &[cols, cols], out)
    }

    /// Checks sizes (`widths`: values per row of each input, 0 for one row of `cols`) and prepares
    /// the launch.
    fn row_op(
        &self,
        op: RowOp,
        rows: u32,
        cols: u32,
        mut buffers: Vec<Buffer>,
        widths: &[u32],
        out: &RowOutput,
    ) -> Result<Dispatch> {
        let quantize = matches!(out, RowOutput::Quantized(_));
        let key = RowKernel { op, cols, quantize };
        let kernel = Kernel::Rows(key);
        kernel.check(self.info())?;
        check_groups("rows", rows.into())?;
        for (buffer, &width) in buffers.iter().zip(widths) {
            let values = if width == 0 { cols.into() } else { u64::from(rows) * u64::from(width) };
            expect_size("bytes of an input", values * 4, buffer.len())?;
        }
        buffers.extend(output_buffers(out, rows, cols)?);
        self.prepare(&kernel, buffers, (workgroups_per_row(&key), rows))
    }

    /// Prepares `RMSNorm` of each query and key head in place, or of all heads together.
    ///
    /// `qkv`: f32, `[rows, heads + 2 kv_heads, head_dim]`, with values as
    /// [`HeadValues`](crate::HeadValues) says; `weights`: f32, `[2, head_dim]`, of queries and of
    /// keys; of all heads together `[heads + kv_heads, head_dim]`.
    ///
    /// # Numerics
    /// As [`Gpu::rms_norm`]; of all heads together `(width / 512 + 16) 2^-23`.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn head_norm(&self, key: HeadNormKernel, qkv: &Buffer, weights: &Buffer) -> Result<Dispatch> {
        let kernel = Kernel::HeadNorm(key);
        kernel.check(self.info())?;
        let HeadNormKernel { heads, kv_heads, head_dim, together, .. } = key;
        let width = (u64::from(heads) + 2 * u64::from(kv_heads)) * u64::from(head_dim) * 4;
        expect_multiple("bytes of the rows", width, qkv.len())?;
        let norms = if together { u64::from(heads) + u64::from(kv_heads) } else { 2 };
        expect_size("bytes of the weights", norms * u64::from(head_dim) * 4, weights.len())?;
        let rows = qkv.len() / width;
        check_groups("rows", rows)?;
        check_groups("heads", u64::from(heads) + u64::from(kv_heads))?;
        let groups = if together { 2 } else { head_norm_groups(&key) };
        self.prepare(&kernel, vec![qkv.clone(), weights.clone()], (groups, rows as u32))
    }

    /// Prepares `x += y`, both f32: equal sizes, or `y` (a bias, a multiple of 4 values) repeated
    /// over `x`.
    ///
    /// # Errors
    /// [`Error::Shape`] for other sizes, or more than 2^26 values.
    pub fn add(&self, x: &Buffer, y: &Buffer) -> Result<Dispatch> {
        self.add_times(x, y, None)
    }

    /// Prepares `x = (x + y) * factor`, as [`Gpu::add`]; `factor`: f32, one value.
    ///
    /// # Numerics
    /// The sum and the product are rounded once each.
    ///
    /// # Errors
    /// As [`Gpu::add`].
    pub fn add_and_scale(&self, x: &Buffer, y: &Buffer, factor: &Buffer) -> Result<Dispatch> {
        expect_size("bytes of the factor", 4, factor.len())?;
        self.add_times(x, y, Some(factor))
    }

    fn add_times(&self, x: &Buffer, y: &Buffer, factor: Option<&Buffer>) -> Result<Dispatch> {
        expect_multiple("bytes of a sum", 4, x.len())?;
        expect_multiple("bytes of the addend", 4, y.len())?;
        let (values, period) = (x.len() / 4, y.len() / 4);
        let groups = values.div_ceil(4 * u64::from(ADD_THREADS));
        check_groups("blocks of 1024 values", groups)?;
        check_groups("blocks of 1024 values of the addend", period.div_ceil(4 * u64::from(ADD_THREADS)))?;
        let key = AddKernel { values: values as u32, period: period as u32, scaled: factor.is_some() };
        Kernel::Add(key).check(self.info())?;
        let buffers = [x, y].into_iter().chain(factor).cloned().collect();
        self.prepare(&Kernel::Add(key), buffers, (groups as u32, 1))
    }

    /// Prepares `out = x[row]`.
    ///
    /// `x`: f32, `[rows, cols]`; `row`: u32, one valid row index; `out`: f32, `[cols]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn copy_row(&self, x: &Buffer, row: &Buffer, out: &Buffer) -> Result<Dispatch> {
        expect_multiple("bytes of a row", 16, out.len())?;
        expect_multiple("bytes of the rows", out.len(), x.len())?;
        expect_size("bytes of the index", 4, row.len())?;
        let words = out.len() / 16;
        let groups = words.div_ceil(u64::from(ADD_THREADS));
        check_groups("blocks of 1024 values", groups)?;
        let buffers = vec![x.clone(), row.clone(), out.clone()];
        self.prepare(&Kernel::CopyRow(words as u32 * 4), buffers, (groups as u32, 1))
    }

    /// Prepares RoPE of `x`, f32 `[rows, heads, head_dim]`, in place.
    ///
    /// `angles`: f32, `[positions, rotary_dim / 2, 2]`, cosine and sine; `positions`: u32,
    /// `[rows]`, each below the positions of `angles`.
    ///
    /// # Numerics
    /// `|error| <= 2^-22 (|a| + |b|)` for a pair `a`, `b`.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn rope(&self, key: RopeKernel, x: &Buffer, angles: &Buffer, positions: &Buffer) -> Result<Dispatch> {
        let kernel = Kernel::Rope(key);
        kernel.check(self.info())?;
        expect_multiple("bytes of positions", 4, positions.len())?;
        let rows = positions.len() / 4;
        check_groups("rows", rows)?;
        let width = u64::from(key.heads) * u64::from(key.head_dim);
        expect_size("bytes of the rows", rows * width * 4, x.len())?;
        expect_multiple("bytes of the angles", u64::from(key.rotary_dim) * 4, angles.len())?;
        let groups = (key.heads * key.rotary_dim / 2).div_ceil(ROPE_THREADS);
        self.prepare(&kernel, vec![x.clone(), angles.clone(), positions.clone()], (groups, rows as u32))
    }

    /// Prepares a read of all of `x`, whole units of 16 KiB, to measure the read bandwidth.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another size.
    pub fn read_probe(&self, x: &Buffer) -> Result<Dispatch> {
        expect_multiple("bytes to read", u64::from(READ_WORDS) * 16, x.len())?;
        let words = (x.len() / 16) as u32;
        self.prepare(&Kernel::Read(words), vec![x.clone(), self.zeroed(16)?], grid(words / READ_WORDS))
    }

    /// Prepares argmax of the first `values` values of each row, the first among equals: two
    /// launches, to be run in order. NaN counts as `-inf`; the index of a row without a value above
    /// `-inf` is `u32::MAX`.
    ///
    /// `x`: f32, `[rows, width]`; `out`: u32, `[rows]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size; those of [`Gpu::zeroed`] for the candidates
    /// in between.
    pub fn argmax(&self, x: &Buffer, values: u32, out: &Buffer) -> Result<[Dispatch; 2]> {
        expect_multiple("bytes of indices", 4, out.len())?;
        let rows = out.len() / 4;
        check_groups("rows", rows)?;
        expect_multiple("bytes of the rows", rows * 4, x.len())?;
        let first = Kernel::Argmax(ArgmaxKernel { width: (x.len() / 4 / rows) as u32, values });
        first.check(self.info())?;
        let groups = values.div_ceil(ARGMAX_VALUES);
        check_groups("blocks of 1024 values", groups.into())?;
        let best = self.zeroed(rows * u64::from(groups) * 8)?;
        let merge = Kernel::ArgmaxMerge(groups);
        Ok([
            self.prepare(&first, vec![x.clone(), best.clone()], (groups, rows as u32))?,
            self.prepare(&merge, vec![best, out.clone()], (1, rows as u32))?,
        ])
    }
}

/// Buffers of an output, after a size check.
pub(crate) fn output_buffers(out: &RowOutput, rows: u32, cols: u32) -> Result<Vec<Buffer>> {
    match out {
        RowOutput::F32(out) => {
            expect_size("bytes of the output", u64::from(rows) * u64::from(cols) * 4, out.len())?;
            Ok(vec![out.clone()])
        }
        RowOutput::Quantized(out) => {
            expect_size("rows of the output", rows.into(), out.rows.into())?;
            expect_size("columns of the output", cols.into(), out.cols.into())?;
            Ok(vec![out.quants.clone(), out.scales.clone()])
        }
    }
}

pub(crate) fn check_groups(what: &'static str, groups: u64) -> Result<()> {
    if (1..=MAX_GROUPS).contains(&groups) {
        return Ok(());
    }
    Err(Error::Shape { what, expected: format!("1 to {MAX_GROUPS}"), found: groups })
}
