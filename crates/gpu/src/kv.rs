//! Keys and values in blocks on the device, and their write.

use crate::dispatch::Dispatch;
use crate::error::{Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::kernel::{Kernel, RopeKvKernel};
use crate::kv_format::KvFormat;
use crate::memory::{Buffer, Memory};
use crate::rows::check_groups;
use crate::wgsl::rope_kv_groups;

/// Keys (after RoPE) and values of one layer, in KV blocks of 32 tokens.
///
/// F16: keys `[blocks, kv_heads, head_dim / 8, 32, 8]`, so that words of consecutive tokens are
/// contiguous; values `[blocks, kv_heads, 32, head_dim]`.
///
/// Q8: `[blocks, kv_heads]` of signed bytes and scales: keys `[head_dim / 16, 32, 16]`, values
/// `[32, head_dim]`; then in both the f16 scales of 32 dimensions, `[head_dim / 64 rounded up, 32,
/// 2]`.
///
/// Blocks of latent attention have keys alone: values are a part of them.
#[derive(Debug, Clone)]
pub struct KvBlocks {
    format: KvFormat,
    kv_heads: u32,
    head_dim: u32,
    keys: Buffer,
    values: Option<Buffer>,
}

impl KvBlocks {
    /// Allocates `blocks` blocks, zeroed.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) unless `head_dim` is a multiple of
    /// [`KvFormat::head_dim_multiple`]; those of [`Gpu::zeroed`].
    pub fn new(gpu: &Gpu, format: KvFormat, blocks: u32, kv_heads: u32, head_dim: u32) -> Result<Self> {
        Self::new_in(gpu, Memory::Device, format, blocks, kv_heads, head_dim)
    }

    /// As [`KvBlocks::new`], in memory of the device or of the host.
    ///
    /// # Errors
    /// As [`KvBlocks::new`] and [`Gpu::zeroed_in`].
    pub fn new_in(
        gpu: &Gpu,
        memory: Memory,
        format: KvFormat,
        blocks: u32,
        kv_heads: u32,
        head_dim: u32,
    ) -> Result<Self> {
        let keys = Self::without_values(gpu, memory, format, blocks, kv_heads, head_dim)?;
        Ok(Self { values: Some(gpu.zeroed_in(memory, keys.keys.len())?), ..keys })
    }

    /// Allocates blocks of keys alone, whose last dimensions are the values
    /// ([`AttentionKernel::values_from`](crate::AttentionKernel::values_from)).
    ///
    /// # Errors
    /// As [`KvBlocks::new_in`].
    pub fn without_values(
        gpu: &Gpu,
        memory: Memory,
        format: KvFormat,
        blocks: u32,
        kv_heads: u32,
        head_dim: u32,
    ) -> Result<Self> {
        format.expect_head_dim(head_dim)?;
        expect_multiple("KV blocks", 1, blocks.into())?;
        expect_multiple("KV heads", 1, kv_heads.into())?;
        let bytes = u64::from(blocks) * u64::from(kv_heads) * format.plane_bytes(head_dim);
        Ok(Self { format, kv_heads, head_dim, keys: gpu.zeroed_in(memory, bytes)?, values: None })
    }

    /// Bytes of the keys, and of the values, of a block.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.kv_heads) * self.format.plane_bytes(self.head_dim)
    }

    /// Format of keys and values.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// Keys of all blocks.
    pub fn keys(&self) -> &Buffer {
        &self.keys
    }

    /// Values of all blocks, if they are not a part of the keys.
    pub fn values(&self) -> Option<&Buffer> {
        self.values.as_ref()
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.keys.len() + self.values.as_ref().map_or(0, Buffer::len)
    }

    pub(crate) fn expect(&self, kv_heads: u32, head_dim: u32, has_values: bool) -> Result<()> {
        expect_size("KV heads of the blocks", kv_heads.into(), self.kv_heads.into())?;
        expect_size("planes of values of the blocks", has_values.into(), self.values.is_some().into())?;
        expect_size("head dimension of the blocks", head_dim.into(), self.head_dim.into())
    }
}

