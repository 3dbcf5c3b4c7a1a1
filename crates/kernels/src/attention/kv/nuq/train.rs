//! `nuq3` calibration: ranges of keys, levels by k-means.

use half::f16;

use super::super::{
    GROUP, KEY_TILE, KvFormat, KvRole, KvTile, KvView, Line, WIDE, Widening, as_lines_len, floats, with_keys,
    with_values,
};
use super::outliers::{Trimmed, n_outliers};
use super::{KeyRope, NUQ_LEVELS, NuqCodebooks, middle_and_half};
use crate::lanes::ScalarLanes;
use crate::{Error, Result};

/// One key in this many per dimension counts as an outlier at each end: 0.5 %.
const PER_OUTLIER: usize = 200;

/// Bins of the histogram of normalized values.
const CELLS: usize = 4096;

/// Largest number of k-means rounds.
const ROUNDS: usize = 50;

/// Computes the codebooks of one layer from keys and values of the model.
///
/// Holds the keys in half precision (2 bytes per position and dimension, `n_kv_heads * head_dim`
/// dimensions) and a histogram of the values. Deterministic: the same keys and values give the same
/// codebooks.
///
/// # Examples
/// ```
/// use ruvllm_kernels::Kernels;
/// use ruvllm_kernels::attention::{
///     KeyRope, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole, KvView,
///     NuqTraining,
/// };
/// use ruvllm_kernels::rope::{RopeConfig, RopeLayout};
///
/// let kernels = Kernels::detect()?;
/// let layout = KvLayout::new(KvFormat::F32, 1, 64, 32)?;
/// let mut plane = KvBuffer::zeroed(layout.plane_bytes()).expect("some memory");
/// let rows: Vec<f32> = (0..64 * 32).map(|i| (i as f32).sin()).collect();
/// kernels.store_kv(KvPlaneMut::new(layout, KvRole::Keys, plane.as_bytes_mut()), 0, &rows);
/// let keys = KvPlane::new(layout, KvRole::Keys, plane.as_bytes());
/// let mut values = KvBuffer::zeroed(layout.plane_bytes()).expect("some memory");
/// kernels.store_kv(KvPlaneMut::new(layout, KvRole::Values, values.as_bytes_mut()), 0, &rows);
/// let values = KvPlane::new(layout, KvRole::Values, values.as_bytes());
///
/// let frequencies = RopeConfig::new(10_000.0, 32).frequencies(64)?;
/// let rope = KeyRope::new(&frequencies, RopeLayout::Halves, 64);
/// let mut training = NuqTraining::new(1, 32)?;
/// let blocks = [KvBlock { keys, values }];
/// training.observe(&KvView::new(&blocks, 64), &rope, 4);
/// let codebooks = training.finish()?;
/// assert!(codebooks.value_levels().is_sorted());
/// # Ok::<(), ruvllm_kernels::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NuqTraining {
    n_kv_heads: usize,
    head_dim: usize,
    keys: Vec<Vec<f16>>, // [n_kv_heads * head_dim], before RoPE
    values: Histogram,
    is_finite: bool,
    tile: Vec<Line>,
}

impl NuqTraining {
    /// Creates the training of a layer without observations.
    ///
    /// # Errors
    /// [`Error::KvHeadDim`] if `head_dim` is not a multiple of the format's group.
    pub fn new(n_kv_heads: usize, head_dim: usize) -> Result<Self> {
        if !head_dim.is_multiple_of(GROUP) {
            let format = KvFormat::Nuq3.name();
            return Err(Error::KvHeadDim { format, head_dim, multiple: GROUP });
        }
        Ok(Self {
            n_kv_heads,
            head_dim,
            keys: vec![Vec::new(); n_kv_heads.saturating_mul(head_dim)],
            values: Histogram::default(),
            is_finite: true,
            tile: vec![Line::default(); as_lines_len(KEY_TILE * head_dim)],
        })
    }

    /// Adds the whole tiles of 32 positions of a sequence, except its first `skip` positions:
    /// attention sinks have other statistics.
    ///
    /// # Shapes
    /// `view`: blocks of `n_kv_heads` heads of `head_dim` values, from position 0, in any format
    /// except [`KvFormat::Nuq3`]; `F32` is lossless. Where values are keys there are none to add,
    /// and [`finish`](Self::finish) reports it.
    ///
    /// # Panics
    /// If a plane has another shape or is in `nuq3`, or the RoPE tables do not match the heads or
    /// the positions.
    pub fn observe(&mut self, view: &KvView<'_>, rope: &KeyRope, skip: usize) {
        assert!(rope.rotary_dim() <= self.head_dim, "observe: the rotary dimension exceeds the head");
        assert!(view.len <= rope.positions(), "observe: more positions than the RoPE tables hold");
        for start in (0..view.len / KEY_TILE * KEY_TILE).step_by(KEY_TILE) {
            for head in 0..self.n_kv_heads {
                let (keys, values) = view.tile(head, start);
                assert!(
                    [Some(keys), values].iter().flatten().all(|tile| tile.nuq.is_none()),
                    "observe: a tile in nuq3"
                );
                let skip = skip.saturating_sub(start).min(KEY_TILE);
                self.observe_keys(keys, rope, [head, start / KEY_TILE], skip);
                if let Some(values) = values {
                    self.observe_values(values, skip);
                }
            }
        }
    }

