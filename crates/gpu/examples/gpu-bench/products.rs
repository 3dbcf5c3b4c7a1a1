//! Products of few rows: error, time, bandwidth.

use ruvllm_gpu::{Activations, Buffer, Format, Gpu, Matrix, Quantized, Result, self_test};

use crate::json::{Json, ProductFigures};
use crate::measure::{heat, seconds_each};

/// Weights rotate over this many bytes.
pub(crate) const ROTATION: u64 = 320 << 20;

/// Rows and columns of weights.
const SHAPES: [(u32, u32); 4] = [(14_336, 4096), (4096, 14_336), (4096, 4096), (2048, 8192)];

/// Copies of a matrix.
pub(crate) struct Bed {
    /// Equal weights in different memory.
    pub(crate) copies: Vec<Matrix>,
}

/// Activations and outputs of a batch.
pub(crate) struct Operands {
    /// Activations.
    pub(crate) x: Activations,
    /// f32, `[batch, rows]`.
    pub(crate) y: Buffer,
}

impl Bed {
    /// Uploads random weights and copies them on the device.
    pub(crate) fn new(gpu: &Gpu, format: Format, rows: u32, cols: u32, rotation: u64) -> Result<Self> {
        let weights = self_test::random_weights(format, rows as usize * cols as usize, 7);
        let count = (rotation / weights.len() as u64).clamp(2, 200);
        let mut copies = vec![Matrix::upload(gpu, format, rows, cols, &weights)?];
        for _ in 1..count {
            copies.push(copies[0].duplicate(gpu)?);
        }
        Ok(Self { copies })
    }

    /// Activations and outputs of `batch` rows.
    pub(crate) fn operands(&self, gpu: &Gpu, batch: u32) -> Result<Operands> {
        let (rows, cols) = (self.copies[0].rows(), self.copies[0].cols());
        let values: Vec<f32> = (0..batch * cols).map(|i| (i as f32 * 0.7).sin()).collect();
        let buffer = gpu.upload(&values)?;
        let x = if self.copies[0].format().takes_quantized() {
            let x = Quantized::new(gpu, batch, cols)?;
            gpu.run(&[&gpu.quantize(&buffer, &x)?])?;
            x.into()
        } else {
            buffer.into()
        };
        Ok(Operands { x, y: gpu.zeroed(u64::from(batch) * u64::from(rows) * 4)? })
    }
}

/// Measures every format on every shape; true when all results are within their bounds.
pub(crate) fn run(gpu: &Gpu, peak: f64, quick: bool, json: &mut Json) -> Result<bool> {
    println!("\nproducts, each launch after the one before");
    println!(
        "{:5} {:>15} {:>5} {:>8} {:>22} {:>6}  error / bound",
        "", "rows x cols", "batch", "us", "GB/s", "share"
    );
    let mut passed = true;
    let quick_shapes = [(256, 512), (64, 14_336)];
    let shapes: &[(u32, u32)] = if quick { &quick_shapes } else { &SHAPES };
    for &(rows, cols) in shapes {
        for format in Format::ALL {
            // float64 takes long: some of the rows, at full length.
            let checks = self_test::product(gpu, format, rows.min(301), cols, 3)?;
            let worst =
                checks.iter().filter(|c| c.name.starts_with("product")).map(|c| c.worst).fold(0.0, f64::max);
            passed &= checks.iter().all(self_test::Check::passed);
            let bed = Bed::new(gpu, format, rows, cols, if quick { 0 } else { ROTATION })?;
            for batch in [1, 4, 8, 16, 32, 64] {
                line(gpu, peak, quick, json, &bed, batch)?;
                println!("  {worst:.4}");
            }
        }
    }
    Ok(passed)
}

/// Prints a line without its end.
fn line(gpu: &Gpu, peak: f64, quick: bool, json: &mut Json, bed: &Bed, batch: u32) -> Result<()> {
    let (format, rows, cols) = (bed.copies[0].format(), bed.copies[0].rows(), bed.copies[0].cols());
    let operands = bed.operands(gpu, batch)?;
    let prepare = |matrix: &Matrix| matrix.product(gpu, &operands.x, &operands.y, batch);
    let launches = bed.copies.iter().map(prepare).collect::<Result<Vec<_>>>()?;
    let launches: Vec<_> = launches.iter().collect();
    if batch == 1 {
        heat(gpu, &launches, quick)?;
    }
    let bytes = bed.copies[0].bytes() as f64;
    let seconds = seconds_each(gpu, &launches, quick)?;
    let rate = seconds.map(|s| bytes / s / 1e9);
    print!(
        "{:5} {:>15} {batch:>5} {:>8.2} {:>22} {:>5.0}%",
        format.name(),
        format!("{rows} x {cols}"),
        seconds.median * 1e6,
        rate.to_string(),
        100.0 * rate.median / peak
    );
    json.product(&ProductFigures { format, rows, cols, batch, seconds, rate });
    Ok(())
}
