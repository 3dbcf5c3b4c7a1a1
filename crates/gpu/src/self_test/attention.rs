//! Attention over paged keys and values, RoPE with KV write.

use std::ops::Range;

use half::f16;

use super::rows::{Turns, check_quantized};
use super::{EPSILON, Report, output, poisoned, same_bits, worst};
use crate::attention::{KvBlocks, KvRows, Sequences};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kernel::{
    AttentionKernel, KV_BLOCK_TOKENS, Kernel, RopeKernel, RopeKvKernel, RopeLayout, TiledAttentionKernel,
};
use crate::reference::Random;
use crate::rows::{Quantized, RowOutput};

const BLOCK: usize = KV_BLOCK_TOKENS as usize;

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    // One, two and many splits.
    let blocks = [8, 16, 4 * random.range(5, 12) as usize][random.range(0, 2) as usize];
    let case = Case::new(random, blocks);
    attention(gpu, random, report, &case)?;
    tiled(gpu, random, report, case)?;
    let layout = [RopeLayout::Halves, RopeLayout::Interleaved][random.range(0, 1) as usize];
    rope_kv(gpu, random, report, layout)
}

/// Keys and values per sequence, rounded to f16.
struct Case {
    key: AttentionKernel,
    /// Blocks per sequence in the table.
    room: usize,
    positions: Vec<u32>,
    /// First token in the blocks, if not the first visible one.
    from: Option<usize>,
    queries: Vec<f32>,
    /// Per sequence `[tokens, kv_heads, head_dim]`.
    keys: Vec<Vec<f16>>,
    values: Vec<Vec<f16>>,
}

impl Case {
    fn new(random: &mut Random, room: usize) -> Self {
        let kv_heads = random.range(1, 3);
        let group = [1, 2, 3, 4, 8, 11, 16][random.range(0, 6) as usize];
        let head_dim = [32, 64, 96, 128, 160, 256, 16, 24][random.range(0, 7) as usize];
        let mut key = AttentionKernel::new(group * kv_heads, kv_heads, head_dim);
        if random.range(0, 1) == 0 {
            key = key.window(random.range(1, 700));
        }
        if random.range(0, 1) == 0 {
            key = key.soft_cap(2.0).scale(0.3);
        }
        // Divisors of the group, or the choice for the batch.
        key.workgroup_heads = [None, Some(1), (group % 2 == 0).then_some(2), (group <= 4).then_some(group)]
            [random.range(0, 3) as usize];
        let sequences = random.range(1, 3);
        let last = (room * BLOCK) as u32 - 1;
        let mut positions: Vec<u32> = (0..sequences).map(|_| random.range(0, last)).collect();
        positions[0] = last;
        let queries = random.values((sequences * key.heads * head_dim) as usize);
        let mut halves = |&position: &u32| -> Vec<f16> {
            let n = (position + 1) * kv_heads * head_dim;
            random.values(n as usize).into_iter().map(f16::from_f32).collect()
        };
        let keys = positions.iter().map(&mut halves).collect();
        let values = positions.iter().map(&mut halves).collect();
        Self { key, room, positions, from: None, queries, keys, values }
    }

    /// First visible token of a sequence.
    fn begin(&self, sequence: usize) -> usize {
        let end = self.positions[sequence] + 1;
        end.saturating_sub(self.key.window.unwrap_or(end)) as usize
    }

