//! The largest values of rows.

use crate::dispatch::Dispatch;
use crate::error::{Result, expect_multiple};
use crate::gpu::Gpu;
use crate::kernel::Kernel;
use crate::largest_key::{LARGEST_VALUES, LargestKernel};
use crate::memory::Buffer;
use crate::rows::check_groups;
use crate::wgsl::LARGEST_CANDIDATES;

impl Gpu {
    /// Prepares the [`LARGEST_VALUES`] largest of the first `values` values of each row, largest
    /// first, equal ones by index: launches to be run in order.
    ///
    /// `x`: f32, `[rows, width]`; `out`: `[rows, 64]` pairs of u32, the index in the row and the
    /// bits of the f32. NaN counts as `-inf`; entries for which there is no value above `-inf` have
    /// the bits of `-inf` and an unspecified index. `-0.0` and `0.0` are equal.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size; those of [`Gpu::zeroed`]
    /// for the candidates in between.
    pub fn largest(&self, x: &Buffer, values: u32, out: &Buffer) -> Result<Vec<Dispatch>> {
        let entry = u64::from(LARGEST_VALUES) * 8;
        expect_multiple("bytes of the largest values", entry, out.len())?;
        let rows = out.len() / entry;
        check_groups("rows", rows)?;
        expect_multiple("bytes of the rows", rows * 4, x.len())?;
        let width = (x.len() / 4 / rows) as u32;
        let mut launches = Vec::new();
        let mut before: Option<Buffer> = None;
        let mut candidates = values;
        loop {
            let lists = candidates.div_ceil(LARGEST_CANDIDATES);
            let (is_first, is_last) = (before.is_none(), lists <= 1);
            let kernel = Kernel::Largest(LargestKernel { width, candidates, is_first, is_last });
            kernel.check(self.info())?;
            check_groups("blocks of 1024 values", lists.into())?;
            let best = if is_last { out.clone() } else { self.zeroed(rows * u64::from(lists) * entry)? };
            let values = (is_first || is_last).then(|| x.clone());
            let buffers = values.into_iter().chain(before.take()).chain([best.clone()]).collect();
            launches.push(self.prepare(&kernel, buffers, (lists, rows as u32))?);
            if is_last {
                return Ok(launches);
            }
            candidates = lists * LARGEST_VALUES;
            before = Some(best);
        }
    }
}
