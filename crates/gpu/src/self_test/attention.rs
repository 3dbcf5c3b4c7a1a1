//! Attention over paged keys and values.

use std::ops::Range;

use super::kv::{BLOCK, Layout, Role, Stored, of_format, rope_kv};
use super::rows::check_quantized;
use super::{EPSILON, Report, output, poisoned, same_bits, worst};
use crate::attention::{Queries, Sequences};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kernel::{AttentionKernel, Kernel, TiledAttentionKernel};
use crate::kv::KvBlocks;
use crate::kv_format::KvFormat;
use crate::memory::{Buffer, Memory};
use crate::reference::Random;
use crate::rope_layout::RopeLayout;
use crate::rows::{Quantized, RowOutput};

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    for format in KvFormat::ALL {
        // One, two and many splits.
        let most = random.limit(12, 6);
        let mut blocks = || [8, 16, 4 * random.range(5, most) as usize][random.range(0, 2) as usize];
        let (room, latent_room) = (blocks(), blocks());
        let case = Case::with_values_of_keys(random, format, latent_room);
        attention(gpu, random, report, &case)?;
        let case = Case::new(random, format, room);
        attention(gpu, random, report, &case)?;
        tiled(gpu, random, report, case)?;
        let layout = [RopeLayout::Halves, RopeLayout::Interleaved][random.range(0, 1) as usize];
        rope_kv(gpu, random, report, layout, format)?;
    }
    Ok(())
}

/// Keys and values per sequence, rounded to a format.
struct Case {
    key: AttentionKernel,
    /// Blocks per sequence in the table.
    room: usize,
    positions: Vec<u32>,
    /// First token in the blocks, if not the first visible one.
    from: Option<usize>,
    queries: Vec<f32>,
    /// Of the heads, in half of the cases.
    sinks: Option<Vec<f32>>,
    /// Per sequence `[tokens, kv_heads, head_dim]`.
    keys: Vec<Stored>,
    values: Vec<Stored>,
}

impl Case {
    fn new(random: &mut Random, format: KvFormat, room: usize) -> Self {
        let kv_heads = random.range(1, 3);
        let group = [1, 2, 3, 4, 8, 11, 16][random.range(0, 6) as usize];
        // The last two in F16 alone.
        let dims = if format == KvFormat::F16 { 7 } else { 5 };
        let head_dim = [32, 64, 96, 128, 160, 256, 16, 24][random.range(0, dims) as usize];
        Self::with_heads(random, (format, room), (kv_heads, group, head_dim))
    }

    /// Keys whose last dimensions are the values.
    fn with_values_of_keys(random: &mut Random, format: KvFormat, room: usize) -> Self {
        let unit = format.head_dim_multiple();
        let head_dim = [576, unit * random.range(1, 200 / unit).max(2)][random.range(0, 1) as usize];
        let group = [1, 2, 4, 16][random.range(0, 3) as usize];
        let case = Self::with_heads(random, (format, room), (1, group, head_dim));
        let first = (8 * random.range(1, head_dim / 8 - 1)).max((head_dim - 512.min(head_dim)).max(8));
        Self { key: case.key.values_from(first), values: case.keys.clone(), ..case }
    }

