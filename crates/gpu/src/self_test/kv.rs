//! RoPE with KV write, and blocks of keys and values on the host.

use half::f16;

use super::rows::Turns;
use super::{EPSILON, Report, output, poisoned, worst};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::head_key::stored_head_dim;
use crate::kernel::{RopeKernel, RopeKvKernel};
use crate::kv::{KvBlocks, KvRows, PositionTables};
use crate::kv_format::{KV_BLOCK_TOKENS, KvFormat};
use crate::reference::Random;
use crate::rope_layout::RopeLayout;

pub(super) const BLOCK: usize = KV_BLOCK_TOKENS as usize;
/// Values of a scale in Q8.
const GROUP: usize = 32;

/// Part of a check's name.
pub(super) fn of_format(format: KvFormat) -> &'static str {
    match format {
        KvFormat::F16 => "",
        KvFormat::Q8 => ", q8 blocks",
    }
}

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Keys,
    Values,
}

/// Keys or values of tokens, rounded to a format: `[tokens, kv_heads, head_dim]`.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    pub(super) values: Vec<f32>,
    /// Scales in Q8, one per 32 values.
    scales: Vec<f16>,
}

impl Stored {
    pub(super) fn new(format: KvFormat, mut values: Vec<f32>) -> Self {
        match format {
            KvFormat::F16 => {
                values.iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32());
                Self { values, scales: Vec::new() }
            }
            KvFormat::Q8 => {
                let scales = values.chunks_exact_mut(GROUP).map(quantize).collect();
                Self { values, scales }
            }
        }
    }
}

/// Replaces a group by its values in Q8; returns the scale.
fn quantize(group: &mut [f32]) -> f16 {
    let scale = f16::from_f32(group.iter().fold(0.0_f32, |peak, x| peak.max(x.abs())) / 127.0);
    for value in group {
        let quant = if scale == f16::ZERO { 0.0 } else { (*value / scale.to_f32()).round() };
        *value = quant.clamp(-127.0, 127.0) * scale.to_f32();
    }
    scale
}

/// Places in the blocks of a format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) format: KvFormat,
    pub(super) kv_heads: usize,
    pub(super) dim: usize,
}

impl Layout {
    fn head_bytes(&self) -> usize {
        self.format.plane_bytes(self.dim as u32) as usize
    }

    /// Bytes of `blocks` blocks of which every value is NaN.
    pub(super) fn unset(&self, blocks: usize) -> Vec<u8> {
        let nan = f16::NAN.to_le_bytes();
        nan.into_iter().cycle().take(blocks * self.kv_heads * self.head_bytes()).collect()
    }

    /// First byte of a value, and of its scale. `slot`: `32 block + offset`.
    fn places(&self, role: Role, slot: usize, head: usize, d: usize) -> (usize, usize) {
        let first = (slot / BLOCK * self.kv_heads + head) * self.head_bytes();
        let offset = slot % BLOCK;
        let (bytes, word) = match self.format {
            KvFormat::F16 => (2, 8),
            KvFormat::Q8 => (1, 16),
        };
        let index = match role {
            Role::Keys => (d / word * BLOCK + offset) * word + d % word,
            Role::Values => offset * self.dim + d,
        };
        let group = d / GROUP;
        let scale = BLOCK * self.dim * bytes + (group / 2 * BLOCK + offset) * 4 + group % 2 * 2;
        (first + index * bytes, first + scale)
    }

