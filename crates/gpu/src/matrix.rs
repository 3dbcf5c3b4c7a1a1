//! Weight matrices on the device and their products.

use crate::dispatch::Dispatch;
use crate::error::{Error, Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::kernel::{GatherKernel, Kernel, Product, Tile};
use crate::memory::{Buffer, Memory};
use crate::repack::{Format, repack};
use crate::rows::{Quantized, check_groups};
use crate::tuning::ProductShape;
use crate::wgsl;

/// Piece size in bytes for repacking rows.
const PIECE: usize = 16 << 20;

/// Weights on the device, `[rows, cols]`, in the layout that the product kernels read.
#[derive(Debug, Clone)]
pub struct Matrix {
    format: Format,
    rows: u32,
    cols: u32,
    pub(crate) planes: Vec<Buffer>,
}

/// Input rows of a product.
#[derive(Debug, Clone)]
pub enum Activations {
    /// f32, `[batch, cols]`, for F16 weights.
    F32(Buffer),
    /// 8 bits, for quantized weights.
    Quantized(Quantized),
}

impl From<Buffer> for Activations {
    fn from(buffer: Buffer) -> Self {
        Self::F32(buffer)
    }
}

impl From<Quantized> for Activations {
    fn from(quantized: Quantized) -> Self {
        Self::Quantized(quantized)
    }
}

impl Matrix {
    /// Uploads weights in the layout of a model file: `rows` rows of `cols` values in `format`.
    ///
    /// Staging of about 16 MiB of host memory; device memory equals the size of `bytes`, rounded up
    /// to 16 bytes per plane.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `cols` is not a multiple of [`Format::column_unit`]
    /// or `bytes` has another size; those of [`Gpu::zeroed`].
    pub fn upload(gpu: &Gpu, format: Format, rows: u32, cols: u32, bytes: &[u8]) -> Result<Self> {
        let matrix = Self::zeroed(gpu, format, rows, cols)?;
        matrix.write(gpu, bytes)?;
        Ok(matrix)
    }

    /// Allocates a matrix of zero bytes, to prepare products before [`Matrix::write`].
    ///
    /// # Errors
    /// As [`Matrix::upload`].
    pub fn zeroed(gpu: &Gpu, format: Format, rows: u32, cols: u32) -> Result<Self> {
        Self::zeroed_in(gpu, Memory::Device, format, rows, cols)
    }

    /// Allocates as [`Matrix::zeroed`] does, in memory of the device or of the host.
    ///
    /// Products with a matrix in memory of the host read it over the bus: [`Matrix::product`] once
    /// per 8 rows, [`Matrix::gemm`] at times more often than a copy ([`Matrix::copy_to`]) would.
    ///
    /// # Errors
    /// As [`Matrix::upload`] and [`Gpu::zeroed_in`].
    pub fn zeroed_in(gpu: &Gpu, memory: Memory, format: Format, rows: u32, cols: u32) -> Result<Self> {
        expect_multiple("columns", format.column_unit() as u64, cols.into())?;
        expect_multiple("rows", 1, rows.into())?;
        let plane = |bytes: usize| gpu.zeroed_in(memory, u64::from(rows) * bytes as u64);
        let planes = format.plane_bytes(cols as usize).into_iter().map(plane).collect::<Result<Vec<_>>>()?;
        Ok(Self { format, rows, cols, planes })
    }

    /// Overwrites all weights, in the layout of a model file, ordered before later dispatches.
    ///
    /// # Errors
    /// As [`Matrix::upload`].
    pub fn write(&self, gpu: &Gpu, bytes: &[u8]) -> Result<()> {
        expect_size(
            "bytes of the matrix",
            u64::from(self.rows) * self.row_bytes() as u64,
            bytes.len() as u64,
        )?;
        self.write_rows(gpu, 0, bytes)
    }

    /// Bytes of a row in the layout of a model file.
    fn row_bytes(&self) -> usize {
        self.cols as usize / self.format.block_len() * self.format.block_bytes()
    }

    /// Overwrites whole rows from `first` on, in the layout of a model file, ordered before later
    /// dispatches. They begin and end at multiples of [`Format::row_unit`], or end with the last.
    ///
    /// # Errors
    /// As [`Matrix::upload`]; [`Error::Shape`](crate::Error::Shape) for rows beyond the last.
    pub fn write_rows(&self, gpu: &Gpu, first: u32, bytes: &[u8]) -> Result<()> {
        let Self { format, rows, cols, ref planes } = *self;
        let row_bytes = self.row_bytes();
        expect_multiple("bytes of rows", row_bytes as u64, bytes.len() as u64)?;
        let behind = u64::from(first) + (bytes.len() / row_bytes) as u64;
        let unit = format.row_unit();
        let ends = behind.is_multiple_of(unit.into()) || behind == rows.into();
        if behind > rows.into() || !first.is_multiple_of(unit) || !ends {
            let expected = format!("multiples of {unit}, at most {rows}");
            return Err(Error::Shape { what: "rows to write", expected, found: behind });
        }
        let sizes = format.plane_bytes(cols as usize);
        // Keeps pieces of scales on whole words.
        let piece_rows = (PIECE / row_bytes).max(1).next_multiple_of(unit as usize);
        for (index, piece) in bytes.chunks(piece_rows * row_bytes).enumerate() {
            let repacked = repack(format, cols as usize, piece);
            for ((plane, bytes), size) in planes.iter().zip(&repacked).zip(&sizes) {
                gpu.write_at(plane, ((first as usize + index * piece_rows) * size) as u64, bytes)?;
            }
        }
        Ok(())
    }

    /// Copies the matrix on the device.
    ///
    /// # Errors
    /// See [`Gpu::zeroed`].
    pub fn duplicate(&self, gpu: &Gpu) -> Result<Self> {
        let planes = self.planes.iter().map(|plane| gpu.duplicate(plane)).collect::<Result<Vec<_>>>()?;
        Ok(Self { planes, ..self.clone() })
    }

    /// Prepares copies of the weights to another matrix of the format and size.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for another format or size.
    pub fn copy_to(&self, gpu: &Gpu, other: &Self) -> Result<Vec<Dispatch>> {
        expect_size("planes to copy", self.planes.len() as u64, other.planes.len() as u64)?;
        self.planes.iter().zip(&other.planes).map(|(from, to)| gpu.copy(from, to)).collect()
    }

    /// Weight format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of rows: values per output row.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Number of columns: values per input row.
    pub fn cols(&self) -> u32 {
        self.cols
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> u64 {
        self.planes.iter().map(Buffer::len).sum()
    }

    /// Prepares `y[b, r] = sum_c w[r, c] x[b, c]` for `batch` rows: 1 to 8, or a multiple of 8 up
    /// to 64. `y`: f32, `[batch, rows]`.
    ///
    /// # Numerics
    /// Weights are exact; sums in f32, sums of 32 products of a quantized format in integers. With
    /// `n` the additions per lane, `|y - exact| <= (n + 16) 2^-23 sum |w x|` over the activations
    /// as stored. A row's bits are independent of `batch` and the other rows.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size or kind; those of
    /// compiling a kernel.
    pub fn product(&self, gpu: &Gpu, x: &Activations, y: &Buffer, batch: u32) -> Result<Dispatch> {
        self.product_into(gpu, x, y, batch, 0, self.rows)
    }

    /// Prepares [`Matrix::product`] into a part of longer output rows.
    ///
    /// Values from `first` on, in rows of `width` values. `y`: f32, `[batch, width]`.
    ///
    /// # Errors
    /// See [`Matrix::product`].
    pub fn product_into(
        &self,
        gpu: &Gpu,
        x: &Activations,
        y: &Buffer,
        batch: u32,
        first: u32,
        width: u32,
    ) -> Result<Dispatch> {
        let Self { format, rows, cols, .. } = *self;
        let tile = gpu.tiles.product(ProductShape { format, rows, cols, batch });
        self.launch(gpu, x, y, Product { format, rows, cols, batch, width, first, tile })
    }

    /// Prepares [`Matrix::product`] with an explicit tile.
    ///
    /// # Errors
    /// See [`Matrix::product`]; [`Error::Shape`](crate::Error::Shape) for a tile that the device
    /// cannot run.
    pub fn product_with(
        &self,
        gpu: &Gpu,
        x: &Activations,
        y: &Buffer,
        batch: u32,
        tile: Tile,
    ) -> Result<Dispatch> {
        let Self { format, rows, cols, .. } = *self;
        self.launch(gpu, x, y, Product { format, rows, cols, batch, width: rows, first: 0, tile })
    }

    fn launch(&self, gpu: &Gpu, x: &Activations, y: &Buffer, product: Product) -> Result<Dispatch> {
        let Product { batch, width, .. } = product;
        let kernel = Kernel::Product(product);
        kernel.check(gpu.info())?;
        let mut buffers = self.operands(x, batch)?;
        expect_size("bytes of the output", u64::from(batch) * u64::from(width) * 4, y.len())?;
        buffers.push(y.clone());
        gpu.prepare(&kernel, buffers, wgsl::group_grid(&product))
    }

    /// The planes and the activations, after a check of their size.
    pub(crate) fn operands(&self, x: &Activations, batch: u32) -> Result<Vec<Buffer>> {
        let values = u64::from(batch) * u64::from(self.cols);
        let mut buffers = self.planes.clone();
        match (x, self.format.takes_quantized()) {
            (Activations::F32(x), false) => {
                expect_size("bytes of f32 activations", values * 4, x.len())?;
                buffers.push(x.clone());
            }
            (Activations::Quantized(x), true) => {
                expect_size("values of quantized activations", values, x.values())?;
                buffers.extend([x.quants().clone(), x.scales().clone()]);
            }
            (_, quantized) => {
                let what = if quantized { "quantized activations" } else { "f32 activations" };
                expect_size(what, values, 0)?;
            }
        }
        Ok(buffers)
    }

    /// Prepares an embedding lookup, `out[b] = w[tokens[b]]`.
    ///
    /// `tokens`: u32, `[batch]`; `out`: f32, `[batch, cols]`. An index out of range is clamped to
    /// the last row.
    ///
    /// # Numerics
    /// `|out - exact| <= 2^-21` of a value's quant and minimum, each in magnitude.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn gather(&self, gpu: &Gpu, tokens: &Buffer, out: &Buffer) -> Result<Dispatch> {
        self.gather_scaled(gpu, tokens, out, 1.0)
    }

    /// Prepares [`Matrix::gather`] times `scale`, rounded once more.
    ///
    /// # Errors
    /// See [`Matrix::gather`].
    pub fn gather_scaled(&self, gpu: &Gpu, tokens: &Buffer, out: &Buffer, scale: f32) -> Result<Dispatch> {
        self.gather_or(gpu, tokens, out, scale, false)
    }

    /// Prepares [`Matrix::gather_scaled`] with the first row for an index out of range.
    ///
    /// # Errors
    /// See [`Matrix::gather`].
    pub fn gather_or_first(&self, gpu: &Gpu, tokens: &Buffer, out: &Buffer, scale: f32) -> Result<Dispatch> {
        self.gather_or(gpu, tokens, out, scale, true)
    }

    fn gather_or(
        &self,
        gpu: &Gpu,
        tokens: &Buffer,
        out: &Buffer,
        scale: f32,
        first_beyond: bool,
    ) -> Result<Dispatch> {
        let Self { format, rows, cols, .. } = *self;
        expect_multiple("bytes of tokens", 4, tokens.len())?;
        expect_size("bytes of the output", tokens.len() * u64::from(cols), out.len())?;
        let batch = tokens.len() / 4;
        check_groups("tokens", batch)?;
        let mut buffers = self.planes.clone();
        buffers.extend([tokens.clone(), out.clone()]);
        let groups = (cols / format.step_values()).div_ceil(wgsl::GATHER_THREADS);
        let key = GatherKernel { format, rows, cols, scale_bits: scale.to_bits(), first_beyond };
        gpu.prepare(&Kernel::Gather(key), buffers, (groups, batch as u32))
    }
}