    fn with_heads(
        random: &mut Random,
        (format, room): (KvFormat, usize),
        (kv_heads, group, head_dim): (u32, u32, u32),
    ) -> Self {
        let mut key =
            AttentionKernel { format, ..AttentionKernel::new(group * kv_heads, kv_heads, head_dim) };
        if random.range(0, 1) == 0 {
            let tokens = random.range(1, 700);
            key = if random.range(0, 1) == 0 { key.window(tokens) } else { key.chunk(tokens) };
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
        // Far below the scores, among them, and far above.
        key.sinks = random.range(0, 1) == 0;
        let sinks = key.sinks.then(|| random.values(key.heads as usize));
        let size = [2.0, 40.0][random.range(0, 1) as usize];
        let sinks = sinks.map(|values| values.into_iter().map(|sink| sink * size).collect());
        let mut stored = |&position: &u32| {
            let n = (position + 1) * kv_heads * head_dim;
            Stored::new(format, random.values(n as usize))
        };
        let keys = positions.iter().map(&mut stored).collect();
        let values = positions.iter().map(&mut stored).collect();
        Self { key, room, positions, from: None, queries, sinks, keys, values }
    }

    /// Part of a check's name.
    fn of_sinks(&self) -> &'static str {
        match (self.key.values_from, &self.sinks) {
            (None, None) => "",
            (None, Some(_)) => ", sinks",
            (Some(_), None) => ", values of keys",
            (Some(_), Some(_)) => ", values of keys, sinks",
        }
    }

    /// Values of a row of the output.
    fn width(&self) -> usize {
        (self.key.heads * self.key.value_dim()) as usize
    }

    /// Sinks on the device.
    fn upload_sinks(&self, gpu: &Gpu) -> Result<Option<Buffer>> {
        self.sinks.as_ref().map(|sinks| gpu.upload(sinks)).transpose()
    }

    /// First visible token of a sequence.
    fn begin(&self, sequence: usize) -> usize {
        self.key.window.map_or(0, |window| window.begin(self.positions[sequence])) as usize
    }

    /// Queries of the first sequence at some positions; its blocks have the tokens that any sees.
    fn of_first(&self, queries: Vec<f32>, positions: Vec<u32>) -> Self {
        let rows = positions.len();
        let mut case = Self {
            queries,
            positions,
            sinks: self.sinks.clone(),
            keys: vec![self.keys[0].clone(); rows],
            values: vec![self.values[0].clone(); rows],
            ..*self
        };
        case.from = (0..rows).map(|row| case.begin(row)).min();
        case
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
        let AttentionKernel { kv_heads, head_dim, format, .. } = self.key;
        let places = Layout { format, kv_heads: kv_heads as usize, dim: head_dim as usize };
        let pool = chosen.len() * room + 3;
        let mut free: Vec<u32> = (0..pool as u32).collect();
        let mut table = vec![u32::MAX; chosen.len() * room];
        let [mut keys, mut values] = [places.unset(pool), places.unset(pool)];
        for (row, &sequence) in chosen.iter().enumerate() {
            let end = self.positions[sequence] as usize + 1;
            let begin = self.from.unwrap_or_else(|| self.begin(sequence));
            for entry in &mut table[row * room + begin / BLOCK..row * room + end.div_ceil(BLOCK)] {
                *entry = free.swap_remove(random.range(0, free.len() as u32 - 1) as usize);
            }
            for token in begin..end {
                let slot = table[row * room + token / BLOCK] as usize * BLOCK + token % BLOCK;
                for row in token * places.kv_heads..(token + 1) * places.kv_heads {
                    places.put(&mut keys, Role::Keys, slot, &self.keys[sequence], row);
                    places.put(&mut values, Role::Values, slot, &self.values[sequence], row);
                }
            }
        }
        let kv = match self.key.values_from {
            None => KvBlocks::new(gpu, format, pool as u32, kv_heads, head_dim)?,
            Some(_) => {
                KvBlocks::without_values(gpu, Memory::Device, format, pool as u32, kv_heads, head_dim)?
            }
        };
        gpu.write(kv.keys(), &keys)?;
        if let Some(own) = kv.values() {
            gpu.write(own, &values)?;
        }
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
        let sinks = self.upload_sinks(gpu)?;
        let queries = Queries { rows: &queries, sinks: sinks.as_ref() };
        let launches = gpu.attention(self.key, queries, &kv, &sequences, &scratch, out)?;
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
        let sinks = self.upload_sinks(gpu)?;
        let queries = Queries { rows: &queries, sinks: sinks.as_ref() };
        let launches = gpu.tiled_attention(tile, queries, &kv, &sequences, &scratch, &out.clone().into())?;
        output(gpu, &launches.iter().collect::<Vec<_>>(), &out)
    }