    /// Uploads blocks and tables of some sequences: blocks in random order, invisible values NaN,
    /// tables without entries beyond the position.
    fn upload(
        &self,
        gpu: &Gpu,
        random: &mut Random,
        chosen: &[usize],
        room: usize,
    ) -> Result<(KvBlocks, Sequences)> {
        let (kv_heads, dim) = (self.key.kv_heads as usize, self.key.head_dim as usize);
        let pool = chosen.len() * room + 3;
        let mut free: Vec<u32> = (0..pool as u32).collect();
        let mut table = vec![u32::MAX; chosen.len() * room];
        let mut keys = vec![f16::NAN; pool * BLOCK * kv_heads * dim];
        let mut values = keys.clone();
        for (row, &sequence) in chosen.iter().enumerate() {
            let end = self.positions[sequence] as usize + 1;
            let begin = self.from.unwrap_or_else(|| self.begin(sequence));
            for entry in &mut table[row * room + begin / BLOCK..row * room + end.div_ceil(BLOCK)] {
                *entry = free.swap_remove(random.range(0, free.len() as u32 - 1) as usize);
            }
            for token in begin..end {
                let (block, offset) = (table[row * room + token / BLOCK] as usize, token % BLOCK);
                for (at, head) in (0..kv_heads).map(|head| (block * kv_heads + head, head)) {
                    let from = (token * kv_heads + head) * dim;
                    values[(at * BLOCK + offset) * dim..][..dim]
                        .copy_from_slice(&self.values[sequence][from..][..dim]);
                    for (word, eight) in self.keys[sequence][from..][..dim].chunks_exact(8).enumerate() {
                        let to = ((at * dim / 8 + word) * BLOCK + offset) * 8;
                        keys[to..][..8].copy_from_slice(eight);
                    }
                }
            }
        }
        let bits = |halves: &[f16]| halves.iter().map(|h| h.to_bits()).collect::<Vec<u16>>();
        let kv = KvBlocks::new(gpu, pool as u32, self.key.kv_heads, self.key.head_dim)?;
        gpu.write(kv.keys(), &bits(&keys))?;
        gpu.write(kv.values(), &bits(&values))?;
        let positions: Vec<u32> = chosen.iter().map(|&sequence| self.positions[sequence]).collect();
        Ok((kv, Sequences { positions: gpu.upload(&positions)?, table: gpu.upload(&table)? }))
    }

    /// Runs some sequences; f32 or 8 bits.
    fn run(
        &self,
        gpu: &Gpu,
        random: &mut Random,
        chosen: &[usize],
        room: usize,
        out: &RowOutput,
    ) -> Result<()> {
        let width = (self.key.heads * self.key.head_dim) as usize;
        let (kv, sequences) = self.upload(gpu, random, chosen, room)?;
        let rows: Vec<&[f32]> = chosen.iter().map(|s| &self.queries[s * width..][..width]).collect();
        let queries = gpu.upload(&rows.concat())?;
        let bytes = self.key.scratch_bytes(chosen.len() as u32, (room * BLOCK) as u32);
        let scratch = poisoned(gpu, bytes as usize / 4)?;
        let launches = gpu.attention(self.key, &queries, &kv, &sequences, &scratch, out)?;
        gpu.run(&launches.iter().collect::<Vec<_>>())
    }

    /// Runs some rows of one sequence, with other blocks each time.
    fn run_tiled(
        &self,
        gpu: &Gpu,
        random: &mut Random,
        tile: TiledAttentionKernel,
        rows: Range<usize>,
    ) -> Result<Vec<f32>> {
        let width = (self.key.heads * self.key.head_dim) as usize;
        // More room in the table: partial results of a single split have the same bits.
        let room = self.room + 4 * random.range(0, 2) as usize;
        let longest = (0..self.positions.len()).max_by_key(|row| self.positions[*row]).unwrap_or(0);
        let (kv, Sequences { table, .. }) = self.upload(gpu, random, &[longest], room)?;
        let sequences = Sequences { positions: gpu.upload(&self.positions[rows.clone()])?, table };
        let queries = gpu.upload(&self.queries[rows.start * width..rows.end * width])?;
        let bytes = tile.attention.scratch_bytes(rows.len() as u32, (room * BLOCK) as u32);
        let (scratch, out) = (poisoned(gpu, bytes as usize / 4)?, poisoned(gpu, rows.len() * width)?);
        let launches = gpu.tiled_attention(tile, &queries, &kv, &sequences, &scratch, &out.clone().into())?;
        output(gpu, &launches.iter().collect::<Vec<_>>(), &out)
    }

