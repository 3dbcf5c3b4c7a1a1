//! A sequence beside the tokens it should hold. A token's keys and values follow from its id, so
//! every number in every block can be checked at any time: exactly while it was never quantized,
//! within the format's step otherwise.

use std::sync::Arc;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::{
    KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole, KvScratch, NuqCodebooks,
};
use ruvllm_kernels::rope::{RopeConfig, RopeLayout};
use ruvllm_kv_cache::{
    Block, KvCalibration, KvFormats, KvRope, KvRopes, KvShape, KvStep, KvStore, Result, Sequence,
};
use ruvllm_memory::{PagePool, PoolConfig};

pub(crate) const SHAPE: KvShape = KvShape::new(2, 2, 32);

/// A pool of `pages` pages of 512 KiB.
pub(crate) fn pool(pages: usize) -> PagePool {
    let page_bytes = 512 << 10;
    PagePool::new(PoolConfig { page_bytes, ..PoolConfig::new(pages * page_bytes) }).expect("a pool")
}

pub(crate) fn store(policy: &str, pool: &PagePool) -> KvStore {
    KvStore::new(SHAPE, &policy.parse().expect(policy), pool).expect(policy)
}

/// A calibration for numbers in [-1, 1] that were turned.
pub(crate) fn calibration(shape: KvShape) -> Arc<KvCalibration> {
    let levels = [-0.93, -0.66, -0.4, -0.13, 0.13, 0.4, 0.66, 0.93];
    let layer =
        NuqCodebooks::new(levels, levels, vec![[-1.5, 1.5]; shape.width()]).expect("ascending levels");
    let layers = vec![layer; shape.n_layers];
    Arc::new(KvCalibration::new([0; 32], shape, layers).expect("a calibration"))
}

fn rope(base: f64) -> KvRope {
    let frequencies = RopeConfig::new(base, SHAPE.head_dim).frequencies(1).expect("a rotary embedding");
    KvRope { frequencies, layout: RopeLayout::Halves }
}

pub(crate) fn ropes() -> KvRopes {
    rope(10_000.0).into()
}

/// Another embedding for the first layer, and one for sequences that may become longer than 500
/// tokens.
pub(crate) fn several_ropes() -> KvRopes {
    KvRopes { local: Some((rope(100.0), vec![true, false])), long: Some((500, rope(1e6))), ..ropes() }
}

/// A store for policies with `nuq3`.
pub(crate) fn calibrated_store(policy: &str, pool: &PagePool) -> KvStore {
    let policy = policy.parse().expect(policy);
    KvStore::with_calibration(SHAPE, &policy, pool, calibration(SHAPE), &ropes()).expect("a store")
}

pub(crate) fn kernels() -> Kernels {
    Kernels::detect().expect("kernels")
}

/// A number of a token: a multiple of 1/64 in [-1, 1], which every float format holds exactly.
fn number(token: u32, role: KvRole, layer: usize, index: usize) -> f32 {
    let seed = [token as usize, usize::from(role == KvRole::Keys), layer, index]
        .into_iter()
        .fold(0x9e37_79b9_7f4a_7c15_u64, |hash, part| {
            (hash ^ part as u64).wrapping_mul(0x2127_599b_f432_5c37).rotate_left(29)
        });
    (seed % 129) as f32 / 64.0 - 1.0
}

/// The keys or values of some tokens in one layer, `[tokens, n_kv_heads, head_dim]`.
pub(crate) fn rows(tokens: &[u32], role: KvRole, layer: usize) -> Vec<f32> {
    let row = |&token: &u32| (0..SHAPE.width()).map(move |index| number(token, role, layer, index));
    tokens.iter().flat_map(row).collect()
}

/// Largest error of numbers in [-1, 1]: half a step, with what rounding scale and minimum to half
/// precision adds.
pub(crate) fn error_of(format: KvFormat) -> f32 {
    match format {
        KvFormat::F32 | KvFormat::F16 | KvFormat::BF16 => 0.0,
        KvFormat::Q8 => 0.5 / 127.0 + 1e-3,
        // With the error of the warm tier before.
        KvFormat::Kivi { bits, .. } if bits.get() == 2 => 1.0 / 3.0 + 1.0 / 15.0 + 2e-2,
        // Half the distance of two levels, times half the range of keys; both numbers of a pair
        // count when they are turned.
        KvFormat::Nuq3 => 0.135 * 1.5 * 2f32.sqrt() + 1e-2,
        // Half the widest gap between levels, 0.4 deviations of numbers that may be 0.8, and the
        // reach of the outermost level with the mean beside it.
        KvFormat::Turbo3 => 0.45,
        _ => 1.0 / 15.0 + 5e-3,
    }
}

/// A token and how far its numbers may be off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub(crate) id: u32,
    formats: Option<KvFormats>,
    error: f32,
}

impl Token {
    pub(crate) fn new(id: u32) -> Self {
        Self { id, formats: None, error: 0.0 }
    }

    /// Adds the error of formats that the token is in now.
    fn met(&mut self, formats: KvFormats) {
        if self.formats != Some(formats) {
            self.formats = Some(formats);
            self.error += error_of(formats.keys).max(error_of(formats.values));
        }
    }
}

