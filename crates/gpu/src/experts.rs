//! Mixtures of experts: routers, products of rows with the matrices of their experts, sums.

use crate::dispatch::Dispatch;
use crate::error::{Result, expect_multiple, expect_size};
use crate::expert_keys::{
    ExpertAffineKernel, ExpertScaleKernel, ExpertStack, ExpertSumKernel, RouterKernel, RouterLogitsKernel,
    SortKernel, SumStart,
};
use crate::gpu::Gpu;
use crate::kernel::{CooperativeKernel, CooperativeTile, ExpandKernel, GemmKernel, Kernel, Product, Tile};
use crate::matrix::{Activations, Matrix};
use crate::memory::{Buffer, Scratch};
use crate::rows::check_groups;
use crate::split_key::ColumnSplits;
use crate::wgsl;

/// Rows of expanded activations come in this unit, so that their number is exact.
const EXPANDED_ROWS: u32 = 16;

/// Experts of each row, ascending by index, and their weights. A row and one of its experts are a
/// pair; pairs are numbered `row * used + place`.
#[derive(Debug, Clone)]
pub struct Choices {
    rows: u32,
    used: u32,
    experts: Buffer,
    weights: Buffer,
}

impl Choices {
    /// Allocates the choices of `rows` rows with `used` experts each.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) without rows or experts; those of [`Gpu::zeroed`].
    pub fn new(gpu: &Gpu, rows: u32, used: u32) -> Result<Self> {
        expect_multiple("rows", 1, rows.into())?;
        expect_multiple("experts of a row", 1, used.into())?;
        let bytes = u64::from(rows) * u64::from(used) * 4;
        Ok(Self { rows, used, experts: gpu.zeroed(bytes)?, weights: gpu.zeroed(bytes)? })
    }

    /// Number of rows.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Experts of a row.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Number of pairs.
    pub fn pairs(&self) -> u32 {
        self.rows * self.used
    }

    /// Indices of experts, u32, `[rows, used]`.
    pub fn experts(&self) -> &Buffer {
        &self.experts
    }

    /// Weights, f32, `[rows, used]`.
    pub fn weights(&self) -> &Buffer {
        &self.weights
    }
}

/// Pairs in the order of their experts, in tiles of pairs of one expert.
#[derive(Debug, Clone)]
pub struct SortedPairs {
    key: SortKernel,
    sorted: Buffer,
    tiles: Buffer,
}

impl SortedPairs {
    /// Allocates the order of the pairs of `choices`, with a tile for about as many pairs as an
    /// expert has on average.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) without experts; those of [`Gpu::zeroed`].
    pub fn new(gpu: &Gpu, choices: &Choices, experts: u32) -> Result<Self> {
        let tile = match choices.pairs() / experts.max(1) {
            0..=12 => 16,
            13..=48 => 32,
            _ => 64,
        };
        Self::with_tile(gpu, choices, experts, tile)
    }

    /// As [`SortedPairs::new`], with tiles of 16, 32 or 64 pairs. Results do not depend on it.
    ///
    /// # Errors
    /// See [`SortedPairs::new`].
    pub fn with_tile(gpu: &Gpu, choices: &Choices, experts: u32, tile: u32) -> Result<Self> {
        let key = SortKernel { experts, pairs: choices.pairs(), tile };
        Kernel::SortPairs(key).check(gpu.info())?;
        let sorted = gpu.zeroed(u64::from(key.pairs) * 4)?;
        Ok(Self { key, sorted, tiles: gpu.zeroed(u64::from(key.tiles()) * 16)? })
    }

    /// Indices of pairs, u32, `[pairs]`: those of an expert before those of the next.
    pub fn sorted(&self) -> &Buffer {
        &self.sorted
    }

    /// Expert, first place in [`sorted`](Self::sorted) and number of pairs of each tile, and a
    /// zero; u32, `[tiles, 4]`.
    pub fn tiles(&self) -> &Buffer {
        &self.tiles
    }
}

/// Matrices of all experts, `[experts, rows, cols]`.
#[derive(Debug, Clone)]
pub struct ExpertMatrix {
    matrix: Matrix,
    experts: u32,
    rows: u32,
}