    /// Outputs in float64, and their bounds; `tiled`: those with cooperative matrices.
    fn exact(&self, tiled: bool) -> (Vec<f64>, Vec<f64>) {
        let AttentionKernel { heads, kv_heads, head_dim, .. } = self.key;
        let dim = head_dim as usize;
        let scale = f64::from(f32::from_bits(self.key.scale_bits));
        let cap = self.key.soft_cap_bits.map(|cap| f64::from(f32::from_bits(cap)));
        let (mut exact, mut bounds) = (Vec::new(), Vec::new());
        for (row, query) in self.queries.chunks_exact(dim).enumerate() {
            let (sequence, head) = (row / heads as usize, row % heads as usize / (heads / kv_heads) as usize);
            let tokens = self.begin(sequence)..self.positions[sequence] as usize + 1;
            let at = |token: usize| (token * kv_heads as usize + head) * dim;
            let (mut scores, mut largest) = (Vec::new(), 0.0_f64);
            for token in tokens.clone() {
                let key = &self.keys[sequence][at(token)..][..dim];
                let products = || query.iter().zip(key).map(|(&q, k)| f64::from(q) * k.to_f64() * scale);
                let score: f64 = products().sum();
                scores.push(cap.map_or(score, |cap| cap * (score / cap).tanh()));
                largest = largest.max(products().map(f64::abs).sum());
            }
            let peak = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let weights: Vec<f64> = scores.iter().map(|s| (s - peak).exp()).collect();
            let total: f64 = weights.iter().sum();
            let capped = largest + 128.0 * cap.unwrap_or(0.0);
            let (n, sum) = (tokens.len() as f64, (f64::from(head_dim) + 8.0) * capped);
            let (factor, rest) = if tiled {
                let rounding = 2.0 * (largest * 0.5_f64.powi(11) + sum * 2.0 * EPSILON);
                (rounding + 0.5_f64.powi(10) + (n + 64.0) * 2.0 * EPSILON, 0.5_f64.powi(33))
            } else {
                ((sum + n / 64.0 + 64.0) * EPSILON, 0.0)
            };
            for d in 0..dim {
                let value = |token| self.values[sequence][at(token) + d].to_f64();
                let terms =
                    || weights.iter().zip(tokens.clone()).map(move |(w, token)| w / total * value(token));
                exact.push(terms().sum());
                let all: f64 = tokens.clone().map(|token| value(token).abs()).sum();
                bounds.push(factor * terms().map(f64::abs).sum::<f64>() + rest * all);
            }
        }
        (exact, bounds)
    }
}

fn attention(gpu: &Gpu, random: &mut Random, report: &mut Report, case: &Case) -> Result<()> {
    let AttentionKernel { heads, kv_heads, head_dim, window, .. } = case.key;
    let width = heads * head_dim;
    let text = format!(
        "{heads} heads of {head_dim}, {kv_heads} KV heads, positions {:?}, window {window:?}",
        case.positions
    );
    let name = if case.room == 8 { "attention, one split" } else { "attention" };
    let all: Vec<usize> = (0..case.positions.len()).collect();
    let out = poisoned(gpu, all.len() * width as usize)?;
    case.run(gpu, random, &all, case.room, &out.clone().into())?;
    let found: Vec<f32> = gpu.download(&out)?;
    let (exact, bounds) = case.exact(false);
    report.add(name.to_owned(), &text, worst(&found, &exact, |i| bounds[i]));

    // Other blocks, more room in the table, no neighbours.
    let sequence = random.range(0, all.len() as u32 - 1) as usize;
    let out = poisoned(gpu, width as usize)?;
    case.run(gpu, random, &[sequence], case.room + 4, &out.clone().into())?;
    let alone: Vec<f32> = gpu.download(&out)?;
    let equal = same_bits(&alone, &found[sequence * width as usize..][..width as usize]);
    report.add_equal(format!("{name}: sequence alone"), &text, equal);

    one_sequence(gpu, random, report, case, &found)?;
    if head_dim % 32 != 0 {
        return Ok(());
    }
    let quantized = Quantized::new(gpu, all.len() as u32, width)?;
    case.run(gpu, random, &all, case.room, &quantized.clone().into())?;
    check_quantized(gpu, report, &format!("{name} to 8 bits"), &quantized, &found)
}

