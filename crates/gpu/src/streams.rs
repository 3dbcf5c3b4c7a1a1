//! Several residual streams (`AltUp`, arXiv 2301.13310), and gates of which few pass.

use crate::dispatch::Dispatch;
use crate::error::{Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::rows::check_groups;
use crate::stream_keys::{CutGatesKernel, StreamKernel, StreamRows};
use crate::wgsl::STREAM_THREADS;

/// Weights of the gates of streams: `tanh(router norm(x))` of one stream `x`.
#[derive(Debug, Clone, Copy)]
pub struct StreamGates<'a> {
    /// Norm of the stream, f32, `[dim]`.
    pub norm: &'a Buffer,
    /// Router, f32, `[count, dim]`.
    pub router: &'a Buffer,
    /// From the gates to shares, f32: of each stream in the prediction of each, `[count
    /// (predicted), count, count (gates)]`; of the difference in each, `[count, count (gates)]`.
    pub shares: &'a Buffer,
}

/// Operations on streams: f32, `[rows, count, dim]`, changed in place. One launch each.
impl Gpu {
    /// Prepares the beginning of streams: the first becomes `hidden`, f32, `[rows, dim]`; the
    /// others are multiplied by a factor that gives them its mean square, `sqrt(mean(hidden^2) /
    /// max(mean(x^2), 1e-5))`.
    ///
    /// # Numerics
    /// Relative error at most `(dim / 512 + 32) 2^-23`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn split_streams(&self, key: StreamRows, hidden: &Buffer, streams: &Buffer) -> Result<Dispatch> {
        let rows = rows_of(key, streams)?;
        expect_size("bytes of the first stream", rows * u64::from(key.dim) * 4, hidden.len())?;
        self.stream(StreamKernel::Split(key), &[hidden, streams], (key.count, rows))
    }

    /// Prepares the prediction of streams: with the gates `g` of the active one, `x[s] += sum_t
    /// (sum_i shares[s, t, i] g[i]) x[t]`. The active one is copied to `hidden`, f32, `[rows,
    /// dim]`.
    ///
    /// # Numerics
    /// Gates have an error of at most `(dim / 256 + 64) 2^-23 (1 + sum |router norm(x)|)`, streams
    /// `(8 count + 8) 2^-23` of the magnitudes that are added, besides.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn predict_streams(
        &self,
        key: StreamRows,
        streams: &Buffer,
        gates: StreamGates<'_>,
        hidden: &Buffer,
    ) -> Result<Dispatch> {
        let rows = rows_of(key, streams)?;
        let count = u64::from(key.count);
        check_gates(key, gates, count * count * count)?;
        expect_size("bytes of the active stream", rows * u64::from(key.dim) * 4, hidden.len())?;
        let buffers = [streams, gates.norm, gates.router, gates.shares, hidden];
        self.stream(StreamKernel::Predict(key), &buffers, (1, rows))
    }

    /// Prepares the correction of streams by the active one as computed, `hidden + delta`: with its
    /// gates `g` and the difference `d` from its prediction, `x[s] += (1 + sum_i shares[s, i] g[i])
    /// d`. Behind it, `hidden` is the active stream times `factors`.
    ///
    /// `hidden`, `delta`: f32, `[rows, dim]`; `factors`: f32, `[dim]`.
    ///
    /// # Numerics
    /// As [`Gpu::predict_streams`].
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn correct_streams(
        &self,
        key: StreamRows,
        streams: &Buffer,
        gates: StreamGates<'_>,
        (hidden, delta): (&Buffer, &Buffer),
        factors: &Buffer,
    ) -> Result<Dispatch> {
        let rows = rows_of(key, streams)?;
        check_gates(key, gates, u64::from(key.count) * u64::from(key.count))?;
        for buffer in [hidden, delta] {
            expect_size("bytes of the active stream", rows * u64::from(key.dim) * 4, buffer.len())?;
        }
        expect_size("bytes of the factors", u64::from(key.dim) * 4, factors.len())?;
        let buffers = [streams, gates.norm, gates.router, gates.shares, hidden, delta, factors];
        self.stream(StreamKernel::Correct(key), &buffers, (1, rows))
    }

    /// Prepares `x[s] += update` for all streams but the first. `update`: f32, `[rows, dim]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn add_to_streams(&self, key: StreamRows, streams: &Buffer, update: &Buffer) -> Result<Dispatch> {
        let rows = rows_of(key, streams)?;
        expect_size("bytes of the update", rows * u64::from(key.dim) * 4, update.len())?;
        let groups = ((key.count - 1) * (key.dim / 4)).div_ceil(STREAM_THREADS);
        self.stream(StreamKernel::AddToOthers(key), &[streams, update], (groups, rows))
    }

    /// Prepares the mean of the first stream and of `projected`, each given the mean square of the
    /// first as by [`Gpu::split_streams`].
    ///
    /// `projected`: f32, `[rows, count - 1, dim]`; `out`: f32, `[rows, dim]`.
    ///
    /// # Numerics
    /// `|error| <= (dim / 512 + 40) 2^-23` of the magnitudes that are added.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn merge_streams(
        &self,
        key: StreamRows,
        (streams, projected): (&Buffer, &Buffer),
        out: &Buffer,
    ) -> Result<Dispatch> {
        let rows = rows_of(key, streams)?;
        let row = rows * u64::from(key.dim) * 4;
        expect_size("bytes of the projections", row * u64::from(key.count - 1), projected.len())?;
        expect_size("bytes of the output", row, out.len())?;
        self.stream(StreamKernel::Merge(key), &[streams, projected, out], (1, rows))
    }

    /// Prepares the cut of the gates of each row at their mean plus a number of standard
    /// deviations: gates below become 0, others lose it.
    ///
    /// `x`: f32, `[rows, width]`.
    ///
    /// # Numerics
    /// With `M` the mean magnitude, `D` the deviations and `s` the standard deviation, `|error| <=
    /// (cols / 256 + 32) 2^-23 (M + |D| (s + M) + |gate|)`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand of another size.
    pub fn cut_gates(&self, key: CutGatesKernel, x: &Buffer) -> Result<Dispatch> {
        let kernel = StreamKernel::CutGates(key);
        kernel.check()?;
        expect_multiple("bytes of the rows", u64::from(key.width) * 4, x.len())?;
        self.stream(kernel, &[x], (1, x.len() / 4 / u64::from(key.width)))
    }

    fn stream(&self, key: StreamKernel, buffers: &[&Buffer], (groups, rows): (u32, u64)) -> Result<Dispatch> {
        let kernel = Kernel::Stream(key);
        kernel.check(self.info())?;
        check_groups("rows", rows)?;
        check_groups("parts of a row", groups.into())?;
        let buffers = buffers.iter().map(|&buffer| buffer.clone()).collect();
        self.prepare(&kernel, buffers, (groups, rows as u32))
    }
}

/// Number of rows of streams.
fn rows_of(key: StreamRows, streams: &Buffer) -> Result<u64> {
    StreamKernel::Split(key).check()?;
    let row = u64::from(key.count) * u64::from(key.dim) * 4;
    expect_multiple("bytes of the streams", row, streams.len())?;
    Ok(streams.len() / row)
}

fn check_gates(key: StreamRows, gates: StreamGates<'_>, shares: u64) -> Result<()> {
    let dim = u64::from(key.dim) * 4;
    expect_size("bytes of the norm", dim, gates.norm.len())?;
    expect_size("bytes of the router", dim * u64::from(key.count), gates.router.len())?;
    expect_size("bytes of the shares", shares * 4, gates.shares.len())
}