impl ExpertMatrix {
    /// The matrices of `experts` experts that `matrix` has one below the other.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) unless `experts` divides its rows.
    pub fn new(matrix: Matrix, experts: u32) -> Result<Self> {
        expect_multiple("rows of all experts", experts.max(1).into(), matrix.rows().into())?;
        let rows = matrix.rows() / experts.max(1);
        Ok(Self { matrix, experts, rows })
    }

    /// The matrices one below the other.
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Number of experts.
    pub fn experts(&self) -> u32 {
        self.experts
    }

    /// Rows of an expert: values per pair.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Prepares the products of each pair's input with the matrix of its expert, for few pairs: a
    /// matrix is read once per pair.
    ///
    /// `x`: a row per row of `choices`, or one per pair. `y`: f32, `[pairs, width]`, of which the
    /// values from `first` on are stored.
    ///
    /// # Numerics
    /// Bits of [`Matrix::product`] of the row and the expert's matrix.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size or kind.
    pub fn product(
        &self,
        gpu: &Gpu,
        x: &Activations,
        choices: &Choices,
        y: &Buffer,
        (first, width): (u32, u32),
    ) -> Result<Dispatch> {
        let (format, rows, cols) = (self.matrix.format(), self.rows, self.matrix.cols());
        let tile = Tile::choose(format, cols, 1, gpu.target());
        let product = Product { format, rows, cols, batch: 1, width, first, tile };
        let stack = self.stack(x, choices);
        let kernel = Kernel::ExpertProduct(product, stack);
        kernel.check(gpu.info())?;
        let mut buffers = self.matrix.operands(x, choices.pairs() / stack.sharing)?;
        check_output(choices, width, y)?;
        buffers.extend([choices.experts.clone(), y.clone()]);
        let grid = wgsl::expert_grid(&product, choices.pairs());
        check_groups("parts of an expert's rows", grid.0.into())?;
        check_groups("pairs", grid.1.into())?;
        gpu.prepare(&kernel, buffers, grid)
    }

    /// Prepares [`ExpertMatrix::product`] for many pairs: an expert's matrix is read once per tile
    /// of its pairs, with cooperative matrices where [`Matrix::gemm`] has them.
    ///
    /// # Numerics
    /// Bits of [`Matrix::gemm_split`] of the row and the expert's matrix without splits, or of
    /// [`Matrix::gemm_tiled`].
    ///
    /// # Errors
    /// See [`ExpertMatrix::product`].
    pub fn gemm(
        &self,
        gpu: &Gpu,
        x: &Activations,
        (choices, sorted): (&Choices, &SortedPairs),
        y: &Buffer,
        part: (u32, u32),
    ) -> Result<Dispatch> {
        match CooperativeTile::choose(self.rows, choices.pairs(), gpu.target()) {
            Some(_) => {
                let tile = CooperativeTile::of_experts(sorted.key.tile);
                self.gemm_cooperative(gpu, x, (choices, sorted), y, part, tile)
            }
            None => self.gemm_tiled(gpu, x, (choices, sorted), y, part),
        }
    }

    /// Prepares [`ExpertMatrix::gemm`] without cooperative matrices.
    ///
    /// # Numerics
    /// Bits of [`Matrix::gemm_tiled`] of the row and the expert's matrix.
    ///
    /// # Errors
    /// See [`ExpertMatrix::product`].
    pub fn gemm_tiled(
        &self,
        gpu: &Gpu,
        x: &Activations,
        (choices, sorted): (&Choices, &SortedPairs),
        y: &Buffer,
        (first, width): (u32, u32),
    ) -> Result<Dispatch> {
        let (format, rows, cols) = (self.matrix.format(), self.rows, self.matrix.cols());
        let key = GemmKernel { format, rows, cols, width, first, tile_batch: sorted.key.tile };
        let stack = self.stack(x, choices);
        let kernel = Kernel::ExpertGemm(key, stack);
        kernel.check(gpu.info())?;
        let grid = (wgsl::gemm_grid(&key, 1).0, sorted.key.tiles());
        let mut buffers = self.matrix.operands(x, choices.pairs() / stack.sharing)?;
        self.check_sorted(choices, sorted, grid)?;
        check_output(choices, width, y)?;
        buffers.extend([sorted.sorted.clone(), sorted.tiles.clone(), y.clone()]);
        gpu.prepare(&kernel, buffers, grid)
    }