/// A sequence and what it should hold.
pub(crate) struct Checked {
    pub(crate) sequence: Sequence,
    pub(crate) tokens: Vec<Token>,
}

impl Checked {
    pub(crate) fn new(store: &KvStore, capacity: usize) -> Self {
        Self { sequence: store.sequence(capacity), tokens: Vec::new() }
    }

    /// A step with these tokens; the sequence is unchanged if it fails.
    pub(crate) fn append(&mut self, ids: &[u32]) -> Result<()> {
        let kernels = kernels();
        self.observe();
        let mut step = self.sequence.step(&kernels, ids.len())?;
        write(&mut step, ids);
        step.commit();
        self.tokens.extend(ids.iter().map(|&id| Token::new(id)));
        Ok(())
    }

    pub(crate) fn fork(&mut self) -> Self {
        self.observe();
        Self { sequence: self.sequence.fork(), tokens: self.tokens.clone() }
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.observe();
        self.sequence.truncate(len).expect("nothing was released");
        self.tokens.truncate(len);
    }

    /// The first whole blocks with their tokens.
    pub(crate) fn prefix(&mut self, n_blocks: usize) -> (Vec<Block>, Vec<Token>) {
        self.observe();
        let blocks = self.sequence.blocks()[..n_blocks].to_vec();
        (blocks, self.tokens[..n_blocks * self.sequence.store().block_tokens()].to_vec())
    }

    /// Notes what others have made of shared blocks.
    pub(crate) fn observe(&mut self) {
        let block_tokens = self.sequence.store().block_tokens();
        let start = self.sequence.released();
        let (reader, mut views) = (self.sequence.read(), Vec::new());
        reader.view(0, &mut views);
        for (view, tokens) in
            views.iter().skip(start / block_tokens).zip(self.tokens[start..].chunks_mut(block_tokens))
        {
            let formats = KvFormats { keys: view.keys.format(), values: view.values.format() };
            tokens.iter_mut().for_each(|token| token.met(formats));
        }
    }

    /// Checks every number in every layer.
    pub(crate) fn check(&mut self) {
        self.observe();
        self.check_pinned();
    }

    /// As [`check`](Self::check), where others may migrate meanwhile: what is read is in the
    /// formats that were pinned.
    pub(crate) fn check_pinned(&mut self) {
        assert_eq!(self.sequence.len(), self.tokens.len());
        let reader = self.sequence.read();
        let block_tokens = self.sequence.store().block_tokens();
        let start = self.sequence.released();
        for layer in 0..SHAPE.n_layers {
            let mut views = Vec::new();
            let kv = reader.view(layer, &mut views);
            let tokens = self.tokens[start..].chunks_mut(block_tokens);
            for (view, tokens) in kv.blocks().iter().skip(start / block_tokens).zip(tokens) {
                let formats = KvFormats { keys: view.keys.format(), values: view.values.format() };
                tokens.iter_mut().for_each(|token| token.met(formats));
                for plane in [view.keys, view.values] {
                    check_plane(plane, layer, tokens);
                }
            }
        }
    }
}

/// Writes the keys and values of these tokens in every layer.
pub(crate) fn write(step: &mut KvStep<'_>, ids: &[u32]) {
    for layer in 0..SHAPE.n_layers {
        let (keys, values) = (rows(ids, KvRole::Keys, layer), rows(ids, KvRole::Values, layer));
        step.write(&kernels(), layer, &keys, &values);
    }
}

/// The numbers that attention would count with, as rows `[block_tokens, n_kv_heads, head_dim]`.
pub(crate) fn read_rows(plane: KvPlane<'_>) -> Vec<f32> {
    let block_tokens = plane.layout().block_tokens();
    let mut rows = vec![0.0; block_tokens * SHAPE.width()];
    let (mut of_head, scratch) = (vec![0.0; block_tokens * SHAPE.head_dim], &mut KvScratch::new());
    for head in 0..SHAPE.n_kv_heads {
        kernels().read_kv(plane, head, 0..block_tokens, &mut of_head, scratch);
        for (row, found) in rows.chunks_mut(SHAPE.width()).zip(of_head.chunks(SHAPE.head_dim)) {
            row[head * SHAPE.head_dim..][..SHAPE.head_dim].copy_from_slice(found);
        }
    }
    rows
}

/// Checks the numbers of the first tokens of a block, read and converted.
fn check_plane(plane: KvPlane<'_>, layer: usize, tokens: &[Token]) {
    let (role, format, from) = (plane.role(), plane.format(), plane.layout());
    let to = KvLayout::new(KvFormat::F32, from.n_kv_heads(), from.block_tokens(), from.head_dim());
    let to = to.expect("a layout");
    let mut exact = KvBuffer::zeroed(to.plane_bytes()).expect("memory");
    kernels().convert_kv(plane, KvPlaneMut::new(to, role, exact.as_bytes_mut()), &mut KvScratch::new());
    let found = read_rows(KvPlane::new(to, role, exact.as_bytes()));
    for (token, row) in tokens.iter().zip(found.chunks(SHAPE.width())) {
        for (index, &x) in row.iter().enumerate() {
            let expected = number(token.id, role, layer, index);
            let error = (x - expected).abs();
            assert!(error <= token.error, "{role:?} of {token:?} in {format}: {x}, not {expected}");
        }
    }
}
