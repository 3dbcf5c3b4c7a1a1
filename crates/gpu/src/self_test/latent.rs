//! Kernels of latent attention, but for attention itself.

use half::f16;

use super::kv::{BLOCK, Expected, Layout, Role, of_format};
use super::rows::{Turns, normalized};
use super::{EPSILON, Report, output, poisoned, same_bits, worst};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kv::{KvBlocks, KvRows, PositionTables};
use crate::kv_format::KvFormat;
use crate::latent_key::{LatentKeysKernel, LatentQueriesKernel, PartNormKernel};
use crate::memory::Memory;
use crate::reference::Random;
use crate::rope_layout::RopeLayout;

const EPS: f32 = 1e-5;

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    part_norm(gpu, random, report)?;
    for layout in [RopeLayout::Halves, RopeLayout::Interleaved] {
        queries(gpu, random, report, layout)?;
        let format = KvFormat::ALL[random.range(0, 1) as usize];
        keys(gpu, random, report, (layout, format))?;
    }
    Ok(())
}

/// Relative error of a norm of `cols` values.
fn norm_bound(cols: u32) -> f64 {
    (f64::from(cols) / 256.0 + 16.0) * EPSILON
}

fn part_norm(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, cols) = (random.range(1, 5), random.range(1, 1600));
    let (width, padded) = (cols + random.range(0, 40), cols + random.range(0, 8));
    let key = PartNormKernel { cols, width, padded, eps_bits: EPS.to_bits() };
    let (x, weight) = (random.values((rows * width) as usize), random.values(cols as usize));
    let weight_buffer = gpu.upload(&weight)?;
    let run = |x: &[f32]| {
        let out = poisoned(gpu, x.len() / width as usize * padded as usize)?;
        output(gpu, &[&gpu.part_norm(key, &gpu.upload(x)?, &weight_buffer, &out)?], &out)
    };
    let found = run(&x)?;
    let mut exact = Vec::new();
    for row in x.chunks_exact(width as usize) {
        exact.extend(normalized(&row[..cols as usize], &weight, EPS));
        exact.resize(exact.len() + (padded - cols) as usize, 0.0);
    }
    let text = format!("{rows} x {cols} of {width} to {padded}");
    report.add("part_norm".to_owned(), &text, worst(&found, &exact, |i| norm_bound(cols) * exact[i].abs()));
    let row = random.range(0, rows - 1) as usize;
    let alone = run(&x[row * width as usize..][..width as usize])?;
    let equal = same_bits(&alone, &found[row * padded as usize..][..padded as usize]);
    report.add_equal("part_norm: a row alone".to_owned(), &text, equal);
    Ok(())
}

fn queries(gpu: &Gpu, random: &mut Random, report: &mut Report, layout: RopeLayout) -> Result<()> {
    report.begin_shape();
    let (heads, still) = (random.range(1, 6), random.range(1, 40));
    let (rotary, rank) = (2 * random.range(1, 16), random.range(1, 40));
    let (padded, rows) = (still.next_multiple_of(8), random.range(1, 5) as usize);
    let width = heads * (still + rotary) + random.range(0, 9);
    let key = LatentQueriesKernel { heads, still, rotary, rank, width, padded, layout, scaled: false };
    let turns = Turns::new(random, rows, rotary);
    let factors = (random.range(0, 1) == 0).then(|| random.values(100));
    let x = random.values(rows * width as usize);
    let (mut expected_still, mut expected) = (Expected::default(), Expected::default());
    for (row, values) in x.chunks_exact(width as usize).enumerate() {
        let factor = factors.as_ref().map(|factors| f64::from(factors[turns.position(row)]));
        let push = |to: &mut Expected, value: f64, bound: f64| {
            let rounding = factor.map_or(0.0, |factor| (factor * value).abs() * EPSILON);
            to.exact.push(factor.unwrap_or(1.0) * value);
            to.bounds.push(factor.map_or(1.0, f64::abs) * bound + rounding);
        };
        for head in values.chunks_exact((still + rotary) as usize).take(heads as usize) {
            let (first, second) = head.split_at(still as usize);
            first.iter().for_each(|&value| push(&mut expected_still, value.into(), 0.0));
            let zeros = (padded - still) as usize;
            (0..zeros).for_each(|_| push(&mut expected_still, 0.0, 0.0));
            let (turned, bounds) = turns.rotate(row, second, layout);
            turned.into_iter().zip(bounds).for_each(|(value, bound)| push(&mut expected, value, bound));
            // The product with the head's matrix comes later.
            expected.exact.resize(expected.exact.len() + rank as usize, -7.0);
            expected.bounds.resize(expected.exact.len(), 0.0);
        }
    }
    let still_buffer = poisoned(gpu, expected_still.exact.len())?;
    let queries = gpu.upload(&vec![-7.0_f32; expected.exact.len()])?;
    let (angles, positions) = turns.upload(gpu)?;
    let factors = factors.as_ref().map(|factors| gpu.upload(factors)).transpose()?;
    let tables = PositionTables { angles: &angles, factors: factors.as_ref() };
    let outputs = (&still_buffer, &queries);
    let launch = gpu.latent_queries(key, &gpu.upload(&x)?, tables, &positions, outputs)?;
    let found = output(gpu, &[&launch], &queries)?;
    let found_still: Vec<f32> = gpu.download(&still_buffer)?;
    let text = format!("{rows} x {heads} heads of {still} + {rotary} of {width}, rank {rank}");
    let scaled = if factors.is_some() { ", scaled" } else { "" };
    let name = format!("latent_queries {layout:?}{scaled}").to_lowercase();
    for (part, found, Expected { exact, bounds }) in
        [("still", found_still, expected_still), ("rotated", found, expected)]
    {
        report.add(format!("{name}: {part}"), &text, worst(&found, &exact, |i| bounds[i]));
    }
    Ok(())
}