    /// Prepares [`ExpertMatrix::gemm`] with cooperative matrices and an explicit tile, of as many
    /// activation rows as those of `sorted` have pairs.
    ///
    /// # Numerics
    /// Bits of [`Matrix::gemm_split`] of the row and the expert's matrix without splits.
    ///
    /// # Errors
    /// See [`ExpertMatrix::product`] and [`Matrix::gemm_cooperative`].
    pub fn gemm_cooperative(
        &self,
        gpu: &Gpu,
        x: &Activations,
        (choices, sorted): (&Choices, &SortedPairs),
        y: &Buffer,
        (first, width): (u32, u32),
        tile: CooperativeTile,
    ) -> Result<Dispatch> {
        let (format, rows, cols) = (self.matrix.format(), self.rows, self.matrix.cols());
        expect_size("activation rows of a tile", sorted.key.tile.into(), tile.batch.into())?;
        let key = CooperativeKernel { format, rows, cols, width, first, tile, splits: ColumnSplits::Whole };
        let stack = self.stack(x, choices);
        let kernel = Kernel::ExpertCooperative(key, stack);
        kernel.check(gpu.info())?;
        let grid = (sorted.key.tiles(), wgsl::cooperative_grid(&key, 1).1);
        self.check_sorted(choices, sorted, grid)?;
        check_output(choices, width, y)?;

        let inputs = choices.pairs() / stack.sharing;
        let filled = inputs.next_multiple_of(EXPANDED_ROWS);
        check_groups("activation rows", filled.into())?;
        let (_, values) = wgsl::expanded(&key, filled);
        let mut operands = self.matrix.operands(x, inputs)?.split_off(self.matrix.planes.len());
        let expanded = gpu.scratch(Scratch::Activations, 2 * values)?;
        let factors = gpu.zeroed(u64::from(filled) * 4)?;
        operands.extend([expanded.clone(), factors.clone()]);
        let expand = Kernel::Expand(ExpandKernel { cols, quantized: format.takes_quantized() });
        let before = gpu.prepare(&expand, operands, (filled, 1))?;

        let mut buffers = self.matrix.planes.clone();
        buffers.extend([expanded, factors, sorted.sorted.clone(), sorted.tiles.clone(), y.clone()]);
        let mut dispatch = gpu.prepare(&kernel, buffers, grid)?;
        dispatch.before.push(before.work);
        Ok(dispatch)
    }

    /// The stack, with the pairs of an input row by the number of rows of `x`.
    fn stack(&self, x: &Activations, choices: &Choices) -> ExpertStack {
        let values = match x {
            Activations::F32(x) => x.len() / 4,
            Activations::Quantized(x) => x.values(),
        };
        let is_shared = values == u64::from(self.matrix.cols()) * u64::from(choices.rows);
        ExpertStack { experts: self.experts, sharing: if is_shared { choices.used } else { 1 } }
    }

    fn check_sorted(&self, choices: &Choices, sorted: &SortedPairs, grid: (u32, u32)) -> Result<()> {
        expect_size("sorted pairs", choices.pairs().into(), sorted.key.pairs.into())?;
        expect_size("experts of sorted pairs", self.experts.into(), sorted.key.experts.into())?;
        check_groups("tiles along one side", grid.0.into())?;
        check_groups("tiles along one side", grid.1.into())
    }
}

impl CooperativeTile {
    /// Tile for `pairs` pairs of an expert: 16, 32 or 64.
    fn of_experts(pairs: u32) -> Self {
        let ((rows, across, down), depth) = match pairs {
            16 => ((64, 1, 4), 64),
            32 => ((128, 1, 4), 64),
            _ => ((64, 2, 2), 64),
        };
        Self { batch: pairs, rows, depth, across, down, stages: 1 }
    }
}

