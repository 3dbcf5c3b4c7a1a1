//! Attention of many queries of one sequence.

use std::ops::Range;

use super::attention::{BLOCK, Case, random_key};
use super::rows::check_quantized;
use super::{Report, poisoned, same_bits, worst};
use crate::attention::Sequences;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::reference::Random;
use crate::rows::{Quantized, RowOutput};

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    let mut key = random_key(random, 200);
    if random.range(0, 7) == 0 {
        // More than a word of the values per lane.
        key.head_dim = 512;
    }
    let rows = random.range(2, 40);
    let start = [0, random.range(1, 300)][random.range(0, 1) as usize];
    let mut positions: Vec<u32> = (start..start + rows).collect();
    if random.range(0, 2) == 0 {
        // A row that stands for nothing.
        positions.push(0);
    }
    let case = Case::prompt(random, key, start + rows, positions);
    attention(gpu, random, report, &case)
}

/// Runs some rows over blocks of their own: what none of them sees is NaN, without a block where a
/// whole block is out of sight.
fn run(gpu: &Gpu, random: &mut Random, case: &Case, rows: Range<usize>, out: &RowOutput) -> Result<()> {
    let width = (case.key.heads * case.key.head_dim) as usize;
    let begin = rows.clone().map(|row| case.begin(row)).min().unwrap_or(0);
    let positions = &case.positions[rows.clone()];
    let end = positions.iter().max().map_or(0, |&last| last as usize + 1);
    let room = end.div_ceil(BLOCK).next_multiple_of(4) + 4 * random.range(0, 1) as usize;
    let (kv, table) = case.place(gpu, random, &[(rows.start, begin..end)], room)?;
    let queries = gpu.upload(&case.queries[rows.start * width..rows.end * width])?;
    let sequence = Sequences { positions: gpu.upload(positions)?, table };
    gpu.run(&[&gpu.prefill_attention(case.key, &queries, &kv, &sequence, out)?])
}

fn attention(gpu: &Gpu, random: &mut Random, report: &mut Report, case: &Case) -> Result<()> {
    let key = case.key;
    let (rows, width) = (case.positions.len(), (key.heads * key.head_dim) as usize);
    let text = format!(
        "{} heads of {}, {} KV heads, positions {} to {}, {rows} rows, window {:?}",
        key.heads,
        key.head_dim,
        key.kv_heads,
        case.positions[0],
        case.positions[rows - 1],
        key.window
    );
    let mut compute = |rows: Range<usize>| -> Result<Vec<f32>> {
        let out = poisoned(gpu, rows.len() * width)?;
        run(gpu, random, case, rows, &out.clone().into())?;
        gpu.download(&out)
    };
    let found = compute(0..rows)?;
    let (exact, bounds) = case.exact(1.0);
    report.add("prefill attention".to_owned(), &text, worst(&found, &exact, |i| bounds[i]));

    for row in [0, rows / 2, rows - 1] {
        let equal = same_bits(&compute(row..row + 1)?, &found[row * width..][..width]);
        report.add_equal("prefill attention: row alone".to_owned(), &text, equal);
    }
    let cut = 1 + rows / 3;
    let parts = [compute(0..cut)?, compute(cut..rows)?].concat();
    report.add_equal("prefill attention: prompt cut in two".to_owned(), &text, same_bits(&parts, &found));

    if !key.head_dim.is_multiple_of(32) {
        return Ok(());
    }
    let quantized = Quantized::new(gpu, rows as u32, width as u32)?;
    run(gpu, random, case, 0..rows, &quantized.clone().into())?;
    check_quantized(gpu, report, "prefill attention to 8 bits", &quantized, &found)
}
