//! Times of prefill attention over tiles: the measurements behind `TiledAttentionKernel::choose`.

use ruvllm_gpu::{AttentionKernel, Dispatch, Error, Gpu, KvFormat, Result, TiledAttentionKernel};

use crate::attention::PrefillBed;
use crate::measure::{heat, seconds_of};

/// Query heads, KV heads, head dimension.
const HEADS: [(u32, u32, u32); 7] =
    [(32, 8, 64), (14, 2, 64), (32, 32, 64), (32, 8, 128), (24, 8, 128), (32, 32, 128), (8, 4, 256)];
/// Rows, tokens before them.
const ROWS: [(u32, u32); 9] =
    [(16, 0), (64, 0), (512, 0), (16, 1024), (64, 1024), (512, 1024), (16, 8192), (64, 8192), (512, 8192)];

/// Prints all tiles of each shape, fastest first, beside attention row by row, and checks that
/// tiles change no bit; true if none does.
pub(crate) fn run(gpu: &Gpu, quick: bool, format: KvFormat) -> Result<bool> {
    let heads: &[_] = if quick { &[(4, 2, 64)] } else { &HEADS };
    let rows: &[_] = if quick { &[(32, 300)] } else { &ROWS };
    let name = format.name();
    println!("\nprefill attention over {name} blocks, us: row by row; tiles as queries x heads, * chosen");
    let mut equal = true;
    for &(heads, kv_heads, dim) in heads {
        let key = AttentionKernel::new(heads, kv_heads, dim).one_sequence();
        let key = AttentionKernel { format, ..key };
        for (index, &(rows, depth)) in rows.iter().enumerate() {
            equal &= sweep(gpu, quick, key, (rows, depth), index == 0)?;
        }
    }
    Ok(equal)
}

fn sweep(
    gpu: &Gpu,
    quick: bool,
    key: AttentionKernel,
    (rows, depth): (u32, u32),
    is_cold: bool,
) -> Result<bool> {
    let bed = PrefillBed::new(gpu, key, rows, depth)?;
    let passes = if quick { (0, 1) } else { (1, 5) };
    let single = bed.row_by_row(gpu)?;
    let tiles: Vec<_> = [16, 32, 64]
        .into_iter()
        .flat_map(|queries| [1, 2, 4, 8].map(|own| tile(key, queries, own)))
        .filter(|t| (key.heads / key.kv_heads).is_multiple_of(t.attention.workgroup_heads.unwrap_or(1)))
        .collect();
    // Compiles kernels in the background before the device heats up.
    let mut prepared = Vec::new();
    for tile in tiles {
        match bed.tiled(gpu, tile) {
            Err(Error::Shape { .. }) => {} // exceeds the device
            other => prepared.push((tile, other?)),
        }
    }
    gpu.finish_kernels();
    let time = |launches: &[Dispatch]| -> Result<f64> {
        let list: Vec<_> = launches.iter().collect();
        Ok(seconds_of(gpu, &list, passes, quick)?.median * list.len() as f64 * 1e6)
    };
    if is_cold {
        heat(gpu, &single.iter().collect::<Vec<_>>(), quick)?;
    }
    let row_by_row = time(&single)?;
    let mut results = Vec::new();
    let mut bits: Option<Vec<u32>> = None;
    let mut equal = true;
    for (tile, launches) in &prepared {
        results.push((tile, time(launches)?));
        let found = bed.results(gpu)?;
        let same = *bits.get_or_insert_with(|| found.clone()) == found;
        if !same {
            println!("BITS DIFFER: {}", name(tile));
        }
        equal &= same;
    }
    results.sort_by(|a, b| a.1.total_cmp(&b.1));
    let chosen = TiledAttentionKernel::choose(key, rows, gpu.target());
    let text = |(tile, us): &(&TiledAttentionKernel, f64)| {
        let mark = if Some(**tile) == chosen { "*" } else { "" };
        format!("{}{mark} {us:.1}", name(tile))
    };
    println!(
        "{}/{} x {}, {rows} rows behind {depth}: {row_by_row:.1}; {}",
        key.heads,
        key.kv_heads,
        key.head_dim,
        results.iter().map(text).collect::<Vec<_>>().join("; ")
    );
    Ok(equal)
}

fn tile(key: AttentionKernel, queries: u32, own: u32) -> TiledAttentionKernel {
    let attention = AttentionKernel { workgroup_heads: Some(own), ..key };
    TiledAttentionKernel { attention, queries }
}

fn name(tile: &TiledAttentionKernel) -> String {
    format!("{}x{}", tile.queries, tile.attention.workgroup_heads.unwrap_or(1))
}