/// Positions of activation rows, and the KV slots of their keys and values.
#[derive(Debug, Clone)]
pub struct KvRows {
    /// Position of each row's token, u32, `[rows]`.
    pub positions: Buffer,
    /// `32 block + offset` of each row's token, u32, `[rows]`.
    pub slots: Buffer,
}

/// Tables by position.
#[derive(Debug, Clone, Copy)]
pub struct PositionTables<'a> {
    /// As in [`Gpu::rope`].
    pub angles: &'a Buffer,
    /// Factors of queries (attention temperature), f32, `[positions]`.
    pub factors: Option<&'a Buffer>,
}

impl<'a> From<&'a Buffer> for PositionTables<'a> {
    fn from(angles: &'a Buffer) -> Self {
        Self { angles, factors: None }
    }
}

impl PositionTables<'_> {
    /// Fails unless factors are as many as angles.
    pub(crate) fn check(&self, rotary_dim: u32) -> Result<()> {
        let row = u64::from(rotary_dim) * 4;
        expect_multiple("bytes of the angles", row, self.angles.len())?;
        match self.factors {
            Some(factors) => expect_size("bytes of the factors", self.angles.len() / row * 4, factors.len()),
            None => Ok(()),
        }
    }
}

/// Preparation of attention.
impl Gpu {
    /// Applies RoPE to queries and keys, multiplies queries by the factors of their positions if
    /// there are any, and writes keys and values to their blocks.
    ///
    /// `qkv`: f32, `[rows, heads + 2 kv_heads, head_dim]`: queries, keys, values; `queries`: f32,
    /// `[rows, heads, head_dim]`. The format is that of the blocks. In F16 the heads of the output
    /// and of the blocks have [`stored_head_dim`](crate::stored_head_dim) values, those behind
    /// `head_dim` zeros.
    ///
    /// # Numerics
    /// As [`Gpu::rope`], queries rounded once more by their factor; then in F16 keys and values are
    /// rounded by `2^-10` relative, `2^-24` absolute. In Q8 a group of 32 has the scale `d =
    /// max |x| / 127`, rounded to f16 (`2^-10` relative, `2^-24` absolute), and `|x - d q| <= d
    /// (1/2 + 2^-12) + 127 2^-24`; groups with a value that is not finite, or beyond `127 * 65504`,
    /// have the scale NaN.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for operands of another size.
    pub fn rope_kv<'a>(
        &self,
        key: RopeKvKernel,
        qkv: &Buffer,
        tables: impl Into<PositionTables<'a>>,
        rows: &KvRows,
        kv: &KvBlocks,
        queries: &Buffer,
    ) -> Result<Dispatch> {
        let KvRows { positions, slots } = rows;
        let tables = tables.into();
        let key = RopeKvKernel { format: kv.format, scaled: tables.factors.is_some(), ..key };
        let kernel = Kernel::RopeKv(key);
        kernel.check(self.info())?;
        expect_multiple("bytes of positions", 4, positions.len())?;
        let rows = positions.len() / 4;
        check_groups("rows", rows)?;
        let (rope, stored) = (key.rope, key.stored_dim());
        let row = |heads: u32, dim: u32| rows * u64::from(heads) * u64::from(dim) * 4;
        expect_size("bytes of the rows", row(rope.heads + 2 * key.kv_heads, rope.head_dim), qkv.len())?;
        expect_size("bytes of the queries", row(rope.heads, stored), queries.len())?;
        expect_size("bytes of the slots", positions.len(), slots.len())?;
        tables.check(rope.rotary_dim)?;
        kv.expect(key.kv_heads, stored, true)?;
        let mut buffers = [qkv, tables.angles, positions, slots, queries, &kv.keys].to_vec();
        buffers.extend(kv.values().into_iter().chain(tables.factors));
        let buffers = buffers.into_iter().cloned().collect();
        self.prepare(&kernel, buffers, (rope_kv_groups(&key), rows as u32))
    }
}
