//! Frozen weights of a model with what back-propagation adds to them: transposed matrices, by which
//! gradients of outputs become gradients of inputs, and RoPE tables.

use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_kernels::rope::{RopeFrequencies, RopeTable};
use ruvllm_kv_cache::{KvRope, KvRopes};
use ruvllm_models::Model;

use crate::error::{Error, Result};
use crate::parallel;

/// Format of the transposed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GradientFormat {
    /// `Q8_0` for quantized weights, else the format of the weights.
    #[default]
    Auto,
    /// 32-bit floats: gradients with the rounding of f32 alone.
    F32,
    /// 16-bit floats with the range of F32.
    BF16,
    /// 8 bits, with gradients of outputs quantized to 8 bits as well.
    Q8_0,
}

/// Transposed matrices of a layer; those of one input are joined.
pub(crate) struct LayerTransposed {
    /// Queries, keys and values: `[model_dim, query_dim + 2 kv_dim]`.
    pub(crate) attention_input: PackedMatrix,
    /// `[query_dim, model_dim]`.
    pub(crate) attention_output: PackedMatrix,
    /// Gate and up: `[model_dim, 2 ffn_dim]`.
    pub(crate) ffn_input: PackedMatrix,
    /// `[ffn_dim, model_dim]`.
    pub(crate) ffn_output: PackedMatrix,
}

/// Transposed matrices of a model.
pub(crate) struct Transposed {
    pub(crate) layers: Vec<LayerTransposed>,
    /// `[model_dim, vocab_size]`.
    pub(crate) output: PackedMatrix,
}

impl Transposed {
    pub(crate) fn new(model: &Model, format: GradientFormat, pool: &ThreadPool) -> Result<Self> {
        let weights = model.weights();
        let layers = weights.layers.iter().map(|layer| {
            let untrainable = || Error::untrainable(model.config());
            let network = layer.feed_forward.as_ref().ok_or_else(untrainable)?;
            let gate = network.gate.as_ref().ok_or_else(untrainable)?;
            let attention = layer.mixer.attention().ok_or_else(untrainable)?;
            let value = attention.value.as_ref().ok_or_else(untrainable)?;
            let of = |matrices: &[&PackedMatrix]| transpose(matrices, format, pool);
            Ok(LayerTransposed {
                attention_input: of(&[&attention.query.weights, &attention.key.weights, &value.weights])?,
                attention_output: of(&[&attention.output.weights])?,
                ffn_input: of(&[&gate.weights, &network.up.weights])?,
                ffn_output: of(&[&network.down.weights])?,
            })
        });
        let output = weights.output.as_ref().map_or(&weights.embedding, |linear| &linear.weights);
        Ok(Self { layers: layers.collect::<Result<_>>()?, output: transpose(&[output], format, pool)? })
    }

    /// Bytes of all matrices.
    pub(crate) fn bytes(&self) -> usize {
        let layer = |layer: &LayerTransposed| {
            [&layer.attention_input, &layer.attention_output, &layer.ffn_input, &layer.ffn_output]
                .map(|matrix| matrix.bytes().len())
                .iter()
                .sum::<usize>()
        };
        self.layers.iter().map(layer).sum::<usize>() + self.output.bytes().len()
    }
}

