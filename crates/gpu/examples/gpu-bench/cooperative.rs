//! TFLOP/s of products with cooperative matrices over tiles: the measurements behind
//! `CooperativeTile::choose`.

use ruvllm_gpu::{CooperativeTile, Error, Format, Gpu, Matrix, Result};

use crate::measure::{heat, seconds_of};
use crate::products::{Bed, Operands};

const FORMATS: [Format; 5] = [Format::F16, Format::Q8_0, Format::Q4_0, Format::Q4K, Format::Q6K];

/// Prints all tiles of each format, shape and batch, fastest first, beside tiles without
/// cooperative matrices, and checks that tiles change no bit; true if none does.
pub(crate) fn run(gpu: &Gpu, quick: bool) -> Result<bool> {
    let shapes: &[(u32, u32)] =
        if quick { &[(256, 512)] } else { &[(4096, 4096), (4096, 14_336), (14_336, 4096)] };
    let mut equal = true;
    for &(rows, cols) in shapes {
        for format in FORMATS {
            let bed = Bed::new(gpu, format, rows, cols, 0)?;
            compile(gpu, &bed);
            let batches: &[u32] = match (quick, rows == cols) {
                (true, _) => &[40],
                (false, true) => &[16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
                (false, false) => &[16, 32, 64, 128, 256, 512],
            };
            for &batch in batches {
                equal &= sweep(gpu, quick, &bed, batch)?;
            }
        }
    }
    Ok(equal)
}

fn sweep(gpu: &Gpu, quick: bool, bed: &Bed, batch: u32) -> Result<bool> {
    let matrix = &bed.copies[0];
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let operands = bed.operands(gpu, batch)?;
    let Operands { x, y } = &operands;
    let flops = 2.0 * f64::from(batch) * f64::from(rows) * f64::from(cols);
    let rate = |seconds: f64| 1e-12 * flops / seconds;
    let passes = if quick { (0, 1) } else { (2, 5) };

    let prepare = |matrix: &Matrix| matrix.gemm_tiled(gpu, x, y, batch);
    let launches = bed.copies.iter().map(prepare).collect::<Result<Vec<_>>>()?;
    let launches: Vec<_> = launches.iter().collect();
    if batch == 16 {
        heat(gpu, &launches, quick)?;
    }
    let tiled = rate(seconds_of(gpu, &launches, passes, quick)?.median);
    let reference: Vec<f32> = gpu.download(y)?;

    let mut results = Vec::new();
    let mut bits: Option<Vec<f32>> = None;
    let mut equal = true;
    for tile in candidates(batch) {
        let prepare = |matrix: &Matrix| matrix.gemm_cooperative(gpu, x, y, batch, tile);
        let launches = match bed.copies.iter().map(prepare).collect::<Result<Vec<_>>>() {
            Err(Error::Shape { .. }) => continue, // exceeds the device
            other => other?,
        };
        let launches: Vec<_> = launches.iter().collect();
        results.push((tile, rate(seconds_of(gpu, &launches, passes, quick)?.median)));
        if batch <= 64 {
            let found: Vec<f32> = gpu.download(y)?;
            let first = bits.get_or_insert_with(|| found.clone());
            let same = first.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            if !same {
                println!("BITS DIFFER: {}", name(tile));
            }
            equal &= same;
        }
    }
    results.sort_by(|a, b| b.1.total_cmp(&a.1));
    let chosen = CooperativeTile::choose(rows, batch, gpu.target());
    let text = |(tile, rate): &(CooperativeTile, f64)| {
        let mark = if Some(*tile) == chosen { "*" } else { "" };
        format!("{}{mark} {rate:.1}", name(*tile))
    };
    println!(
        "{} {rows} x {cols} batch {batch}: tiles {tiled:.1}, difference {:.1e}; {}",
        matrix.format().name(),
        difference(&reference, bits.as_ref()),
        results.iter().map(text).collect::<Vec<_>>().join("; ")
    );
    Ok(equal)
}

/// Root mean square of the difference as a share of that of the values; 0 if not compared.
fn difference(reference: &[f32], found: Option<&Vec<f32>>) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let Some(found) = found else { return 0.0 };
    let difference: f64 = reference.iter().zip(found).map(|(a, b)| square(a - b)).sum();
    (difference / reference.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

fn name(tile: CooperativeTile) -> String {
    let CooperativeTile { batch, rows, depth, across, down, stages } = tile;
    format!("{batch}x{rows}d{depth}_{across}x{down}s{stages}")
}

/// Compiles kernels in the background before the device heats up.
fn compile(gpu: &Gpu, bed: &Bed) {
    let Ok(operands) = bed.operands(gpu, 1) else { return };
    for tile in ALL {
        // A failure comes again where the tile is measured.
        drop(bed.copies[0].gemm_cooperative(gpu, &operands.x, &operands.y, 1, tile));
    }
    gpu.finish_kernels();
}

fn candidates(batch: u32) -> impl Iterator<Item = CooperativeTile> {
    ALL.into_iter().filter(move |tile| tile.batch <= batch.max(16) * 2 && tile.batch * 8 >= batch.min(256))
}

const fn tile(
    (batch, rows): (u32, u32),
    depth: u32,
    (across, down): (u32, u32),
    stages: u32,
) -> CooperativeTile {
    CooperativeTile { batch, rows, depth, across, down, stages }
}

const ALL: [CooperativeTile; 26] = [
    tile((16, 32), 64, (1, 2), 2),
    tile((16, 64), 64, (1, 4), 1),
    tile((16, 64), 64, (1, 4), 2),
    tile((16, 128), 64, (1, 4), 1),
    tile((32, 32), 64, (1, 2), 1),
    tile((32, 32), 64, (1, 2), 2),
    tile((32, 32), 64, (2, 2), 2),
    tile((32, 64), 64, (1, 4), 1),
    tile((32, 64), 64, (1, 4), 2),
    tile((32, 64), 64, (1, 2), 1),
    tile((32, 128), 64, (1, 4), 1),
    tile((64, 32), 64, (2, 1), 2),
    tile((64, 64), 64, (2, 2), 1),
    tile((64, 64), 64, (2, 2), 2),
    tile((64, 64), 64, (2, 4), 2),
    tile((64, 128), 32, (2, 2), 1),
    tile((64, 128), 64, (2, 2), 1),
    tile((64, 128), 64, (2, 4), 1),
    tile((128, 64), 32, (2, 2), 1),
    tile((128, 64), 64, (2, 2), 1),
    tile((128, 128), 32, (2, 2), 1),
    tile((128, 128), 32, (2, 2), 2),
    tile((128, 128), 64, (2, 2), 1),
    tile((128, 128), 64, (2, 4), 1),
    tile((128, 256), 32, (2, 4), 1),
    tile((256, 128), 32, (4, 2), 1),
];
