//! Input rows of products, in every form that matrices read.

use ruvllm_gpu::{Activations, Buffer, Dispatch, Format, Gpu, Quantized, Result, RowOutput};

/// Latents of queries and unrotated parts are filled up to multiples of it, as F16 matrices are.
pub(super) const PAD: usize = 8;

/// Input rows of products: f32 for F16 matrices, 8 bits for quantized ones.
#[derive(Debug)]
pub(super) struct Input {
    f32: Buffer,
    /// `None` if rows are not multiples of 32 values, which quantized formats require.
    q8: Option<Quantized>,
}

impl Input {
    pub(super) fn new(gpu: &Gpu, rows: u32, cols: usize) -> Result<Self> {
        let q8 = cols.is_multiple_of(32).then(|| Quantized::new(gpu, rows, cols as u32)).transpose()?;
        Ok(Self { f32: zeroed(gpu, rows, cols)?, q8 })
    }

    /// Launches that fill the rows in every form that matrices of `formats` read. `make` returns
    /// the launches that compute an output; `direct`: these can write 8 bits.
    pub(super) fn fill(
        &self,
        gpu: &Gpu,
        formats: impl Iterator<Item = Format>,
        direct: bool,
        make: impl FnOnce(&RowOutput) -> Result<Vec<Dispatch>>,
    ) -> Result<Vec<Dispatch>> {
        match self.forms(formats, direct) {
            (None, Some(q8)) => make(&RowOutput::Quantized(q8.clone())),
            (_, q8) => {
                let mut launches = make(&RowOutput::F32(self.f32.clone()))?;
                if let Some(q8) = q8 {
                    launches.push(gpu.quantize(&self.f32, q8)?);
                }
                Ok(launches)
            }
        }
    }

    /// As [`fill`](Self::fill) by launches that write f32 alone.
    pub(super) fn fill_f32(
        &self,
        gpu: &Gpu,
        formats: impl Iterator<Item = Format>,
        make: impl FnOnce(&Buffer) -> Result<Vec<Dispatch>>,
    ) -> Result<Vec<Dispatch>> {
        self.fill(gpu, formats, false, |_| make(&self.f32))
    }

    /// Forms that [`fill`](Self::fill) writes: f32, and 8 bits.
    fn forms(
        &self,
        formats: impl Iterator<Item = Format>,
        direct: bool,
    ) -> (Option<&Buffer>, Option<&Quantized>) {
        let (quantized, whole): (Vec<Format>, Vec<Format>) = formats.partition(|f| f.takes_quantized());
        let q8 = self.q8.as_ref().filter(|_| !quantized.is_empty());
        let is_q8_alone = q8.is_some() && direct && whole.is_empty();
        ((!is_q8_alone).then_some(&self.f32), q8)
    }

    /// Rows in the most precise form that [`fill`](Self::fill) writes.
    pub(super) fn best(&self, formats: impl Iterator<Item = Format>, direct: bool) -> Activations {
        match self.forms(formats, direct) {
            (None, Some(q8)) => q8.clone().into(),
            _ => self.f32.clone().into(),
        }
    }

    /// Rows in f32, once filled for a format that reads them.
    pub(super) fn values(&self) -> &Buffer {
        &self.f32
    }

    /// Rows in the form that a matrix of `format` reads.
    pub(super) fn of(&self, format: Format) -> Activations {
        match self.q8.as_ref().filter(|_| format.takes_quantized()) {
            Some(q8) => q8.clone().into(),
            None => self.f32.clone().into(),
        }
    }
}

/// Rows of `cols` values in f32.
pub(super) fn zeroed(gpu: &Gpu, rows: u32, cols: usize) -> Result<Buffer> {
    gpu.zeroed(u64::from(rows) * cols as u64 * 4)
}