/// Operations around the products of experts; every function prepares one launch.
impl Gpu {
    /// Prepares `y[b, o] = sum_c w[o, c] x[b, c] + bias[o]`: logits of a router, in f32 throughout.
    ///
    /// `weights`: f32, `[outputs, cols]`; `bias`: f32, `[outputs]`; `x`: f32, `[rows, cols]`; `y`:
    /// f32, `[rows, outputs]`.
    ///
    /// # Numerics
    /// `|y - exact| <= (cols / 64 + 16) 2^-23 (sum |w x| + |bias|)`. A row's bits are independent
    /// of the other rows.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn router_logits(
        &self,
        weights: &Buffer,
        bias: Option<&Buffer>,
        x: &Buffer,
        rows: u32,
        y: &Buffer,
    ) -> Result<Dispatch> {
        check_groups("rows", rows.into())?;
        expect_multiple("bytes of the logits", u64::from(rows) * 4, y.len())?;
        expect_multiple("bytes of the rows", u64::from(rows) * 16, x.len())?;
        let (outputs, cols) =
            ((y.len() / 4 / u64::from(rows)) as u32, (x.len() / 4 / u64::from(rows)) as u32);
        expect_size("bytes of the router", u64::from(outputs) * u64::from(cols) * 4, weights.len())?;
        let batch = if rows == 1 { 1 } else { wgsl::LOGIT_ROWS };
        let key = RouterLogitsKernel { outputs, cols, biased: bias.is_some(), batch };
        let mut buffers = vec![weights.clone(), x.clone()];
        if let Some(bias) = bias {
            expect_size("bytes of the router's bias", u64::from(outputs) * 4, bias.len())?;
            buffers.push(bias.clone());
        }
        buffers.push(y.clone());
        let groups = outputs.div_ceil(wgsl::logit_outputs(&key));
        check_groups("outputs", groups.into())?;
        self.prepare(&Kernel::RouterLogits(key), buffers, (groups, rows.div_ceil(batch)))
    }

    /// Prepares the choice of each row's experts: the largest scores, of equal ones those of lower
    /// indices.
    ///
    /// `logits`: f32, `[rows, width]`; `bias`: f32, `[experts]`, present as the key says.
    ///
    /// # Numerics
    /// With `d` the largest distance between logits of a row, a weight has a relative error of at
    /// most `(64 + 4 d + experts) 2^-23`, scores have half of it: experts whose scores are nearer
    /// than that may change places. Distances above 80 count as 80. Of logits that are not finite
    /// some `used` experts are chosen.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size, more than
    /// [`MAX_EXPERTS`](crate::MAX_EXPERTS) experts or groups without enough of them.
    pub fn route(
        &self,
        key: RouterKernel,
        logits: &Buffer,
        bias: Option<&Buffer>,
        choices: &Choices,
    ) -> Result<Dispatch> {
        let kernel = Kernel::Route(key);
        kernel.check(self.info())?;
        expect_size("experts of a row", key.used.into(), choices.used.into())?;
        expect_size("bytes of the logits", u64::from(choices.rows) * u64::from(key.width) * 4, logits.len())?;
        expect_size(
            "bytes of the bias",
            u64::from(key.biased) * u64::from(key.experts) * 4,
            bias.map_or(0, Buffer::len),
        )?;
        check_groups("rows", choices.rows.into())?;
        let mut buffers = vec![logits.clone()];
        buffers.extend(bias.cloned());
        buffers.extend([choices.experts.clone(), choices.weights.clone()]);
        self.prepare(&kernel, buffers, (choices.rows, 1))
    }

    /// Prepares the sort of the pairs of `choices` by expert; those of one expert keep their order.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for choices of another number.
    pub fn sort_pairs(&self, choices: &Choices, sorted: &SortedPairs) -> Result<Dispatch> {
        expect_size("pairs", sorted.key.pairs.into(), choices.pairs().into())?;
        let buffers = vec![choices.experts.clone(), sorted.sorted.clone(), sorted.tiles.clone()];
        self.prepare(&Kernel::SortPairs(sorted.key), buffers, (sorted.key.experts, 1))
    }

    /// Prepares `y = weight y + bias` in place, with the weight of the pair if `weighted` and the
    /// bias of its expert if there is one; not without both.
    ///
    /// `y`: f32, `[pairs, cols]`; `bias`: f32, `[experts, cols]`.
    ///
    /// # Numerics
    /// Correctly rounded, of both at most twice.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn expert_affine(
        &self,
        y: &Buffer,
        choices: &Choices,
        weighted: bool,
        bias: Option<&Buffer>,
    ) -> Result<Dispatch> {
        let pairs = choices.pairs();
        check_groups("pairs", pairs.into())?;
        expect_multiple("bytes of the outputs", u64::from(pairs) * 16, y.len())?;
        let cols = (y.len() / 4 / u64::from(pairs)) as u32;
        let mut key = ExpertAffineKernel { experts: 1, cols, weighted, biased: bias.is_some() };
        let mut buffers = vec![y.clone()];
        if weighted {
            buffers.push(choices.weights.clone());
        }
        if let Some(bias) = bias {
            expect_multiple("bytes of the biases", u64::from(cols) * 4, bias.len())?;
            key.experts = (bias.len() / 4 / u64::from(cols)) as u32;
            buffers.extend([choices.experts.clone(), bias.clone()]);
        }
        let groups = (cols / 4).div_ceil(wgsl::PAIR_THREADS);
        check_groups("blocks of 1024 values", groups.into())?;
        self.prepare(&Kernel::ExpertAffine(key), buffers, (groups, pairs))
    }

    /// Prepares the product of each pair's weight with the factor of its expert. `scales`: f32,
    /// `[experts]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand of another size.
    pub fn scale_choices(&self, choices: &Choices, scales: &Buffer) -> Result<Dispatch> {
        expect_multiple("bytes of the factors", 4, scales.len())?;
        let experts = u32::try_from(scales.len() / 4).unwrap_or(u32::MAX);
        let kernel = Kernel::ExpertScale(ExpertScaleKernel { experts, pairs: choices.pairs() });
        kernel.check(self.info())?;
        let groups = choices.pairs().div_ceil(wgsl::PAIR_THREADS);
        check_groups("blocks of pairs", groups.into())?;
        let buffers = [&choices.experts, scales, &choices.weights].map(Buffer::clone);
        self.prepare(&kernel, buffers.into(), (groups, 1))
    }

    /// Prepares `out = start + sum weight y` over each row's pairs, in their order; weights are 1
    /// unless `weighted`. The start is `out` or 0, as `start` says; `gates`, f32, `[rows, width]`,
    /// are those of [`SumStart::GatedOutput`].
    ///
    /// `y`: f32, `[pairs, cols]`; `out`: f32, `[rows, cols]`.
    ///
    /// # Numerics
    /// `|error| <= (used + 2) 2^-23 (|start| + sum |weight y|)`, with 64 more of a gated start.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn expert_sum(
        &self,
        y: &Buffer,
        (choices, weighted): (&Choices, bool),
        (start, gates): (SumStart, Option<&Buffer>),
        out: &Buffer,
    ) -> Result<Dispatch> {
        let (rows, used) = (choices.rows, choices.used);
        check_groups("rows", rows.into())?;
        expect_multiple("bytes of the output", u64::from(rows) * 16, out.len())?;
        expect_size("bytes of the experts' outputs", out.len() * u64::from(used), y.len())?;
        let cols = (out.len() / 4 / u64::from(rows)) as u32;
        let width = match start {
            SumStart::GatedOutput { width, .. } => width,
            _ => 0,
        };
        let found = gates.map_or(0, Buffer::len);
        expect_size("bytes of the gates", u64::from(rows) * u64::from(width) * 4, found)?;
        let mut buffers = vec![y.clone()];
        if weighted {
            buffers.push(choices.weights.clone());
        }
        buffers.extend(gates.cloned());
        buffers.push(out.clone());
        let groups = (cols / 4).div_ceil(wgsl::PAIR_THREADS);
        check_groups("blocks of 1024 values", groups.into())?;
        let key = ExpertSumKernel { cols, used, weighted, start };
        self.prepare(&Kernel::ExpertSum(key), buffers, (groups, rows))
    }
}

fn check_output(choices: &Choices, width: u32, y: &Buffer) -> Result<()> {
    expect_size("bytes of the output", u64::from(choices.pairs()) * u64::from(width) * 4, y.len())
}
