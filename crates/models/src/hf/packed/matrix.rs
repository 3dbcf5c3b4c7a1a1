//! A quantized matrix in parts, and its quant blocks.

use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::{TensorData, TensorType};
use ruvllm_kernels::quant::WeightFormat;

use super::super::shards::{Repack, Shards, Stored};
use super::grid::{Cells, Grid, GridBytes, cells_of_experts, check_scale_type, read_order};
use super::layout::{BLOCK, FLOAT8, Layout, TILE_ROWS, Tile, per_word};
use super::parts::{
    G_IDX, Parts, QWEIGHT, QZEROS, SCALES, WEIGHT, WEIGHT_G_IDX, WEIGHT_PACKED, WEIGHT_SCALE,
    WEIGHT_SCALE_INV, WEIGHT_SHAPE, WEIGHT_ZERO_POINT,
};
use super::scheme::Method;
use crate::error::{Error, Result};
use crate::weights::weight_format;

/// A quantized matrix, or those of all experts of a layer, one below the other.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    /// Rows and columns.
    shape: [usize; 2],
    /// Matrices in a tensor of all experts.
    experts: Option<usize>,
    /// Rows that bytes are made of.
    rows: Range<usize>,
    /// Rows of the scales above the first one.
    scale_rows_above: usize,
    tensor_type: TensorType,
    format: WeightFormat,
    layout: Layout,
    cells: Cells,
    quants: Stored,
    scales: Stored,
    /// With what is added to each; `None`: all are in the middle.
    zeros: Option<(Stored, u16)>,
    /// Groups of columns; `None`: they are in order.
    order: Option<Stored>,
}

/// Rows and columns of a stored matrix, slowest-varying first; neither is 0.
fn sides(stored: &Stored) -> Result<[u64; 2]> {
    match stored.dims[..] {
        [columns, rows] if columns > 0 && rows > 0 => Ok([rows, columns]),
        _ => Err(bad(stored, format!("has shape {:?}, expected a matrix", stored.dims))),
    }
}

fn bad(stored: &Stored, reason: String) -> Error {
    Error::QuantizedTensor { name: stored.name.clone(), reason }
}

/// Product of a stored dimension and a small number; the first comes from a file.
fn times(stored: &Stored, side: u64, factor: usize) -> Result<usize> {
    let product = usize::try_from(side).ok().and_then(|side| side.checked_mul(factor));
    product.ok_or_else(|| bad(stored, format!("has {side} rows or columns, which no model has")))
}

fn check_type(stored: &Stored, supported: &str) -> Result<()> {
    if stored.type_name == supported {
        return Ok(());
    }
    let (name, found) = (stored.name.clone(), stored.type_name);
    Err(Error::UnsupportedTensorType { name, found, supported: supported.to_owned() })
}

/// Checks type and shape of a part, slowest-varying dimension first.
fn check(stored: &Stored, type_name: &str, shape: &[usize]) -> Result<()> {
    check_type(stored, type_name)?;
    check_shape(stored, shape)
}

fn check_shape(stored: &Stored, shape: &[usize]) -> Result<()> {
    let expected: Vec<u64> = shape.iter().rev().map(|&dim| dim as u64).collect();
    if stored.dims == expected {
        return Ok(());
    }
    Err(Error::TensorShape { name: stored.name.clone(), expected, found: stored.dims.clone() })
}

/// Zero points and what is added to them, unless all of them are `middle` with it.
fn zeros_beside(
    zeros: Stored,
    first: u16,
    (layout, shards, may_be_symmetric): (Layout, &Shards, bool),
) -> Result<Option<(Stored, u16)>> {
    if may_be_symmetric {
        let usual = (layout.middle() - first) as u8;
        let byte = if layout.bits() == 4 { usual << 4 | usual } else { usual };
        if shards.data(&zeros)?.as_bytes().iter().all(|&found| found == byte) {
            return Ok(None);
        }
    }
    Ok(Some((zeros, first)))
}