    /// Outputs in float64, and their bounds; `tiled`: those with cooperative matrices.
    fn exact(&self, tiled: bool) -> (Vec<f64>, Vec<f64>) {
        let AttentionKernel { heads, kv_heads, head_dim, format, .. } = self.key;
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
                let key = &self.keys[sequence].values[at(token)..][..dim];
                let products = || query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k) * scale);
                let score: f64 = products().sum();
                scores.push(cap.map_or(score, |cap| cap * (score / cap).tanh()));
                largest = largest.max(products().map(f64::abs).sum());
            }
            let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[row % heads as usize]));
            let peak = scores.iter().chain(&sink).fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let weights: Vec<f64> = scores.iter().map(|s| (s - peak).exp()).collect();
            let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - peak).exp());
            let capped = largest + 128.0 * cap.unwrap_or(0.0) + sink.map_or(0.0, f64::abs);
            let (n, sum) = (tokens.len() as f64, (f64::from(head_dim) + 8.0) * capped);
            let (factor, rest, least) = if tiled {
                // Bits that are lost, and what tiny keys and values lose.
                let (bits, least) = match format {
                    KvFormat::F16 => (11, 0.0),
                    KvFormat::Q8 => (10, 0.5_f64.powi(25)),
                };
                let magnitudes: f64 = query.iter().map(|q| f64::from(q.abs())).sum();
                let rounding = 2.0 * (largest * 0.5_f64.powi(bits) + sum * 2.0 * EPSILON);
                let rounding = rounding + 2.0 * least * scale * magnitudes;
                (rounding + 0.5_f64.powi(bits - 1) + (n + 64.0) * 2.0 * EPSILON, 0.5_f64.powi(33), least)
            } else {
                ((sum + n / 64.0 + 64.0) * EPSILON, sink.map_or(0.0, |_| 0.5_f64.powi(114)), 0.0)
            };
            for d in self.key.values_from.unwrap_or(0) as usize..dim {
                let value = |token| f64::from(self.values[sequence].values[at(token) + d]);
                let terms =
                    || weights.iter().zip(tokens.clone()).map(move |(w, token)| w / total * value(token));
                exact.push(terms().sum());
                let all: f64 = tokens.clone().map(|token| value(token).abs()).sum();
                bounds.push(factor * terms().map(f64::abs).sum::<f64>() + rest * all + least);
            }
        }
        (exact, bounds)
    }
}

fn attention(gpu: &Gpu, random: &mut Random, report: &mut Report, case: &Case) -> Result<()> {
    report.begin_shape();
    let AttentionKernel { heads, kv_heads, head_dim, window, format, .. } = case.key;
    let width = case.width();
    let text = format!(
        "{heads} heads of {head_dim}, {kv_heads} KV heads, positions {:?}, window {window:?}, values from {:?}",
        case.positions, case.key.values_from
    );
    let splits = if case.room == 8 { ", one split" } else { "" };
    let name = format!("attention{splits}{}{}", of_format(format), case.of_sinks());
    let all: Vec<usize> = (0..case.positions.len()).collect();
    let out = poisoned(gpu, all.len() * width)?;
    case.run(gpu, random, &all, case.room, &out.clone().into())?;
    let found: Vec<f32> = gpu.download(&out)?;
    let (exact, bounds) = case.exact(false);
    report.add(name.clone(), &text, worst(&found, &exact, |i| bounds[i]));

    // Other blocks, more room in the table, no neighbours.
    let sequence = random.range(0, all.len() as u32 - 1) as usize;
    let out = poisoned(gpu, width)?;
    case.run(gpu, random, &[sequence], case.room + 4, &out.clone().into())?;
    let alone: Vec<f32> = gpu.download(&out)?;
    let equal = same_bits(&alone, &found[sequence * width..][..width]);
    report.add_equal(format!("{name}: sequence alone"), &text, equal);

    one_sequence(gpu, random, report, case, &found)?;
    if !case.key.value_dim().is_multiple_of(32) {
        return Ok(());
    }
    let quantized = Quantized::new(gpu, all.len() as u32, width as u32)?;
    case.run(gpu, random, &all, case.room, &quantized.clone().into())?;
    check_quantized(gpu, report, &format!("{name} to 8 bits"), &quantized, &found)
}

