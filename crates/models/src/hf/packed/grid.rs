//! Scales and zero points of a quantized matrix, and the groups of its columns.

use gguf_rs_lite::TensorType;

use super::super::shards::Stored;
use super::layout::Layout;
use crate::error::{Error, Result};
use crate::weights::weight_format;

/// Scales are `[grid rows, groups]`, a scale for `rows` rows and, in order, `columns` columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cells {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// Scales and zero points by row and group.
pub(super) struct Grid {
    cells: Cells,
    groups: usize,
    scales: Vec<f32>,
    /// Empty where zero points are `middle`.
    zeros: Vec<u16>,
    middle: u16,
    /// Groups of columns; empty where they are in order.
    order: Vec<u32>,
}

/// Where the values of a grid are stored.
pub(super) struct GridBytes<'a> {
    pub(super) scales: (&'a Stored, &'a [u8]),
    /// With what is added to each.
    pub(super) zeros: Option<(&'a [u8], u16)>,
    /// Groups of columns.
    pub(super) order: Option<(&'a Stored, &'a [u8])>,
}

impl Cells {
    /// Rows and columns of the grid of a matrix.
    pub(super) fn grid(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        [rows.div_ceil(self.rows.max(1)), columns.div_ceil(self.columns.max(1))]
    }
}

impl Grid {
    /// Reads scales and zero points of a matrix of `shape`, `[rows, columns]`.
    ///
    /// # Errors
    /// [`Error::TensorValue`] for a scale that is not finite; [`Error::QuantizedTensor`] for groups
    /// of columns that are not there.
    pub(super) fn read(
        layout: Layout,
        cells: Cells,
        shape: [usize; 2],
        bytes: &GridBytes<'_>,
    ) -> Result<Self> {
        let [grid_rows, groups] = cells.grid(shape);
        let (stored, scale_bytes) = bytes.scales;
        let mut scales = floats(stored, scale_bytes)?;
        if let Some(index) = scales.iter().position(|scale| !scale.is_finite()) {
            let expected = "a finite number: download the file again".to_owned();
            let (name, found) = (stored.name.clone(), scales[index]);
            return Err(Error::TensorValue { name, index, found, expected });
        }
        if matches!(layout, Layout::Awq | Layout::Gptq { .. }) {
            // Groups by rows in the file.
            let rows = shape[0];
            scales = (0..rows * groups).map(|i| scales[i % groups * rows + i / groups]).collect();
        }
        let mut zeros = Vec::new();
        if let Some((bytes, first)) = bytes.zeros {
            zeros = layout.zeros(bytes, grid_rows, groups);
            zeros.iter_mut().for_each(|zero| *zero += first);
        }
        let order = match bytes.order {
            Some((stored, bytes)) => read_order(stored, bytes, groups)?,
            None => Vec::new(),
        };
        Ok(Self { cells, groups, scales, zeros, middle: layout.middle(), order })
    }

    /// Scale and zero point of a column of a row.
    pub(super) fn at(&self, row: usize, column: usize) -> (f32, u16) {
        let group = match self.order.get(column) {
            Some(&group) => group as usize,
            None => column / self.cells.columns,
        };
        let i = row / self.cells.rows * self.groups + group;
        (self.scales[i], self.zeros.get(i).copied().unwrap_or(self.middle))
    }

    /// True if so many columns from one on, at least one, are known to be of one group.
    pub(super) fn is_one_group(&self, left: usize, width: usize) -> bool {
        let group = |column: usize| column / self.cells.columns;
        self.order.is_empty() && group(left) == group(left + width - 1)
    }
}

/// Groups of columns as they are stored, each below `groups`.
pub(super) fn read_order(stored: &Stored, bytes: &[u8], groups: usize) -> Result<Vec<u32>> {
    let order = bytes.as_chunks::<4>().0.iter().map(|&bytes| i32::from_le_bytes(bytes));
    let group = |(i, group): (usize, i32)| match u32::try_from(group) {
        Ok(group) if (group as usize) < groups => Ok(group),
        _ => Err(Error::QuantizedTensor {
            name: stored.name.clone(),
            reason: format!("puts column {i} into group {group}, and there are {groups}"),
        }),
    };
    order.enumerate().map(group).collect()
}

/// Values of scales: floats, or exponents of two.
fn floats(stored: &Stored, bytes: &[u8]) -> Result<Vec<f32>> {
    if stored.type_name == "F8_E8M0" {
        // 255 is NaN, 0 is 2^-127.
        let power = |&byte: &u8| match byte {
            255 => f32::NAN,
            0 => f32::from_bits(1 << 22),
            _ => f32::from_bits(u32::from(byte) << 23),
        };
        return Ok(bytes.iter().map(power).collect());
    }
    let float = stored
        .tensor_type
        .filter(|tensor_type| matches!(*tensor_type, TensorType::F32 | TensorType::F16 | TensorType::BF16));
    let Some(format) = float.and_then(weight_format) else {
        let (name, found) = (stored.name.clone(), stored.type_name);
        return Err(Error::UnsupportedTensorType { name, found, supported: SCALE_TYPES.to_owned() });
    };
    let mut values = vec![0.0; bytes.len() / format.block_bytes()];
    format.dequantize(bytes, &mut values);
    Ok(values)
}

const SCALE_TYPES: &str = "F32, F16, BF16, F8_E8M0";

/// Checks that scales are of a type that is read.
pub(super) fn check_scale_type(stored: &Stored) -> Result<()> {
    floats(stored, &[]).map(|_| ())
}

/// Rows and columns that share a scale, from the shape of the scales of so many matrices of
/// `[rows, columns]`; tiles are whole.
pub(super) fn cells_of_experts(
    scales: &Stored,
    experts: usize,
    [rows, columns]: [usize; 2],
    tile: Option<[u64; 2]>,
) -> Result<Cells> {
    check_scale_type(scales)?;
    let dims: Vec<usize> =
        scales.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    let grid = match dims[..] {
        [] | [1] => return Ok(Cells { rows: experts.saturating_mul(rows), columns }),
        [found] if found == experts => Some([1, 1]),
        [groups, grid_rows, found] if found == experts && groups > 0 && grid_rows > 0 => {
            Some([grid_rows, groups])
        }
        _ => None,
    };
    let width = |groups: usize| match tile.and_then(|[_, width]| usize::try_from(width).ok()) {
        // The last tile of a row may be cut.
        Some(width) if columns.div_ceil(width.max(1)) == groups => Some(width.min(columns)),
        _ => columns.is_multiple_of(groups).then_some(columns / groups),
    };
    let cells = grid.and_then(|[grid_rows, groups]| {
        let height = rows.is_multiple_of(grid_rows).then_some(rows / grid_rows)?;
        Some(Cells { rows: height, columns: width(groups)? })
    });
    cells.ok_or_else(|| {
        let expected = format!("whole tiles of {experts} matrices of {rows} rows and {columns} columns");
        let reason = format!("has shape {:?}, expected scales of {expected}", scales.dims);
        Error::QuantizedTensor { name: scales.name.clone(), reason }
    })
}