impl Packed {
    /// Checks the parts of a matrix against each other and chooses its type. Values are read of
    /// groups of columns, shapes, and zero points that are said to be symmetric.
    ///
    /// # Errors
    /// A part that is missing or of another shape or type; groups of columns that are not there.
    pub(super) fn new(method: Method, stem: &str, mut parts: Parts, shards: &Shards) -> Result<Self> {
        match method {
            Method::Awq { group, is_symmetric } => {
                let quants = parts.require(stem, QWEIGHT)?;
                let [columns, words] = sides(&quants)?;
                let shape = [times(&quants, words, 8)?, times(&quants, columns, 1)?];
                let symmetry = (0, is_symmetric);
                Self::in_groups(Layout::Awq, shape, group, symmetry, quants, (stem, parts, shards), false)
            }
            Method::Gptq { bits, group, first_zero, is_symmetric, has_act_order } => {
                let quants = parts.require(stem, QWEIGHT)?;
                let [words, rows] = sides(&quants)?;
                let shape = [times(&quants, rows, 1)?, times(&quants, words, per_word(bits))?];
                let symmetry = (first_zero, is_symmetric);
                let layout = Layout::Gptq { bits };
                Self::in_groups(layout, shape, group, symmetry, quants, (stem, parts, shards), has_act_order)
            }
            Method::Float8 { tile } => Self::float8(stem, parts, tile),
            Method::Compressed { bits, needs_zero_points, tile } => match parts.take(WEIGHT) {
                Some(quants) if quants.type_name == "I8" => {
                    Self::in_bytes(quants, (stem, parts), needs_zero_points)
                }
                Some(quants) => {
                    parts.insert(WEIGHT, quants);
                    Self::float8(stem, parts, tile)
                }
                None => Self::in_rows(bits, needs_zero_points, stem, parts, shards),
            },
        }
    }

    /// A matrix of AWQ or GPTQ.
    fn in_groups(
        layout: Layout,
        shape: [usize; 2],
        group: Option<u64>,
        (first_zero, is_symmetric): (u16, bool),
        quants: Stored,
        (stem, mut parts, shards): (&str, Parts, &Shards),
        needs_order: bool,
    ) -> Result<Self> {
        let [rows, columns] = shape;
        check_type(&quants, "I32")?;
        let scales = parts.require(stem, SCALES)?;
        let zeros = parts.require(stem, QZEROS)?;
        let n = per_word(layout.bits());
        if !rows.is_multiple_of(n) {
            return Err(bad(&quants, format!("has {rows} rows, expected a multiple of {n}")));
        }
        let group = group.map_or(columns, |group| usize::try_from(group).unwrap_or(columns).min(columns));
        let cells = Cells { rows: 1, columns: group };
        let [_, groups] = cells.grid(shape);
        check_scale_type(&scales)?;
        check_shape(&scales, &[groups, rows])?;
        check(&zeros, "I32", &[groups, rows / n])?;
        let order = match (parts.take(G_IDX), needs_order) {
            (Some(order), _) => Self::order(order, (cells, columns, groups), shards)?,
            (None, true) => return Err(Error::MissingTensor { name: format!("{stem}.{G_IDX}") }),
            (None, false) => None,
        };
        let zeros = zeros_beside(zeros, first_zero, (layout, shards, is_symmetric))?;
        Self::typed(Self::untyped(shape, layout, cells, (quants, scales, zeros, order)))
    }