fn keys(
    gpu: &Gpu,
    random: &mut Random,
    report: &mut Report,
    (layout, format): (RopeLayout, KvFormat),
) -> Result<()> {
    report.begin_shape();
    let unit = format.head_dim_multiple();
    let head_dim = unit * random.range(1, 640 / unit);
    let rotary = 2 * random.range(1, head_dim / 2 - 1);
    let rank = head_dim - rotary;
    let (first, rows) = (random.range(0, 30), random.range(1, 5) as usize);
    let width = first + head_dim + random.range(0, 5);
    let eps_bits = EPS.to_bits();
    let key = LatentKeysKernel { rotary, rank, width, first, layout, eps_bits, format };
    let turns = Turns::new(random, rows, rotary);
    let (x, weight) = (random.values(rows * width as usize), random.values(rank as usize));
    // Distinct slots.
    let before = random.range(0, 6);
    let slots: Vec<u32> = (0..rows as u32).map(|row| before + row * 17).collect();
    let kv = KvBlocks::without_values(gpu, Memory::Device, format, 3, 1, head_dim)?;
    gpu.fill(kv.keys(), &[f16::from_f32(-7.0).to_bits(); 2])?;
    let places = Layout { format, kv_heads: 1, dim: head_dim as usize };
    let stored = || -> Result<Vec<f32>> { Ok(places.values(&gpu.download(kv.keys())?, Role::Keys)) };
    let mut expected = Expected::unchanged(stored()?);
    for (row, values) in x.chunks_exact(width as usize).enumerate() {
        let (latent, rest) = values[first as usize..].split_at(rank as usize);
        let (mut exact, mut bounds) = turns.rotate(row, &rest[..rotary as usize], layout);
        let normed = normalized(latent, &weight, EPS);
        bounds.extend(normed.iter().map(|value| norm_bound(rank) * value.abs()));
        exact.extend(normed);
        for d in 0..places.dim {
            let at = slots[row] as usize * places.dim + d;
            expected.exact[at] = exact[d];
            expected.bounds[at] = places.error(&exact, &bounds, d);
        }
    }
    let (angles, positions) = turns.upload(gpu)?;
    let kv_rows = KvRows { positions, slots: gpu.upload(&slots)? };
    let tables = (&angles, &gpu.upload(&weight)?);
    gpu.run(&[&gpu.latent_keys(key, &gpu.upload(&x)?, tables, &kv_rows, &kv)?])?;
    let text = format!("{rows} x {rank} + {rotary} at {first} of {width}, blocks of {BLOCK}");
    let name = format!("latent_keys {layout:?}{}", of_format(format)).to_lowercase();
    report.add(name, &text, worst(&stored()?, &expected.exact, |i| expected.bounds[i]));
    Ok(())
}
