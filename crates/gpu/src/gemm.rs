//! Matrix products of many activation rows (prefill): cooperative matrices or tiles.

use crate::dispatch::Dispatch;
use crate::error::{Result, expect_size};
use crate::gpu::Gpu;
use crate::kernel::{CooperativeKernel, CooperativeTile, ExpandKernel, GemmKernel, Kernel};
use crate::matrix::{Activations, Matrix};
use crate::memory::{Buffer, Scratch};
use crate::rows::check_groups;
use crate::split_key::{ColumnSplits, SumSplitsKernel};
use crate::tuning::ProductShape;
use crate::wgsl;

impl Matrix {
    /// Prepares [`Matrix::product`] of any number of rows, for prefill.
    ///
    /// With cooperative matrices if [`CooperativeTile::choose`] gives a tile, which one that
    /// [`Gpu::tune`] has found replaces; else as [`Matrix::gemm_tiled`]. The columns of a matrix
    /// with few rows are split by its shape ([`ColumnSplits`]); with few activation rows the splits
    /// are apart, and their sums take up to [`MAX_SPLIT_BYTES`](crate::MAX_SPLIT_BYTES) that all
    /// dispatches of the device share.
    ///
    /// # Numerics
    /// Bounds are those of [`Matrix::gemm_tiled`] or [`Matrix::gemm_cooperative`]. A row's bits are
    /// independent of `batch` and the other rows, and differ from those of [`Matrix::product`].
    ///
    /// # Errors
    /// See [`Matrix::product`].
    pub fn gemm(&self, gpu: &Gpu, x: &Activations, y: &Buffer, batch: u32) -> Result<Dispatch> {
        self.gemm_into(gpu, x, y, batch, 0, self.rows())
    }

    /// Prepares [`Matrix::gemm`] into a part of longer output rows.
    ///
    /// Values from `first` on, in rows of `width` values. `y`: f32, `[batch, width]`.
    ///
    /// # Errors
    /// See [`Matrix::product`].
    pub fn gemm_into(
        &self,
        gpu: &Gpu,
        x: &Activations,
        y: &Buffer,
        batch: u32,
        first: u32,
        width: u32,
    ) -> Result<Dispatch> {
        let (format, rows, cols) = (self.format(), self.rows(), self.cols());
        let shape = ProductShape { format, rows, cols, batch };
        match gpu.tiles.gemm(shape) {
            Some(tile) => {
                let key = CooperativeKernel { width, first, ..shape.cooperative(tile) };
                self.launch_cooperative(gpu, x, y, batch, key)
            }
            None => self.launch_tiled(gpu, x, y, batch, (first, width)),
        }
    }

    /// Prepares [`Matrix::gemm`] without cooperative matrices.
    ///
    /// # Numerics
    /// Weights and sums of 32 products as in [`Matrix::product`], in another order: with `n` the
    /// steps of a row (32 values, of F16 one), `|y - exact| <= (n + 16) 2^-23 sum |w x|`.
    ///
    /// # Errors
    /// See [`Matrix::product`].
    pub fn gemm_tiled(&self, gpu: &Gpu, x: &Activations, y: &Buffer, batch: u32) -> Result<Dispatch> {
        self.launch_tiled(gpu, x, y, batch, (0, self.rows()))
    }

    fn launch_tiled(
        &self,
        gpu: &Gpu,
        x: &Activations,
        y: &Buffer,
        batch: u32,
        (first, width): (u32, u32),
    ) -> Result<Dispatch> {
        let (format, rows, cols) = (self.format(), self.rows(), self.cols());
        let tile_batch = [16, 32].into_iter().find(|&n| batch <= n).unwrap_or(64);
        let key = GemmKernel { format, rows, cols, width, first, tile_batch };
        let kernel = Kernel::Gemm(key);
        kernel.check(gpu.info())?;
        let grid = wgsl::gemm_grid(&key, batch);
        check_groups("tiles of weight rows", grid.0.into())?;
        check_groups("tiles of activation rows", grid.1.into())?;
        let mut buffers = self.operands(x, batch)?;
        expect_size("bytes of the output", u64::from(batch) * u64::from(width) * 4, y.len())?;
        buffers.push(y.clone());
        gpu.prepare(&kernel, buffers, grid)
    }