/// Several queries of one sequence over one row of the table: the bits of each alone.
fn one_sequence(
    gpu: &Gpu,
    random: &mut Random,
    report: &mut Report,
    case: &Case,
    found: &[f32],
) -> Result<()> {
    let width = (case.key.heads * case.key.head_dim) as usize;
    let (kv, Sequences { table, .. }) = case.upload(gpu, random, &[0], case.room)?;
    let last = case.positions[0];
    // The last query, an earlier one whose window has begun, and the last one again.
    let positions = [last, random.range(case.begin(0) as u32, last), last];
    let queries = gpu.upload(&case.queries[..width].repeat(3))?;
    let key = case.key.one_sequence();
    let sequences = Sequences { positions: gpu.upload(&positions)?, table };
    let bytes = key.scratch_bytes(3, (case.room * BLOCK) as u32);
    let (scratch, out) = (poisoned(gpu, bytes as usize / 4)?, poisoned(gpu, 3 * width)?);
    let launches = gpu.attention(key, &queries, &kv, &sequences, &scratch, &out.clone().into())?;
    let rows = output(gpu, &launches.iter().collect::<Vec<_>>(), &out)?;
    let text = format!("positions {positions:?}");
    let equal = [0, 2].iter().all(|row| same_bits(&rows[row * width..][..width], &found[..width]));
    report.add_equal("attention of one sequence".to_owned(), &text, equal);
    Ok(())
}

/// Rows of the first sequence at once with cooperative matrices, or their products written out.
fn tiled(gpu: &Gpu, random: &mut Random, report: &mut Report, case: Case) -> Result<()> {
    let AttentionKernel { heads, kv_heads, head_dim, window, .. } = case.key;
    let tile = |own, queries| {
        let attention = AttentionKernel { workgroup_heads: Some(own), ..case.key.one_sequence() };
        TiledAttentionKernel { attention, queries }
    };
    let runs = |tile: &TiledAttentionKernel| Kernel::TiledAttention(*tile).check(gpu.info()).is_ok();
    let owns = [1, 2, 4, 8].into_iter().filter(|own| (heads / kv_heads).is_multiple_of(*own));
    let mut tiles: Vec<_> = owns.flat_map(|own| [16, 32, 64].map(|queries| tile(own, queries))).collect();
    tiles.retain(runs);
    if tiles.is_empty() {
        return Ok(());
    }
    // Consecutive positions up to the last one, and an earlier one as of a row that fills up.
    let last = case.positions[0];
    let rows = random.range(1, 40).min(last + 1);
    let mut positions: Vec<u32> = (last + 1 - rows..=last).collect();
    positions.push(last + 1 - rows);
    let rows = positions.len();
    // Large scores replace the reference of the exponentials.
    let gain = [1.0, 16.0][random.range(0, 1) as usize];
    let queries = random.values(rows * (heads * head_dim) as usize);
    let mut all = Case {
        queries: queries.into_iter().map(|q| q * gain).collect(),
        keys: vec![case.keys[0].clone(); rows],
        values: vec![case.values[0].clone(); rows],
        positions,
        ..case
    };
    all.from = (0..rows).map(|row| all.begin(row)).min();
    let first = tiles[random.range(0, tiles.len() as u32 - 1) as usize];
    let found = all.run_tiled(gpu, random, first, 0..rows)?;
    let text = format!(
        "{heads} heads of {head_dim}, {kv_heads} KV heads, {rows} rows to {last}, window {window:?}, {} queries of {:?}",
        first.queries, first.attention.workgroup_heads
    );
    let name = "attention, cooperative".to_owned();
    let (exact, bounds) = all.exact(true);
    report.add(name.clone(), &text, worst(&found, &exact, |i| bounds[i]));

    let other = tiles[random.range(0, tiles.len() as u32 - 1) as usize];
    let equal = same_bits(&all.run_tiled(gpu, random, other, 0..rows)?, &found);
    report.add_equal(format!("{name}: another tile"), &text, equal);
    let row = random.range(0, rows as u32 - 1) as usize;
    let alone = all.run_tiled(gpu, random, other, row..row + 1)?;
    let width = (heads * head_dim) as usize;
    report.add_equal(format!("{name}: row alone"), &text, same_bits(&alone, &found[row * width..][..width]));
    Ok(())
}

