//! Heads of sizes that attention does not take: filled up with zeros where keys and values are
//! written, cut behind attention.

use crate::dispatch::Dispatch;
use crate::error::{Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::head_key::{CutHeadsKernel, stored_head_dim};
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::rows::check_groups;
use crate::wgsl::cut_heads_groups;

impl Gpu {
    /// Prepares the copy of the first `head_dim` values of each head: the output of attention over
    /// heads that were filled up.
    ///
    /// `x`: f32, `[rows, heads, stored_head_dim(head_dim)]`; `out`: f32, `[rows, heads, head_dim]`.
    ///
    /// # Numerics
    /// Exact.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn cut_heads(&self, key: CutHeadsKernel, x: &Buffer, out: &Buffer) -> Result<Dispatch> {
        let kernel = Kernel::CutHeads(key);
        kernel.check(self.info())?;
        let bytes = |head_dim: u32| u64::from(key.heads) * u64::from(head_dim) * 4;
        expect_multiple("bytes of the output", bytes(key.head_dim), out.len())?;
        let rows = out.len() / bytes(key.head_dim);
        expect_size("bytes of the heads", rows * bytes(stored_head_dim(key.head_dim)), x.len())?;
        check_groups("rows", rows)?;
        let groups = cut_heads_groups(&key);
        check_groups("parts of a row", groups.into())?;
        self.prepare(&kernel, vec![x.clone(), out.clone()], (groups, rows as u32))
    }
}