    /// A matrix of compressed-tensors in words.
    fn in_rows(
        bits: Option<u32>,
        needs_zero_points: bool,
        stem: &str,
        mut parts: Parts,
        shards: &Shards,
    ) -> Result<Self> {
        let quants = parts.require(stem, WEIGHT_PACKED)?;
        check_type(&quants, "I32")?;
        let [rows, words] = sides(&quants)?;
        let shape = parts.require(stem, WEIGHT_SHAPE)?;
        let shape = read_shape(&shape, shards.data(&shape)?.as_bytes())?;
        let fits = |bits: &u32| shape[1].div_ceil(per_word(*bits)) as u64 == words;
        let bits = match bits {
            Some(bits) => Some(bits).filter(fits),
            None => [4, 8].into_iter().find(fits),
        };
        let Some(bits) = bits.filter(|_| shape[0] as u64 == rows) else {
            let expected = format!("those of {} rows and {} columns", shape[0], shape[1]);
            return Err(bad(&quants, format!("has shape {:?}, expected {expected}", quants.dims)));
        };
        let layout = Layout::Rows { bits };
        let scales = parts.require(stem, WEIGHT_SCALE)?;
        let cells = cells_of(&scales, shape, None)?;
        let [grid_rows, groups] = cells.grid(shape);
        let zeros = match (parts.take(WEIGHT_ZERO_POINT), needs_zero_points) {
            (Some(zeros), _) => {
                check(&zeros, "I32", &[grid_rows.div_ceil(per_word(bits)), groups])?;
                Some((zeros, 0))
            }
            (None, true) => return Err(Error::MissingTensor { name: format!("{stem}.{WEIGHT_ZERO_POINT}") }),
            (None, false) => None,
        };
        let order = match parts.take(WEIGHT_G_IDX) {
            Some(order) => Self::order(order, (cells, shape[1], groups), shards)?,
            None => None,
        };
        Self::typed(Self::untyped(shape, layout, cells, (quants, scales, zeros, order)))
    }

    /// A matrix of compressed-tensors in signed bytes.
    fn in_bytes(quants: Stored, (stem, mut parts): (&str, Parts), needs_zero_points: bool) -> Result<Self> {
        let [rows, columns] = sides(&quants)?;
        let shape = [times(&quants, rows, 1)?, times(&quants, columns, 1)?];
        let scales = parts.require(stem, WEIGHT_SCALE)?;
        let cells = cells_of(&scales, shape, None)?;
        let [grid_rows, groups] = cells.grid(shape);
        let zeros = match (parts.take(WEIGHT_ZERO_POINT), needs_zero_points) {
            (Some(zeros), _) => {
                check(&zeros, "I8", &[grid_rows, groups])?;
                Some((zeros, 0))
            }
            (None, true) => return Err(Error::MissingTensor { name: format!("{stem}.{WEIGHT_ZERO_POINT}") }),
            (None, false) => None,
        };
        Self::typed(Self::untyped(shape, Layout::Bytes, cells, (quants, scales, zeros, None)))
    }

    /// A matrix of numbers of 8 bits.
    fn float8(stem: &str, mut parts: Parts, tile: Option<[u64; 2]>) -> Result<Self> {
        let quants = parts.require(stem, WEIGHT)?;
        let scales = match parts.take(WEIGHT_SCALE_INV) {
            Some(scales) => scales,
            None => parts.require(stem, WEIGHT_SCALE)?,
        };
        Self::of_float8(quants, scales, tile)
    }

    /// A matrix of numbers of 8 bits, or those of all experts of a layer.
    pub(super) fn of_float8(quants: Stored, scales: Stored, tile: Option<[u64; 2]>) -> Result<Self> {
        check_type(&quants, "F8_E4M3")?;
        let [columns, rows, experts] = quants.dims[..] else {
            let [rows, columns] = sides(&quants)?;
            let shape = [times(&quants, rows, 1)?, times(&quants, columns, 1)?];
            let cells = cells_of(&scales, shape, tile)?;
            return Self::typed(Self::untyped(shape, Layout::Float8, cells, (quants, scales, None, None)));
        };
        if [columns, rows, experts].contains(&0) {
            return Err(bad(&quants, format!("has shape {:?}, expected matrices", quants.dims)));
        }
        let experts = times(&quants, experts, 1)?;
        let (rows, columns) = (times(&quants, rows, 1)?, times(&quants, columns, 1)?);
        let cells = cells_of_experts(&scales, experts, [rows, columns], tile)?;
        let shape = [times(&quants, rows as u64, experts)?, columns];
        let packed = Self::untyped(shape, Layout::Float8, cells, (quants, scales, None, None));
        Ok(Self { experts: Some(experts), ..packed })
    }

