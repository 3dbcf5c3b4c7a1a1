//! Latent attention: queries and keys in the space of a latent that all heads share.

use crate::dispatch::Dispatch;
use crate::error::{Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::kernel::Kernel;
use crate::kv::{KvBlocks, KvRows, PositionTables};
use crate::latent_key::{LatentKeysKernel, LatentQueriesKernel, PartNormKernel};
use crate::memory::Buffer;
use crate::rows::check_groups;
use crate::wgsl::latent_query_groups;

/// Latent attention (MLA, arXiv 2405.04434), absorbed: a head's query is its rotated part and the
/// product of the rest with the head's matrix to the space of the latent; the key of all heads is
/// the rotated part and the latent, and the values are the latent. Products are those of
/// [`ExpertMatrix`](crate::ExpertMatrix) with a matrix per head.
impl Gpu {
    /// Prepares `out = x / sqrt(mean(x^2) + eps) * weight` of the first `cols` values per row.
    ///
    /// `x`: f32, `[rows, width]`; `weight`: f32, `[cols]`; `out`: f32, `[rows, padded]`.
    ///
    /// # Numerics
    /// Relative error at most `(cols / 256 + 16) 2^-23`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn part_norm(
        &self,
        key: PartNormKernel,
        x: &Buffer,
        weight: &Buffer,
        out: &Buffer,
    ) -> Result<Dispatch> {
        let kernel = Kernel::PartNorm(key);
        kernel.check(self.info())?;
        expect_multiple("bytes of the rows", u64::from(key.width) * 4, x.len())?;
        let rows = x.len() / 4 / u64::from(key.width);
        check_groups("rows", rows)?;
        expect_size("bytes of the weights", u64::from(key.cols) * 4, weight.len())?;
        expect_size("bytes of the output", rows * u64::from(key.padded) * 4, out.len())?;
        self.prepare(&kernel, vec![x.clone(), weight.clone(), out.clone()], (1, rows as u32))
    }

    /// Divides queries: the rotated part of each head goes behind RoPE to the first values of the
    /// head in `queries`, the rest to `still`, both times the factor of their position if there are
    /// factors. The other values of `queries` are left as they are.
    ///
    /// `x`: f32, `[rows, width]`, of which `[heads, still + rotary]` come first; `still`: f32,
    /// `[rows, heads, padded]`; `queries`: f32, `[rows, heads, rotary + rank]`; `positions`: u32,
    /// `[rows]`.
    ///
    /// # Numerics
    /// As [`Gpu::rope`], rounded once more by a factor; the unrotated values exact but for it.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn latent_queries<'a>(
        &self,
        key: LatentQueriesKernel,
        x: &Buffer,
        tables: impl Into<PositionTables<'a>>,
        positions: &Buffer,
        (still, queries): (&Buffer, &Buffer),
    ) -> Result<Dispatch> {
        let tables = tables.into();
        let key = LatentQueriesKernel { scaled: tables.factors.is_some(), ..key };
        let kernel = Kernel::LatentQueries(key);
        kernel.check(self.info())?;
        expect_multiple("bytes of positions", 4, positions.len())?;
        let rows = positions.len() / 4;
        check_groups("rows", rows)?;
        let heads = rows * u64::from(key.heads);
        expect_size("bytes of the rows", rows * u64::from(key.width) * 4, x.len())?;
        expect_size("bytes of the unrotated values", heads * u64::from(key.padded) * 4, still.len())?;
        expect_size("bytes of the queries", heads * u64::from(key.head_dim()) * 4, queries.len())?;
        tables.check(key.rotary)?;
        let mut buffers = [x, tables.angles, positions, still, queries].to_vec();
        buffers.extend(tables.factors);
        let buffers = buffers.into_iter().cloned().collect();
        self.prepare(&kernel, buffers, (latent_query_groups(&key), rows as u32))
    }

    /// Writes keys to their blocks: the rotated part behind RoPE, then the normed latent.
    ///
    /// `x`: f32, `[rows, width]`, of which the latent and the rotated part lie one behind the other
    /// from `first` on; `weight`: f32, `[rank]`. The blocks are those of
    /// [`KvBlocks::without_values`] with one head of `rotary + rank` values.
    ///
    /// # Numerics
    /// As [`Gpu::rope`] and [`Gpu::part_norm`]; then rounded to the format of the blocks as by
    /// [`Gpu::rope_kv`].
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn latent_keys(
        &self,
        key: LatentKeysKernel,
        x: &Buffer,
        (angles, weight): (&Buffer, &Buffer),
        rows: &KvRows,
        kv: &KvBlocks,
    ) -> Result<Dispatch> {
        let KvRows { positions, slots } = rows;
        let key = LatentKeysKernel { format: kv.format(), ..key };
        let kernel = Kernel::LatentKeys(key);
        kernel.check(self.info())?;
        expect_multiple("bytes of positions", 4, positions.len())?;
        let rows = positions.len() / 4;
        check_groups("rows", rows)?;
        expect_size("bytes of the rows", rows * u64::from(key.width) * 4, x.len())?;
        expect_size("bytes of the slots", positions.len(), slots.len())?;
        expect_size("bytes of the weights", u64::from(key.rank) * 4, weight.len())?;
        PositionTables::from(angles).check(key.rotary)?;
        kv.expect(1, key.head_dim(), false)?;
        let buffers = [x, angles, positions, slots, weight, kv.keys()];
        self.prepare(&kernel, buffers.map(Buffer::clone).into(), (1, rows as u32))
    }
}
