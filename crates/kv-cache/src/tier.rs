//! Formats, layouts and number of the blocks of one tier.

use std::sync::atomic::{AtomicUsize, Ordering};

use ruvllm_kernels::attention::{KvBlock, KvLayout, KvPlane, KvPlaneMut, KvRole, NuqContext};

use crate::error::Result;
use crate::policy::KvFormats;
use crate::shape::KvShape;

/// Formats, layouts and number of the blocks of one tier.
pub(crate) struct Tier {
    pub(crate) formats: KvFormats,
    shape: KvShape,
    /// Layouts of each group of layers.
    layouts: Vec<LayerLayout>,
    /// Bytes of a block, all layers together.
    block_bytes: usize,
    blocks: AtomicUsize,
}

/// Layout of the keys and values of one layer in a tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerLayout {
    keys: KvLayout,
    /// `None` where values are keys.
    values: Option<KvLayout>,
}

impl Tier {
    pub(crate) fn new(shape: KvShape, formats: KvFormats, block_tokens: usize) -> Result<Self> {
        let layouts = shape.groups().map(|group| LayerLayout::new(group, formats, block_tokens));
        let block_bytes = formats.block_bytes(shape, block_tokens)?;
        let layouts = layouts.collect::<Result<_>>()?;
        Ok(Self { formats, shape, layouts, block_bytes, blocks: AtomicUsize::new(0) })
    }

    /// Layout of a layer.
    pub(crate) fn layout(&self, layer: usize) -> &LayerLayout {
        &self.layouts[self.shape.group_of(layer)]
    }

    /// Layouts of each group of layers.
    pub(crate) fn layouts(&self) -> &[LayerLayout] {
        &self.layouts
    }

    /// Bytes of a block, all layers together.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Number of blocks in the tier.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Counts a block that enters the tier.
    pub(crate) fn count_block(&self) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a block that leaves the tier.
    pub(crate) fn discount_block(&self) {
        self.blocks.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LayerLayout {
    fn new(shape: KvShape, formats: KvFormats, block_tokens: usize) -> Result<Self> {
        let layout = |format| KvLayout::new(format, shape.n_kv_heads, block_tokens, shape.head_dim);
        let keys = layout(formats.keys)?;
        let values = (!shape.values_are_keys).then(|| layout(formats.values)).transpose()?;
        Ok(Self { keys, values })
    }

    /// Bytes of the keys and the values.
    pub(crate) fn bytes(&self) -> usize {
        self.keys.plane_bytes().saturating_add(self.values.map_or(0, |values| values.plane_bytes()))
    }

    /// True if keys are stored without RoPE, by a calibration.
    pub(crate) fn keys_need_calibration(&self) -> bool {
        self.keys.format().needs_calibration()
    }

    /// Planes of the keys and the values in a block, to be read.
    pub(crate) fn planes<'a>(&self, bytes: &'a [u8], nuq: Option<NuqContext<'a>>) -> KvBlock<'a> {
        let (keys, values) = bytes.split_at(self.keys.plane_bytes());
        let keys = KvPlane::new(self.keys, KvRole::Keys, keys).with_nuq(nuq);
        match self.values {
            Some(layout) => {
                KvBlock { keys, values: KvPlane::new(layout, KvRole::Values, values).with_nuq(nuq) }
            }
            None => KvBlock::of_keys(keys),
        }
    }

    /// Planes of the keys and the values in a block, to be written.
    pub(crate) fn planes_mut<'a>(&self, bytes: &'a mut [u8]) -> (KvPlaneMut<'a>, Option<KvPlaneMut<'a>>) {
        let (keys, values) = bytes.split_at_mut(self.keys.plane_bytes());
        let values = self.values.map(|layout| KvPlaneMut::new(layout, KvRole::Values, values));
        (KvPlaneMut::new(self.keys, KvRole::Keys, keys), values)
    }
}