    /// A matrix of numbers of 8 bits, the `index`-th of those that a tensor has the scales of:
    /// `count` for each expert.
    pub(super) fn of_expert(
        quants: Stored,
        scales: Stored,
        experts: usize,
        count: usize,
        index: usize,
        tile: Option<[u64; 2]>,
    ) -> Result<Self> {
        check_type(&quants, "F8_E4M3")?;
        let [rows, columns] = sides(&quants)?;
        let shape = [times(&quants, rows, 1)?, times(&quants, columns, 1)?];
        let of_expert = [times(&quants, rows, count)?, shape[1]];
        let cells = cells_of_experts(&scales, experts, of_expert, tile)?;
        let packed = Self::untyped(shape, Layout::Float8, cells, (quants, scales, None, None));
        Ok(Self { scale_rows_above: index.saturating_mul(shape[0]), ..packed })
    }

    /// A matrix with a type that any matrix may have.
    fn untyped(
        shape: [usize; 2],
        layout: Layout,
        cells: Cells,
        (quants, scales, zeros, order): (Stored, Stored, Option<(Stored, u16)>, Option<Stored>),
    ) -> Self {
        let is_half = scales.tensor_type == Some(TensorType::F16);
        let (tensor_type, format) = match is_half {
            true => (TensorType::F16, WeightFormat::F16),
            false => (TensorType::BF16, WeightFormat::BF16),
        };
        Self {
            shape,
            experts: None,
            rows: 0..shape[0],
            scale_rows_above: 0,
            tensor_type,
            format,
            layout,
            cells,
            quants,
            scales,
            zeros,
            order,
        }
    }

    /// The matrix in quant blocks that keep its quants, if there are such.
    fn typed(mut self) -> Result<Self> {
        let [_, columns] = self.shape;
        let is_whole = columns.is_multiple_of(BLOCK)
            && (self.cells.columns.is_multiple_of(BLOCK) || self.cells.columns >= columns)
            && self.order.is_none();
        let quantized = match (self.layout, self.layout.bits(), &self.zeros) {
            (Layout::Float8, ..) => None,
            (_, 4, None) => Some(TensorType::Q4_0),
            (_, 4, Some(_)) => Some(TensorType::Q4_1),
            (_, 8, None) => Some(TensorType::Q8_0),
            _ => None,
        };
        if let Some(tensor_type) = quantized.filter(|_| is_whole)
            && let Some(format) = weight_format(tensor_type)
        {
            (self.tensor_type, self.format) = (tensor_type, format);
        }
        Ok(self)
    }

    /// The groups of columns, unless they are in order.
    fn order(
        stored: Stored,
        (cells, columns, groups): (Cells, usize, usize),
        shards: &Shards,
    ) -> Result<Option<Stored>> {
        check(&stored, "I32", &[columns])?;
        let data = shards.data(&stored)?;
        // So compressed-tensors says that there is no other order.
        if data.as_bytes().iter().all(|&byte| byte == 0xff) {
            return Ok(None);
        }
        let order = read_order(&stored, data.as_bytes(), groups)?;
        let is_usual = order.iter().enumerate().all(|(i, &group)| group as usize == i / cells.columns);
        Ok((!is_usual).then_some(stored))
    }

    /// The tensor as which it is listed.
    pub(super) fn listed(self, name: String) -> Stored {
        let [rows, columns] = self.shape.map(|side| side as u64);
        Stored {
            name,
            shard: self.quants.shard,
            range: self.quants.range.clone(),
            tensor_type: Some(self.tensor_type),
            type_name: self.tensor_type.name(),
            dims: match self.experts.map(|experts| experts as u64) {
                Some(experts) => vec![columns, rows / experts.max(1), experts],
                None => vec![columns, rows],
            },
            packed: Some(Arc::new(self)),
        }
    }

    fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.shape[1]).unwrap_or(0)
    }

    /// Writes the quants of a row from a column on.
    fn write(&self, grid: &Grid, (row, left): (usize, usize), quants: &[u8], out: &mut [u8]) -> Result<()> {
        let (scale, zero) = grid.at(self.scale_rows_above + row, left);
        match self.tensor_type {
            TensorType::Q4_0 => {
                out[..2].copy_from_slice(&self.half(scale, row, left)?);
                write_nibbles(quants, &mut out[2..]);
            }
            TensorType::Q4_1 => {
                out[..2].copy_from_slice(&self.half(scale, row, left)?);
                out[2..4].copy_from_slice(&self.half(-scale * f32::from(zero), row, left)?);
                write_nibbles(quants, &mut out[4..]);
            }
            TensorType::Q8_0 => {
                out[..2].copy_from_slice(&self.half(scale, row, left)?);
                for (out, quant) in out[2..].iter_mut().zip(quants) {
                    *out = quant ^ 0x80;
                }
            }
            _ => return self.write_floats(grid, (row, left), quants, out),
        }
        Ok(())
    }

    fn write_floats(
        &self,
        grid: &Grid,
        (row, left): (usize, usize),
        quants: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        let mut values = [0.0; BLOCK];
        let scale_row = self.scale_rows_above + row;
        let first = grid.at(scale_row, left);
        let is_one_group = grid.is_one_group(left, quants.len());
        for (i, (value, &quant)) in values.iter_mut().zip(quants).enumerate() {
            let (scale, zero) = if is_one_group { first } else { grid.at(scale_row, left + i) };
            *value = match self.layout {
                Layout::Float8 => scale * FLOAT8[usize::from(quant)],
                _ => scale * (f32::from(quant) - f32::from(zero)),
            };
        }
        self.format.quantize(&values[..quants.len()], out);
        // All bits of the exponent are set in infinities and NaN.
        let exponent: u16 = if self.tensor_type == TensorType::F16 { 0x7c00 } else { 0x7f80 };
        let is_finite = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & exponent != exponent;
        match out.as_chunks::<2>().0.iter().position(|bytes| !is_finite(bytes)) {
            None => Ok(()),
            Some(i) => Err(self.too_large(values[i], row, left + i)),
        }
    }

    /// A number in half precision.
    fn half(&self, value: f32, row: usize, column: usize) -> Result<[u8; 2]> {
        let mut bytes = [0; 2];
        WeightFormat::F16.quantize(&[value], &mut bytes);
        match u16::from_le_bytes(bytes) & 0x7c00 {
            0x7c00 => Err(self.too_large(value, row, column)),
            _ => Ok(bytes),
        }
    }

    fn too_large(&self, found: f32, row: usize, column: usize) -> Error {
        Error::TensorValue {
            name: self.quants.name.clone(),
            index: row * self.shape[1] + column,
            found,
            expected: format!("a finite number within the range of {}", self.tensor_type.name()),
        }
    }
}

impl Repack for Packed {
    fn byte_len(&self) -> usize {
        self.rows.len() * self.row_bytes()
    }

    fn of_rows(&self, rows: Range<usize>) -> Option<Arc<dyn Repack>> {
        // Words of other layouts hold several rows.
        (self.layout == Layout::Float8)
            .then(|| Arc::new(Self { rows, experts: None, ..self.clone() }) as Arc<_>)
    }

