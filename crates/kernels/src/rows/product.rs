//! Matrix products with a short inner dimension: the second factor of a low-rank (LoRA) update.

use crate::Kernels;
use crate::lanes::{LANES, Vectors, WIDE, WideLanes};

/// Wide vectors per register tile of a single row, so that their FMA chains overlap.
const BROAD: usize = 4;

/// Strided view of an f32 matrix in a slice.
#[derive(Debug, Clone, Copy)]
pub struct MatrixView<'a> {
    values: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> MatrixView<'a> {
    /// Creates a view of `rows` rows of `cols` values; row starts are `stride` values apart.
    ///
    /// # Panics
    /// If the rows overlap or exceed `values`.
    pub fn new(values: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        let needed = match rows {
            0 => Some(0),
            _ => stride.checked_mul(rows - 1).and_then(|last| last.checked_add(cols)),
        };
        assert!(
            (stride >= cols || rows < 2) && needed.is_some_and(|needed| needed <= values.len()),
            "MatrixView: {rows} rows of {cols} values, {stride} apart, in {} values",
            values.len()
        );
        Self { values, rows, cols, stride }
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [f32] {
        self.part(row, 0, self.cols)
    }

    /// `len` values of a row, from column `col`.
    #[inline(always)]
    fn part(&self, row: usize, col: usize, len: usize) -> &'a [f32] {
        &self.values[row * self.stride + col..][..len]
    }
}

impl Kernels {
    /// Adds a matrix product: `x[m][n] += Σ_i w[m][i] * y[i][n]`.
    ///
    /// For a short inner dimension `r`; [`matmul`](Self::matmul) is faster for a long one.
    ///
    /// # Shapes
    /// `x`: `[m, n]`; `w`: `[m, r]`; `y`: `[r, n]`.
    ///
    /// # Numerics
    /// One chain of fused multiply-adds per element, starting at `x`, in the order of `i`:
    /// bit-identical on every instruction set and for any division of rows and columns. Error at
    /// most `γ_r (|x| + Σ|w y|)`, `γ_r = r u / (1 - r u)`, `u = 2^-24`.
    ///
    /// # Panics
    /// If the shapes do not match.
    ///
    /// # Examples
    /// ```
    /// use ruvllm_kernels::rows::MatrixView;
    /// use ruvllm_kernels::Kernels;
    ///
    /// let mut x = [1.0, 1.0, 1.0];
    /// let w = MatrixView::new(&[2.0, -1.0], 1, 2, 2);
    /// let y = MatrixView::new(&[1.0, 2.0, 3.0, 0.0, 0.5, 1.0], 2, 3, 3);
    /// Kernels::detect()?.add_product(&mut x, w, y);
    /// assert_eq!(x, [3.0, 4.5, 6.0]);
    /// # Ok::<(), ruvllm_kernels::Error>(())
    /// ```
    pub fn add_product(&self, x: &mut [f32], w: MatrixView<'_>, y: MatrixView<'_>) {
        let agree = w.cols == y.rows && w.rows.checked_mul(y.cols) == Some(x.len());
        assert!(
            agree,
            "add_product: [{}, {}] times [{}, {}], {} results",
            w.rows,
            w.cols,
            y.rows,
            y.cols,
            x.len()
        );
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.add_product)(x, w, y) }
    }
}

#[inline(always)]
pub(crate) fn add_product<L: WideLanes>(l: L, x: &mut [f32], w: MatrixView<'_>, y: MatrixView<'_>) {
    let whole = y.cols / WIDE * WIDE;
    let tall = if L::WIDE_REGISTERS >= 16 { 8 } else { 4 };
    let many = w.rows / tall * tall;
    // The columns of `y` for a tile stay in the L1 cache over all rows.
    for col in (0..whole).step_by(WIDE) {
        for row in (0..many).step_by(tall) {
            if tall == 8 {
                tile::<L, 8, 1>(l, x, w, y, row, col);
            } else {
                tile::<L, 4, 1>(l, x, w, y, row, col);
            }
        }
    }
    let broad = whole / (BROAD * WIDE) * (BROAD * WIDE);
    for row in many..w.rows {
        for col in (0..broad).step_by(BROAD * WIDE) {
            tile::<L, 1, BROAD>(l, x, w, y, row, col);
        }
        for col in (broad..whole).step_by(WIDE) {
            tile::<L, 1, 1>(l, x, w, y, row, col);
        }
    }
    for row in 0..w.rows {
        for col in (whole..y.cols).step_by(LANES) {
            let len = LANES.min(y.cols - col);
            let out = &mut x[row * y.cols + col..][..len];
            let mut sum = l.load_partial(out);
            for (i, weight) in w.part(row, 0, w.cols).iter().enumerate() {
                sum = l.fma(l.splat(*weight), l.load_partial(y.part(i, col, len)), sum);
            }
            l.store_partial(sum, out);
        }
    }
}

/// Computes `M` rows of `N` wide vectors.
#[inline(always)]
fn tile<L: WideLanes, const M: usize, const N: usize>(
    l: L,
    x: &mut [f32],
    w: MatrixView<'_>,
    y: MatrixView<'_>,
    row: usize,
    col: usize,
) {
    let n = y.cols;
    let mut sums: [[L::W; N]; M] = std::array::from_fn(|m| {
        let x = wides::<N>(&x[(row + m) * n + col..][..N * WIDE]);
        std::array::from_fn(|k| l.wide().load(&x[k]))
    });
    let weights: [&[f32]; M] = std::array::from_fn(|m| w.part(row + m, 0, w.cols));
    for i in 0..w.cols {
        let values = wides::<N>(y.part(i, col, N * WIDE));
        let values: [L::W; N] = std::array::from_fn(|k| l.wide().load(&values[k]));
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = l.wide().splat(weights[i]);
            for (sum, values) in sums.iter_mut().zip(values) {
                *sum = l.wide().fma(weight, values, *sum);
            }
        }
    }
    for (m, sums) in sums.into_iter().enumerate() {
        let out = x[(row + m) * n + col..][..N * WIDE].as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0;
        for (sum, out) in sums.into_iter().zip(out) {
            l.wide().store(sum, out);
        }
    }
}

/// Reinterprets values as `N` wide vectors.
#[inline(always)]
fn wides<const N: usize>(values: &[f32]) -> &[[[f32; LANES]; 2]; N] {
    values.as_chunks::<LANES>().0.as_chunks::<2>().0.first_chunk().expect("as many values")
}
