//! Prefill products: TFLOP/s.

use ruvllm_gpu::{Activations, Buffer, Dispatch, Format, Gpu, Matrix, Result};

use crate::json::Json;
use crate::measure::{Figure, heat, seconds_each};
use crate::products::Bed;

const SHAPES: [(u32, u32); 3] = [(4096, 4096), (14_336, 4096), (4096, 14_336)];

/// Prepares a product.
type Prepare = fn(&Matrix, &Gpu, &Activations, &Buffer, u32) -> Result<Dispatch>;

/// Prints TFLOP/s of every format, with cooperative matrices on devices that have them and without.
pub(crate) fn run(gpu: &Gpu, quick: bool, json: &mut Json) -> Result<()> {
    println!("\nprefill products, each launch after the one before");
    println!("                     rows x cols batch       us  TFLOP/s");
    let mut paths: Vec<(&str, Prepare)> = vec![("gemm", Matrix::gemm)];
    if gpu.target().cooperative.is_some() {
        paths.push(("gemm in tiles", Matrix::gemm_tiled));
    }
    let shapes: &[(u32, u32)] = if quick { &[(256, 512)] } else { &SHAPES };
    for &(rows, cols) in shapes {
        for format in Format::ALL {
            let bed = Bed::new(gpu, format, rows, cols, 0)?;
            let batches: &[u32] = match (quick, rows == cols) {
                (true, _) => &[40],
                (false, true) => &[16, 64, 128, 512, 4096],
                (false, false) => &[16, 64, 128, 512],
            };
            for &batch in batches {
                let operands = bed.operands(gpu, batch)?;
                for (path, prepare) in &paths {
                    let launch = |matrix: &Matrix| prepare(matrix, gpu, &operands.x, &operands.y, batch);
                    let launches = bed.copies.iter().map(launch).collect::<Result<Vec<_>>>()?;
                    let launches: Vec<_> = launches.iter().collect();
                    if batch == batches[0] {
                        heat(gpu, &launches, quick)?;
                    }
                    let seconds = seconds_each(gpu, &launches, quick)?;
                    line(json, path, (format, rows, cols, batch), seconds);
                }
            }
        }
    }
    Ok(())
}

fn line(json: &mut Json, path: &str, shape: (Format, u32, u32, u32), seconds: Figure) {
    let (format, rows, cols, batch) = shape;
    let rate = seconds.map(|s| 2e-12 * f64::from(batch) * f64::from(rows) * f64::from(cols) / s);
    println!(
        "{path:13} {:6} {:>13} {batch:5} {:8.2} {:6.1} ({:.1} to {:.1})",
        format.name(),
        format!("{rows} x {cols}"),
        seconds.median * 1e6,
        rate.median,
        rate.low,
        rate.high
    );
    let name = format!("{path} {} {rows} x {cols}, batch {batch}", format.name());
    json.operation(&name, seconds.map(|s| s * 1e6));
}