/// Transposes matrices of equal width, one below the other: `[width, rows of all]`.
fn transpose(matrices: &[&PackedMatrix], format: GradientFormat, pool: &ThreadPool) -> Result<PackedMatrix> {
    let cols = matrices.first().map_or(0, |matrix| matrix.cols());
    let rows: usize = matrices.iter().map(|matrix| matrix.rows()).sum();
    let format = match format {
        GradientFormat::F32 => WeightFormat::F32,
        GradientFormat::BF16 => WeightFormat::BF16,
        GradientFormat::Q8_0 => WeightFormat::Q8_0,
        GradientFormat::Auto => match matrices.first().map(|matrix| matrix.format()) {
            Some(format) if !format.uses_q8() => format,
            _ => WeightFormat::Q8_0,
        },
    };
    // Rows that are not whole quant blocks stay floats.
    let (format, row_bytes) = match format.row_bytes(rows) {
        Some(bytes) => (format, bytes),
        None => (WeightFormat::F32, 4 * rows),
    };
    let no_memory = |bytes| Error::Memory { what: "transposed weights", bytes };
    let mut bytes = Vec::new();
    let n_bytes = row_bytes.saturating_mul(cols);
    bytes.try_reserve_exact(n_bytes).map_err(|_| no_memory(n_bytes))?;
    bytes.resize(n_bytes, 0);
    /// Columns that are transposed together: a cache line of f32.
    const STRIP: usize = 16;
    let strips = bytes.chunks_mut(STRIP * row_bytes.max(1)).enumerate();
    // Each strip dequantizes all rows again unless they are floats once: one copy for all.
    let mut plain = Vec::new();
    let n_values = rows.saturating_mul(cols);
    plain.try_reserve_exact(n_values).map_err(|_| no_memory(4 * n_values))?;
    plain.resize(n_values, 0.0_f32);
    let lines = matrices.iter().flat_map(|matrix| (0..matrix.rows()).map(move |row| (*matrix, row)));
    parallel::for_each(pool, plain.chunks_mut(cols.max(1)).zip(lines), |(out, (matrix, row))| {
        matrix.dequantize_row(row, out);
    });
    parallel::for_each(pool, strips, |(strip, bytes)| {
        let mut line = vec![0.0; rows];
        for (at, bytes) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            let col = strip * STRIP + at;
            for (value, row) in line.iter_mut().zip(plain.chunks_exact(cols)) {
                *value = row[col];
            }
            format.quantize(&line, bytes);
        }
    });
    Ok(PackedMatrix::new(format, cols, rows, SharedBytes::new(bytes))?)
}

/// RoPE tables of one direction for the lengths of a batch.
struct Tables {
    usual: RopeTable,
    local: Option<RopeTable>,
    long: Option<RopeTable>,
}

/// RoPE tables of a model: of the forward pass, and transposed for gradients. They grow with the
/// longest sequence.
pub(crate) struct Ropes {
    ropes: KvRopes,
    positions: usize,
    tables: Option<[Tables; 2]>,
}

/// Direction of RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    /// Transposed: each rotation by the negative angle.
    Backward,
}

impl Ropes {
    pub(crate) fn new(model: &Model) -> Self {
        Self { ropes: model.kv_ropes(), positions: 0, tables: None }
    }

    /// Makes tables for positions up to `positions`.
    pub(crate) fn grow(&mut self, positions: usize) {
        if self.tables.is_some() && self.positions >= positions {
            return;
        }
        let n = positions.next_power_of_two();
        let table = |rope: &KvRope, direction| {
            let RopeFrequencies { inverse, magnitude } = rope.frequencies.clone();
            let inverse = match direction {
                Direction::Forward => inverse,
                Direction::Backward => inverse.into_iter().map(|f| -f).collect(),
            };
            RopeTable::from_frequencies(&RopeFrequencies { inverse, magnitude }, 0..n)
        };
        let tables = |direction| Tables {
            usual: table(&self.ropes.usual, direction),
            local: self.ropes.local.as_ref().map(|(rope, _)| table(rope, direction)),
            long: self.ropes.long.as_ref().map(|(_, rope)| table(rope, direction)),
        };
        self.tables = Some([tables(Direction::Forward), tables(Direction::Backward)]);
        self.positions = n;
    }

    /// The table for a layer and a sequence of `len` tokens.
    ///
    /// # Panics
    /// Before [`grow`](Self::grow).
    pub(crate) fn of(&self, direction: Direction, layer: usize, len: usize) -> &RopeTable {
        let [forward, backward] = self.tables.as_ref().expect("tables are made before a pass");
        let tables = if direction == Direction::Forward { forward } else { backward };
        let is_local = self.ropes.local.as_ref().is_some_and(|(_, layers)| layers[layer]);
        let is_long = self.ropes.long.as_ref().is_some_and(|(above, _)| len > *above);
        match (&tables.local, &tables.long) {
            (Some(local), _) if is_local => local,
            (_, Some(long)) if is_long => long,
            _ => &tables.usual,
        }
    }
}