fn rope_kv(gpu: &Gpu, random: &mut Random, report: &mut Report, layout: RopeLayout) -> Result<()> {
    let head_dim = 8 * random.range(1, 16);
    let rotary_dim = 2 * random.range(1, head_dim / 2);
    let rope = RopeKernel { heads: random.range(1, 9), head_dim, rotary_dim, layout };
    let kv_heads = random.range(1, 3);
    let (rows, blocks) = (random.range(1, 5) as usize, 3);
    let (dim, all) = (head_dim as usize, (rope.heads + 2 * kv_heads) as usize);
    let turns = Turns::new(random, rows, rotary_dim);
    // Distinct slots.
    let first = random.range(0, 6);
    let slots: Vec<u32> = (0..rows as u32).map(|row| first + row * 17).collect();
    let qkv = random.values(rows * all * dim);
    let kv = KvBlocks::new(gpu, blocks, kv_heads, head_dim)?;
    let untouched = f16::from_f32(-7.0).to_bits();
    gpu.fill(kv.keys(), &[untouched; 2])?;
    gpu.fill(kv.values(), &[untouched; 2])?;
    let queries = poisoned(gpu, rows * rope.heads as usize * dim)?;
    let key = RopeKvKernel { rope, kv_heads };
    let (angles, positions) = turns.upload(gpu)?;
    let kv_rows = KvRows { positions, slots: gpu.upload(&slots)? };
    let launch = gpu.rope_kv(key, &gpu.upload(&qkv)?, &angles, &kv_rows, &kv, &queries)?;
    let queries = output(gpu, &[&launch], &queries)?;
    let halves = |buffer| -> Result<Vec<f32>> {
        Ok(gpu.download::<u16>(buffer)?.into_iter().map(|bits| f16::from_bits(bits).to_f32()).collect())
    };
    let (keys, values) = (halves(kv.keys())?, halves(kv.values())?);

    let (mut exact_queries, mut query_bounds) = (Vec::new(), Vec::new());
    let mut exact_keys = vec![-7.0; keys.len()];
    let mut key_bounds = vec![0.0; keys.len()];
    let (mut exact_values, mut value_bounds) = (exact_keys.clone(), key_bounds.clone());
    let rounding = |value: f64| value.abs() / 1024.0 + 6e-8;
    for (index, head) in qkv.chunks_exact(dim).enumerate() {
        let (row, head_index) = (index / all, index % all);
        let (exact, bounds) = turns.rotate(row, head, layout);
        let slot = slots[row] as usize;
        let (block, offset) = (slot / BLOCK * kv_heads as usize, slot % BLOCK);
        let Some(kv_head) = head_index.checked_sub(rope.heads as usize) else {
            exact_queries.extend(exact);
            query_bounds.extend(bounds);
            continue;
        };
        for d in 0..dim {
            if let Some(kv_head) = kv_head.checked_sub(kv_heads as usize) {
                let at = ((block + kv_head) * BLOCK + offset) * dim + d;
                exact_values[at] = head[d].into();
                value_bounds[at] = rounding(head[d].into());
            } else {
                let at = (((block + kv_head) * dim / 8 + d / 8) * BLOCK + offset) * 8 + d % 8;
                exact_keys[at] = exact[d];
                key_bounds[at] = bounds[d] + rounding(exact[d]);
            }
        }
    }
    let text = format!("{rows} x {} + 2 x {kv_heads} heads of {head_dim}, rotary {rotary_dim}", rope.heads);
    let name = format!("rope_kv {layout:?}").to_lowercase();
    report.add(format!("{name}: queries"), &text, worst(&queries, &exact_queries, |i| query_bounds[i]));
    report.add(format!("{name}: keys"), &text, worst(&keys, &exact_keys, |i| key_bounds[i]));
    report.add(format!("{name}: values"), &text, worst(&values, &exact_values, |i| value_bounds[i]));
    Ok(())
}