/// Several queries of one sequence over one row of the table; the last one has the bits of `found`.
fn one_sequence(
    gpu: &Gpu,
    random: &mut Random,
    report: &mut Report,
    case: &Case,
    found: &[f32],
) -> Result<()> {
    let (width, query) = (case.width(), (case.key.heads * case.key.head_dim) as usize);
    let last = case.positions[0];
    // The last query, an earlier one whose window begins before its own, and the last one again.
    let positions = vec![last, random.range(case.begin(0) as u32, last), last];
    let case = case.of_first(case.queries[..query].repeat(3), positions);
    let (kv, Sequences { table, .. }) = case.upload(gpu, random, &[0], case.room)?;
    let queries = gpu.upload(&case.queries)?;
    let key = case.key.one_sequence();
    let sequences = Sequences { positions: gpu.upload(&case.positions)?, table };
    let bytes = key.scratch_bytes(3, (case.room * BLOCK) as u32);
    let (scratch, out) = (poisoned(gpu, bytes as usize / 4)?, poisoned(gpu, 3 * width)?);
    let sinks = case.upload_sinks(gpu)?;
    let queries = Queries { rows: &queries, sinks: sinks.as_ref() };
    let launches = gpu.attention(key, queries, &kv, &sequences, &scratch, &out.clone().into())?;
    let rows = output(gpu, &launches.iter().collect::<Vec<_>>(), &out)?;
    let text = format!("positions {:?}, window {:?}", case.positions, key.window);
    let name = format!("attention of one sequence{}{}", of_format(key.format), case.of_sinks());
    let (exact, bounds) = case.exact(false);
    report.add(name.clone(), &text, worst(&rows, &exact, |i| bounds[i]));
    let equal = [0, 2].iter().all(|row| same_bits(&rows[row * width..][..width], &found[..width]));
    report.add_equal(format!("{name}: same bits"), &text, equal);
    Ok(())
}

/// Rows of the first sequence at once with cooperative matrices, or their products written out.
fn tiled(gpu: &Gpu, random: &mut Random, report: &mut Report, case: Case) -> Result<()> {
    let AttentionKernel { heads, kv_heads, head_dim, window, format, .. } = case.key;
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
    report.begin_shape();
    // Consecutive positions up to the last one, and an earlier one as of a row that fills up.
    let last = case.positions[0];
    let rows = random.range(1, 40).min(last + 1);
    let mut positions: Vec<u32> = (last + 1 - rows..=last).collect();
    positions.push(last + 1 - rows);
    let rows = positions.len();
    // Large scores replace the reference of the exponentials.
    let gain = [1.0, 16.0][random.range(0, 1) as usize];
    let queries = random.values(rows * (heads * head_dim) as usize);
    let all = case.of_first(queries.into_iter().map(|q| q * gain).collect(), positions);
    let first = tiles[random.range(0, tiles.len() as u32 - 1) as usize];
    let found = all.run_tiled(gpu, random, first, 0..rows)?;
    let text = format!(
        "{heads} heads of {head_dim}, {kv_heads} KV heads, {rows} rows to {last}, window {window:?}, {} queries of {:?}",
        first.queries, first.attention.workgroup_heads
    );
    let name = format!("attention, cooperative{}{}", of_format(format), all.of_sinks());
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