    fn observe_keys(&mut self, tile: KvTile<'_>, rope: &KeyRope, at: [usize; 2], skip: usize) {
        let [head, index] = at;
        let mut scales = vec![Line::default(); as_lines_len(2 * self.head_dim)];
        let to = &mut self.tile[..];
        let widening = Widening { rows: self.head_dim, columns: KEY_TILE / WIDE, to };
        with_keys(ScalarLanes, tile, &mut scales, widening);
        rope.apply::<_, true>(ScalarLanes, index, &mut self.tile);
        let rows = floats(&self.tile).as_chunks::<KEY_TILE>().0;
        for (row, kept) in rows.iter().zip(&mut self.keys[head * self.head_dim..]) {
            for &x in &row[skip..] {
                let x = f16::from_f32_const(x);
                self.is_finite &= x.is_finite();
                kept.push(x);
            }
        }
    }

    /// Adds values normalized as on write: within their position's range after removing outliers.
    fn observe_values(&mut self, tile: KvTile<'_>, skip: usize) {
        let dim = self.head_dim;
        let columns = dim / WIDE;
        let mut scales = vec![Line::default(); as_lines_len(2 * dim)];
        let to = &mut self.tile[..];
        with_values(ScalarLanes, tile, columns, &mut scales, Widening { rows: KEY_TILE, columns, to });
        let values = floats(&self.tile);
        let trimmed = Trimmed::new(values, dim, n_outliers(KvRole::Values, dim));
        for slot in skip..KEY_TILE {
            match trimmed.range(slot) {
                Some(range) => self.values.add(range, values[slot * dim..][..dim].iter().copied()),
                None => self.is_finite = false,
            }
        }
    }

    /// Computes the codebooks: per key dimension the range without 0.5 % of the values at each end,
    /// and the levels by k-means over the values inside.
    ///
    /// # Errors
    /// [`Error::NuqSamples`] if nothing was observed or a value was not finite in half precision.
    pub fn finish(self) -> Result<NuqCodebooks> {
        let samples = self.keys.first().map_or(0, Vec::len);
        if samples == 0 || !self.is_finite {
            return Err(Error::NuqSamples { samples });
        }
        let mut histogram = Histogram::default();
        let mut key_ranges = Vec::with_capacity(self.keys.len());
        for mut keys in self.keys {
            keys.sort_unstable_by(f16::total_cmp);
            let outliers = keys.len() / PER_OUTLIER;
            let inside = &keys[outliers..keys.len() - outliers];
            let [low, high] = [inside[0], inside[inside.len() - 1]].map(f16::to_f32_const);
            histogram.add([low, high], inside.iter().map(|x| x.to_f32_const()));
            key_ranges.push([low, high]);
        }
        NuqCodebooks::new(histogram.levels(), self.values.levels(), key_ranges)
    }
}

/// Histogram of normalized values over equal bins of [-1, 1].
#[derive(Debug, Clone)]
pub(super) struct Histogram(Vec<u64>);

impl Default for Histogram {
    fn default() -> Self {
        Self(vec![0; CELLS])
    }
}

impl Histogram {
    /// Counts the values within a range.
    pub(super) fn add(&mut self, range: [f32; 2], numbers: impl Iterator<Item = f32>) {
        let [middle, half] = middle_and_half(range);
        for x in numbers.filter(|&x| range[0] <= x && x <= range[1]) {
            let x = if half > 0.0 { (x - middle) / half } else { 0.0 };
            let cell = (0.5 * (x + 1.0) * CELLS as f32) as usize;
            self.0[cell.min(CELLS - 1)] += 1;
        }
    }

    /// Center of a bin.
    fn number(cell: usize) -> f64 {
        (2 * cell + 1) as f64 / CELLS as f64 - 1.0
    }

    /// Levels by one-dimensional k-means: Lloyd iterations starting from the quantiles.
    pub(super) fn levels(&self) -> [f32; NUQ_LEVELS] {
        let total: u64 = self.0.iter().sum();
        let mut levels: [f64; NUQ_LEVELS] = std::array::from_fn(|i| {
            let wanted = total * (2 * i as u64 + 1) / (2 * NUQ_LEVELS as u64);
            let mut below = 0;
            let at = self.0.iter().position(|&n| {
                below += n;
                below > wanted
            });
            Self::number(at.unwrap_or(CELLS / 2))
        });
        for _ in 0..ROUNDS {
            let moved = self.round(&levels);
            if moved == levels {
                break;
            }
            levels = moved;
        }
        levels.map(|level| level as f32)
    }

    /// One Lloyd iteration: the mean of the values nearest to each level; a level without values
    /// stays.
    fn round(&self, levels: &[f64; NUQ_LEVELS]) -> [f64; NUQ_LEVELS] {
        let (mut sums, mut counts) = ([0.0; NUQ_LEVELS], [0; NUQ_LEVELS]);
        let mut nearest = 0;
        for (cell, &n) in self.0.iter().enumerate() {
            let x = Self::number(cell);
            // Levels and cells both ascend.
            while nearest + 1 < NUQ_LEVELS && x > 0.5 * (levels[nearest] + levels[nearest + 1]) {
                nearest += 1;
            }
            sums[nearest] += n as f64 * x;
            counts[nearest] += n;
        }
        std::array::from_fn(|i| if counts[i] == 0 { levels[i] } else { sums[i] / counts[i] as f64 })
    }
}