    /// Stores the row of a token and head, its index in `stored`.
    pub(super) fn put(&self, bytes: &mut [u8], role: Role, slot: usize, stored: &Stored, row: usize) {
        let head = row % self.kv_heads;
        for d in 0..self.dim {
            let (at, scale_at) = self.places(role, slot, head, d);
            let value = stored.values[row * self.dim + d];
            match self.format {
                KvFormat::F16 => bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                KvFormat::Q8 => {
                    let scale = stored.scales[(row * self.dim + d) / GROUP];
                    let quant = if scale == f16::ZERO { 0.0 } else { (value / scale.to_f32()).round() };
                    bytes[at] = quant as i8 as u8;
                    bytes[scale_at..scale_at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
        }
    }

    /// A value of the blocks.
    fn get(&self, bytes: &[u8], role: Role, slot: usize, head: usize, d: usize) -> f32 {
        let (at, scale_at) = self.places(role, slot, head, d);
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        match self.format {
            KvFormat::F16 => half(at),
            KvFormat::Q8 => f32::from(bytes[at] as i8) * half(scale_at),
        }
    }

    /// All values of the blocks, `[slots, kv_heads, head_dim]`.
    pub(super) fn values(&self, bytes: &[u8], role: Role) -> Vec<f32> {
        let slots = bytes.len() / self.head_bytes() / self.kv_heads * BLOCK;
        let heads = (0..slots).flat_map(|slot| (0..self.kv_heads).map(move |head| (slot, head)));
        heads
            .flat_map(|(slot, head)| (0..self.dim).map(move |d| (slot, head, d)))
            .map(|(slot, head, d)| self.get(bytes, role, slot, head, d))
            .collect()
    }

    /// Largest error of a stored value, of which the row that is stored has errors already.
    pub(super) fn error(&self, exact: &[f64], bounds: &[f64], d: usize) -> f64 {
        match self.format {
            KvFormat::F16 => bounds[d] + exact[d].abs() / 1024.0 + 6e-8,
            KvFormat::Q8 => {
                let group = d / GROUP * GROUP..(d / GROUP + 1) * GROUP;
                let peak = group.map(|d| exact[d].abs() + bounds[d]).fold(0.0, f64::max);
                let unit = 0.5_f64.powi(24);
                let scale = peak / 127.0 * (1.0 + 1.0 / 1024.0) + unit;
                bounds[d] + scale * (0.5 + 1.0 / 4096.0) + 127.0 * unit
            }
        }
    }
}

/// Expected values, and their bounds.
#[derive(Debug, Default)]
pub(super) struct Expected {
    pub(super) exact: Vec<f64>,
    pub(super) bounds: Vec<f64>,
}

impl Expected {
    /// Values that must not change.
    pub(super) fn unchanged(values: Vec<f32>) -> Self {
        let exact: Vec<f64> = values.into_iter().map(f64::from).collect();
        Self { bounds: vec![0.0; exact.len()], exact }
    }
}

/// Inputs of a write.
struct Write {
    rope: RopeKernel,
    places: Layout,
    turns: Turns,
    /// Of queries by position, in half of the cases.
    factors: Option<Vec<f32>>,
    slots: Vec<u32>,
    /// `[rows, heads + 2 kv_heads, head_dim]`, in heads that are not filled up.
    qkv: Vec<f32>,
}

impl Write {
    fn new(random: &mut Random, layout: RopeLayout, format: KvFormat) -> Self {
        let head_dim = match format {
            // Also heads that are filled up.
            KvFormat::F16 => random.range(1, 4) * 2 * random.range(1, 16),
            KvFormat::Q8 => 32 * random.range(1, 5),
        };
        let rotary_dim = 2 * random.range(1, head_dim / 2);
        let rope = RopeKernel { heads: random.range(1, 9), head_dim, rotary_dim, layout };
        let kv_heads = random.range(1, 3) as usize;
        let places = Layout { format, kv_heads, dim: stored_head_dim(head_dim) as usize };
        let rows = random.range(1, 5);
        let turns = Turns::new(random, rows as usize, rotary_dim);
        // Distinct slots.
        let first = random.range(0, 6);
        let slots = (0..rows).map(|row| first + row * 17).collect();
        let heads = rope.heads as usize + 2 * places.kv_heads;
        let qkv = random.values(rows as usize * heads * head_dim as usize);
        let factors = (random.range(0, 1) == 0).then(|| random.values(100));
        Self { rope, places, turns, factors, slots, qkv }
    }

    /// Queries, keys and values after the write; `before`: the blocks of keys and of values.
    fn expected(&self, before: [Vec<f32>; 2]) -> [Expected; 3] {
        let (heads, kv_heads, dim) = (self.rope.heads as usize, self.places.kv_heads, self.places.dim);
        let mut queries = Expected::default();
        let mut blocks = before.map(Expected::unchanged);
        for (index, head) in self.qkv.chunks_exact(self.rope.head_dim as usize).enumerate() {
            let (row, head_index) = (index / (heads + 2 * kv_heads), index % (heads + 2 * kv_heads));
            let (mut exact, mut bounds) = self.turns.rotate(row, head, self.rope.layout);
            exact.resize(dim, 0.0);
            bounds.resize(dim, 0.0);
            let Some(kv_head) = head_index.checked_sub(heads) else {
                let factor =
                    self.factors.as_ref().map(|factors| f64::from(factors[self.turns.position(row)]));
                for (value, bound) in exact.into_iter().zip(bounds) {
                    let rounding = factor.map_or(0.0, |factor| (factor * value).abs() * EPSILON);
                    let factor = factor.unwrap_or(1.0);
                    queries.exact.push(factor * value);
                    queries.bounds.push(factor.abs() * bound + rounding);
                }
                continue;
            };
            let (role, kv_head) = (kv_head / kv_heads, kv_head % kv_heads);
            if role == 1 {
                exact = head.iter().map(|&x| x.into()).collect();
                exact.resize(dim, 0.0);
                bounds = vec![0.0; dim];
            }
            let at = (self.slots[row] as usize * kv_heads + kv_head) * dim;
            for d in 0..dim {
                blocks[role].exact[at + d] = exact[d];
                blocks[role].bounds[at + d] = self.places.error(&exact, &bounds, d);
            }
        }
        let [keys, values] = blocks;
        [queries, keys, values]
    }
}

pub(super) fn rope_kv(
    gpu: &Gpu,
    random: &mut Random,
    report: &mut Report,
    layout: RopeLayout,
    format: KvFormat,
) -> Result<()> {
    report.begin_shape();
    let write = Write::new(random, layout, format);
    let Write { rope, places, turns, factors, slots, qkv } = &write;
    let (rows, kv_heads) = (slots.len(), places.kv_heads as u32);
    let kv = KvBlocks::new(gpu, format, 3, kv_heads, places.dim as u32)?;
    let untouched = f16::from_f32(-7.0).to_bits();
    gpu.fill(kv.keys(), &[untouched; 2])?;
    let values = kv.values().expect("blocks have values");
    gpu.fill(values, &[untouched; 2])?;
    let blocks = || -> Result<[Vec<f32>; 2]> {
        let keys = places.values(&gpu.download(kv.keys())?, Role::Keys);
        Ok([keys, places.values(&gpu.download(values)?, Role::Values)])
    };
    let before = blocks()?;
    let queries = poisoned(gpu, rows * rope.heads as usize * places.dim)?;
    let key = RopeKvKernel { rope: *rope, kv_heads, format, scaled: false };
    let (angles, positions) = turns.upload(gpu)?;
    let kv_rows = KvRows { positions, slots: gpu.upload(slots)? };
    let factors = factors.as_ref().map(|factors| gpu.upload(factors)).transpose()?;
    let tables = PositionTables { angles: &angles, factors: factors.as_ref() };
    let launch = gpu.rope_kv(key, &gpu.upload(qkv)?, tables, &kv_rows, &kv, &queries)?;
    let queries = output(gpu, &[&launch], &queries)?;
    let [keys, values] = blocks()?;
    let RopeKernel { heads, head_dim, rotary_dim, .. } = rope;
    let text = format!("{rows} x {heads} + 2 x {kv_heads} heads of {head_dim}, rotary {rotary_dim}");
    let of_factors = if factors.is_some() { ", scaled" } else { "" };
    let name = format!("rope_kv {layout:?}{}{of_factors}", of_format(format)).to_lowercase();
    let parts = [("queries", queries), ("keys", keys), ("values", values)];
    for ((part, found), Expected { exact, bounds }) in parts.into_iter().zip(write.expected(before)) {
        report.add(format!("{name}: {part}"), &text, worst(&found, &exact, |i| bounds[i]));
    }
    Ok(())
}
