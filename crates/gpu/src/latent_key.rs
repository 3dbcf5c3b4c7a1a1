//! Keys of the kernels of latent attention.

use crate::kv_format::KvFormat;
use crate::rope_layout::RopeLayout;

/// `RMSNorm` of the first values of each row, filled up with zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PartNormKernel {
    /// Values that are normed.
    pub cols: u32,
    /// Values per input row.
    pub width: u32,
    /// Values per output row; those behind `cols` are zeros.
    pub padded: u32,
    /// Bits of `eps`, added to the mean square.
    pub eps_bits: u32,
}

/// Queries of latent attention before they are brought into the space of the latent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LatentQueriesKernel {
    /// Query heads.
    pub heads: u32,
    /// Dimensions of a head that are not rotated; they come first.
    pub still: u32,
    /// Dimensions of a head that RoPE rotates.
    pub rotary: u32,
    /// Width of the latent.
    pub rank: u32,
    /// Values per input row; those of all heads come first.
    pub width: u32,
    /// Values per row of unrotated dimensions; those behind `still` are zeros.
    pub padded: u32,
    /// Dimension pairing.
    pub layout: RopeLayout,
    /// Queries are multiplied by a factor of their position;
    /// [`Gpu::latent_queries`](crate::Gpu::latent_queries) sets it.
    pub scaled: bool,
}

/// Keys of latent attention: the rotated part and the normed latent, written to their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LatentKeysKernel {
    /// Dimensions that RoPE rotates; in the blocks they come first.
    pub rotary: u32,
    /// Width of the latent; in the input it comes first.
    pub rank: u32,
    /// Values per input row.
    pub width: u32,
    /// Offset of the latent in an input row.
    pub first: u32,
    /// Dimension pairing.
    pub layout: RopeLayout,
    /// Bits of `eps`, added to the mean square.
    pub eps_bits: u32,
    /// Format of keys; [`Gpu::latent_keys`](crate::Gpu::latent_keys) sets that of the blocks.
    pub format: KvFormat,
}

impl PartNormKernel {
    pub(crate) fn name(&self) -> String {
        let Self { cols, width, padded, eps_bits } = self;
        format!("part_norm_{cols}of{width}to{padded}_{eps_bits:x}")
    }
}

impl LatentQueriesKernel {
    pub(crate) fn name(&self) -> String {
        let Self { heads, still, rotary, rank, width, padded, .. } = self;
        let layout = format!("{:?}", self.layout).to_lowercase();
        let scaled = if self.scaled { "_scaled" } else { "" };
        format!("latent_queries_{layout}_{heads}x{still}to{padded}and{rotary}of{width}_{rank}{scaled}")
    }

    /// Values that a launch writes per head.
    pub(crate) fn written(&self) -> u32 {
        self.padded + self.rotary
    }

    /// Values of a head in the space of the latent.
    pub(crate) fn head_dim(&self) -> u32 {
        self.rotary + self.rank
    }
}

impl LatentKeysKernel {
    pub(crate) fn name(&self) -> String {
        let Self { rotary, rank, width, first, eps_bits, .. } = self;
        let (layout, format) = (format!("{:?}", self.layout).to_lowercase(), self.format.suffix());
        format!("latent_keys_{layout}_{rotary}and{rank}_at{first}of{width}_{eps_bits:x}{format}")
    }

    /// Values of a key.
    pub(crate) fn head_dim(&self) -> u32 {
        self.rotary + self.rank
    }
}