    /// Prepares [`Matrix::gemm`] with cooperative matrices and an explicit tile.
    ///
    /// On a device with f16 but without cooperative matrices the products are written out, for
    /// tests. Activations are brought to f16 by a launch of their own before, into memory that all
    /// dispatches of the device share: at most the next power of two of `2 batch cols` bytes, both
    /// filled up to whole tiles.
    ///
    /// # Numerics
    /// Weights and activations are rounded to f16 (11 bits; each row of activations is scaled by a
    /// power of two, so that none overflows), products are added in f32, whose sums a device may
    /// truncate: `|y - exact| <= (r + (cols + 16) 2^-22) sum |w x| + 2^-39 max |x| sum |w|`, `r =
    /// 2^-10` for F16, `2^-9` for other formats, over the activations as stored. Weights beyond f16
    /// give unspecified values. The tile changes no bit.
    ///
    /// # Errors
    /// See [`Matrix::product`]; [`Error::MissingFeature`](crate::Error::MissingFeature) without
    /// f16; [`Error::Shape`](crate::Error::Shape) for a tile that the device cannot run.
    pub fn gemm_cooperative(
        &self,
        gpu: &Gpu,
        x: &Activations,
        y: &Buffer,
        batch: u32,
        tile: CooperativeTile,
    ) -> Result<Dispatch> {
        let shape = ProductShape { format: self.format(), rows: self.rows(), cols: self.cols(), batch };
        self.launch_cooperative(gpu, x, y, batch, shape.cooperative(tile))
    }

    /// Prepares [`Matrix::gemm_cooperative`] with explicit splits of the columns (split-K).
    ///
    /// # Numerics
    /// As [`Matrix::gemm_cooperative`], whose bits it has with the same columns in a split.
    ///
    /// # Errors
    /// See [`Matrix::gemm_cooperative`].
    pub fn gemm_split(
        &self,
        gpu: &Gpu,
        x: &Activations,
        y: &Buffer,
        batch: u32,
        tile: CooperativeTile,
        splits: ColumnSplits,
    ) -> Result<Dispatch> {
        let (format, rows, cols) = (self.format(), self.rows(), self.cols());
        let key = CooperativeKernel { format, rows, cols, width: rows, first: 0, tile, splits };
        self.launch_cooperative(gpu, x, y, batch, key)
    }

    fn launch_cooperative(
        &self,
        gpu: &Gpu,
        x: &Activations,
        y: &Buffer,
        batch: u32,
        key: CooperativeKernel,
    ) -> Result<Dispatch> {
        let CooperativeKernel { format, rows, cols, width, first, .. } = key;
        let kernel = Kernel::Cooperative(key);
        kernel.check(gpu.info())?;
        expect_size("bytes of the output", u64::from(batch) * u64::from(width) * 4, y.len())?;
        let grid = wgsl::cooperative_grid(&key, batch);
        check_groups("tiles of activation rows", grid.0.into())?;
        check_groups("tiles of weight rows", grid.1.into())?;

        let (filled, values) = wgsl::expanded(&key, batch);
        check_groups("activation rows", filled.into())?;
        let mut inputs = self.operands(x, batch)?.split_off(self.planes.len());
        let expanded = gpu.scratch(Scratch::Activations, 2 * values)?;
        let factors = gpu.zeroed(u64::from(filled) * 4)?;
        inputs.extend([expanded.clone(), factors.clone()]);
        let expand = Kernel::Expand(ExpandKernel { cols, quantized: format.takes_quantized() });
        let before = gpu.prepare(&expand, inputs, (filled, 1))?;

        let mut buffers = self.planes.clone();
        buffers.push(expanded);
        let splits = key.splits.apart(cols);
        if !matches!(key.splits, ColumnSplits::Apart(_)) {
            buffers.extend([factors, y.clone()]);
            let mut dispatch = gpu.prepare(&kernel, buffers, grid)?;
            dispatch.before.push(before.work);
            return Ok(dispatch);
        }
        let sums = u64::from(splits) * u64::from(filled) * u64::from(rows);
        let partial = gpu.scratch(Scratch::Splits, 4 * sums)?;
        buffers.push(partial.clone());
        let product = gpu.prepare(&kernel, buffers, grid)?;
        let sum = Kernel::SumSplits(SumSplitsKernel { rows, splits, width, first });
        sum.check(gpu.info())?;
        let grid = (rows.div_ceil(wgsl::SUM_THREADS), batch);
        check_groups("activation rows", grid.1.into())?;
        let mut dispatch = gpu.prepare(&sum, vec![partial, factors, y.clone()], grid)?;
        dispatch.before.extend([before.work, product.work]);
        Ok(dispatch)
    }
}