    fn bytes(&self, data: &dyn Fn(&Stored) -> Result<TensorData>) -> Result<Vec<u8>> {
        let (quants, scales) = (data(&self.quants)?, data(&self.scales)?);
        let zeros = self.zeros.as_ref().map(|(stored, _)| data(stored)).transpose()?;
        let order = self.order.as_ref().map(data).transpose()?;
        let grid = Grid::read(
            self.layout,
            self.cells,
            self.shape,
            &GridBytes {
                scales: (&self.scales, scales.as_bytes()),
                zeros: zeros
                    .as_ref()
                    .zip(self.zeros.as_ref())
                    .map(|(data, (_, first))| (data.as_bytes(), *first)),
                order: self
                    .order
                    .as_ref()
                    .zip(order.as_ref())
                    .map(|(stored, data)| (stored, data.as_bytes())),
            },
        )?;
        let columns = self.shape[1];
        let (row_bytes, block_bytes) = (self.row_bytes(), self.format.block_bytes());
        let mut out = vec![0; self.byte_len()];
        let mut tile: Tile = [[0; BLOCK]; TILE_ROWS];
        for top in self.rows.clone().step_by(TILE_ROWS) {
            let height = TILE_ROWS.min(self.rows.end - top);
            for left in (0..columns).step_by(BLOCK) {
                let width = BLOCK.min(columns - left);
                self.layout.read(quants.as_bytes(), self.shape, (top, height), (left, width), &mut tile);
                let at = left / self.format.block_len() * block_bytes;
                let bytes = width.div_ceil(self.format.block_len()) * block_bytes;
                for (i, quants) in tile[..height].iter().enumerate() {
                    let start = (top - self.rows.start + i) * row_bytes + at;
                    self.write(&grid, (top + i, left), &quants[..width], &mut out[start..start + bytes])?;
                }
            }
        }
        Ok(out)
    }
}

/// Quants of 4 bits as blocks of GGUF have them: byte `i` has values `i` and `i + 16`.
fn write_nibbles(quants: &[u8], out: &mut [u8]) {
    let (low, high) = quants.split_at(BLOCK / 2);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low | high << 4;
    }
}

/// Rows and columns of the matrix that a tensor of two numbers tells.
fn read_shape(stored: &Stored, bytes: &[u8]) -> Result<[usize; 2]> {
    let sides: Vec<i64> = match stored.type_name {
        "I64" => bytes.as_chunks::<8>().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        "I32" => bytes.as_chunks::<4>().0.iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect(),
        found => {
            let (name, supported) = (stored.name.clone(), "I64, I32".to_owned());
            return Err(Error::UnsupportedTensorType { name, found, supported });
        }
    };
    match sides[..] {
        [rows, columns]
            if (1..=i64::from(i32::MAX)).contains(&rows) && (1..=i64::from(i32::MAX)).contains(&columns) =>
        {
            Ok([rows as usize, columns as usize])
        }
        _ => Err(bad(stored, format!("holds {sides:?}, expected rows and columns of a matrix"))),
    }
}

/// Rows and columns that share a scale, from the shape of the scales.
fn cells_of(scales: &Stored, [rows, columns]: [usize; 2], tile: Option<[u64; 2]>) -> Result<Cells> {
    check_scale_type(scales)?;
    let dims: Vec<usize> =
        scales.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    let tile = tile.map(|tile| tile.map(|side| usize::try_from(side).unwrap_or(usize::MAX)));
    if let Some([tile_rows, tile_columns]) = tile {
        let cells = Cells { rows: tile_rows.min(rows), columns: tile_columns.min(columns) };
        let [grid_rows, groups] = cells.grid([rows, columns]);
        if dims == [groups, grid_rows] {
            return Ok(cells);
        }
    }
    match dims[..] {
        [] | [1] | [1, 1] => Ok(Cells { rows, columns }),
        [found] if found == rows => Ok(Cells { rows: 1, columns }),
        [1, found] if found == rows => Ok(Cells { rows: 1, columns }),
        // Without a tile in the configuration, cells are whole.
        [groups, grid_rows]
            if tile.is_none()
                && groups > 0
                && grid_rows > 0
                && columns.is_multiple_of(groups)
                && rows.is_multiple_of(grid_rows) =>
        {
            Ok(Cells { rows: rows / grid_rows, columns: columns / groups })
        }
        _ => {
            let expected = match tile {
                Some([tile_rows, tile_columns]) => {
                    vec![columns.div_ceil(tile_columns) as u64, rows.div_ceil(tile_rows) as u64]
                }
                None => vec![1, rows as u64],
            };
            Err(Error::TensorShape { name: scales.name.clone(), expected, found: scales.dims.clone() })
        }
    }
}
