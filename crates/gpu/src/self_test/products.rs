//! Matrix products.

use super::{EPSILON, Report, output, poisoned, same_bits, worst};
use crate::dispatch::Dispatch;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kernel::{CooperativeTile, MAX_BATCH, Tile};
use crate::matrix::{Activations, Matrix};
use crate::memory::Buffer;
use crate::reference::{Random, dequantize};
use crate::repack::Format;
use crate::rows::Quantized;
use crate::split_key::ColumnSplits;

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    for format in Format::ALL {
        let unit = format.column_unit() as u32;
        // One of eight is a long row.
        let longest =
            if random.range(0, 7) == 0 { random.limit(14_336, 2816) } else { random.limit(2048, 768) };
        let shape = Shape {
            format,
            rows: random.range(1, 70),
            cols: unit * random.range(1, longest / unit),
            batch: random.range(2, MAX_BATCH),
        };
        product(gpu, random, report, shape)?;
    }
    let format = Format::ALL[random.range(0, Format::ALL.len() as u32 - 1) as usize];
    let unit = format.column_unit() as u32;
    let cols = unit * random.range(1, random.limit(1024, 512) / unit);
    let shape = Shape { format, rows: random.range(1, 150), cols, batch: random.range(1, 100) };
    gemm(gpu, random, report, shape, Path::Chosen)?;
    if gpu.target().cooperative.is_some() {
        gemm(gpu, random, report, shape, Path::Tiled)?;
        // With splits that are apart, and in turn.
        let cols = 1024_u32.next_multiple_of(unit) + unit * random.range(0, 1024 / unit);
        for most in [128, 400] {
            let (rows, batch) = (random.range(1, 300), random.range(1, most));
            gemm(gpu, random, report, Shape { format, rows, cols, batch }, Path::Chosen)?;
        }
    }
    if gpu.target().f16 {
        let shape = Shape { rows: shape.rows.min(70), batch: shape.batch.min(40), ..shape };
        let tile = if random.range(0, 1) == 0 { SMALL } else { LARGE };
        let split = 64 * random.range(1, cols.div_ceil(64));
        for splits in [ColumnSplits::Whole, ColumnSplits::Apart(split)] {
            gemm(gpu, random, report, shape, Path::Cooperative(tile, splits))?;
        }
    }
    gather(gpu, random, report, shape)
}

#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) format: Format,
    pub(super) rows: u32,
    pub(super) cols: u32,
    pub(super) batch: u32,
}

/// Activations on the device, with their values as stored.
pub(super) struct Input {
    pub(super) activations: Activations,
    pub(super) values: Vec<f64>,
}

pub(super) fn product(gpu: &Gpu, random: &mut Random, report: &mut Report, shape: Shape) -> Result<()> {
    report.begin_shape();
    let Shape { format, rows, cols, batch } = shape;
    let weights = random.weights(format, (rows * cols) as usize);
    let matrix = Matrix::upload(gpu, format, rows, cols, &weights)?;
    let x = random.values((batch * cols) as usize);
    let input = input(gpu, report, shape, &x)?;
    let y = poisoned(gpu, (batch * rows) as usize)?;
    let launch = matrix.product(gpu, &input.activations, &y, batch)?;
    let found = output(gpu, &[&launch], &y)?;
    let again = output(gpu, &[&launch], &y)?;

    let (exact, magnitude) = exact(shape, &dequantize(format, &weights), &input.values);
    let bound = bound_factor(gpu, shape);
    let text = format!("{rows} x {cols}, batch {batch}");
    let name = format.name();
    report.add(format!("product {name}"), &text, worst(&found, &exact, |i| bound * magnitude[i]));
    report.add_equal(format!("product {name}: repeated"), &text, same_bits(&found, &again));

    // Into a part of wider rows; the rest stays.
    let (width, first) = (rows + 7, 3);
    let y = gpu.upload(&vec![-7.0_f32; (batch * width) as usize])?;
    let wide = output(gpu, &[&matrix.product_into(gpu, &input.activations, &y, batch, first, width)?], &y)?;
    let expected = placed(&found, rows as usize, (first as usize, width as usize));
    report.add_equal(format!("product {name}: part of wider rows"), &text, same_bits(&wide, &expected));

    let row = random.range(0, batch - 1) as usize;
    let alone = x[row * cols as usize..][..cols as usize].to_vec();
    let input = self::input(gpu, report, Shape { batch: 1, ..shape }, &alone)?;
    let y = poisoned(gpu, rows as usize)?;
    let single = output(gpu, &[&matrix.product(gpu, &input.activations, &y, 1)?], &y)?;
    let equal = same_bits(&single, &found[row * rows as usize..][..rows as usize]);
    report.add_equal(format!("product {name}: batch of one"), &text, equal);
    Ok(())
}

/// Rows of `rows` values from `first` on in rows of `width`, the rest -7.
pub(super) fn placed(found: &[f32], rows: usize, (first, width): (usize, usize)) -> Vec<f32> {
    let mut wide = vec![-7.0; found.len() / rows * width];
    for (to, from) in wide.chunks_exact_mut(width).zip(found.chunks_exact(rows)) {
        to[first..][..rows].copy_from_slice(from);
    }
    wide
}

/// Operation of [`gemm`].
#[derive(Clone, Copy, PartialEq)]
enum Path {
    /// As [`Matrix::gemm`] chooses.
    Chosen,
    /// Without cooperative matrices.
    Tiled,
    /// With cooperative matrices, or written out, in this tile.
    Cooperative(CooperativeTile, ColumnSplits),
}

impl Path {
    fn name(self) -> &'static str {
        match self {
            Self::Chosen => "gemm",
            Self::Tiled => "gemm in tiles",
            Self::Cooperative(_, ColumnSplits::Whole) => "gemm, cooperative",
            Self::Cooperative(..) => "gemm, split",
        }
    }

    fn launch(self, gpu: &Gpu, matrix: &Matrix, x: &Activations, y: &Buffer, batch: u32) -> Result<Dispatch> {
        match self {
            Self::Chosen => matrix.gemm(gpu, x, y, batch),
            Self::Tiled => matrix.gemm_tiled(gpu, x, y, batch),
            Self::Cooperative(tile, splits) => matrix.gemm_split(gpu, x, y, batch, tile, splits),
        }
    }

    /// Error as a share of `sum |w x|`.
    fn bound(self, gpu: &Gpu, shape: Shape) -> f64 {
        let Shape { format, rows, cols, batch } = shape;
        let chosen = || CooperativeTile::choose(rows, batch, gpu.target());
        if self == Self::Tiled || self == Self::Chosen && chosen().is_none() {
            let steps = match format {
                Format::F16 => cols,
                _ => cols / 32 * if format.has_min() { 2 } else { 1 },
            };
            return f64::from(steps + 16) * EPSILON;
        }
        let rounding = if format == Format::F16 { 0.5_f64.powi(10) } else { 0.5_f64.powi(9) };
        rounding + f64::from(cols + 16) * 2.0 * EPSILON
    }
}

fn gemm(gpu: &Gpu, random: &mut Random, report: &mut Report, shape: Shape, path: Path) -> Result<()> {
    report.begin_shape();
    let Shape { format, rows, cols, batch } = shape;
    let weights = random.weights(format, (rows * cols) as usize);
    let matrix = Matrix::upload(gpu, format, rows, cols, &weights)?;
    let x = random.values((batch * cols) as usize);
    let input = input(gpu, report, shape, &x)?;
    let y = poisoned(gpu, (batch * rows) as usize)?;
    let found = output(gpu, &[&path.launch(gpu, &matrix, &input.activations, &y, batch)?], &y)?;
    let (exact, magnitude) = exact(shape, &dequantize(format, &weights), &input.values);
    let bound = path.bound(gpu, shape);
    let text = format!("{rows} x {cols}, batch {batch}");
    let name = format!("{} {}", path.name(), format.name());
    report.add(name.clone(), &text, worst(&found, &exact, |i| bound * magnitude[i]));

    if path == Path::Chosen {
        let (width, first) = (rows + 9, 5);
        let y = gpu.upload(&vec![-7.0_f32; (batch * width) as usize])?;
        let launch = matrix.gemm_into(gpu, &input.activations, &y, batch, first, width)?;
        let wide = output(gpu, &[&launch], &y)?;
        let expected = placed(&found, rows as usize, (first as usize, width as usize));
        report.add_equal(format!("{name}: part of wider rows"), &text, same_bits(&wide, &expected));
    }
    if let Path::Cooperative(tile, splits) = path {
        let other = if tile == SMALL { LARGE } else { SMALL };
        let splits = match splits {
            ColumnSplits::Apart(split) if gpu.target().cooperative != Some(8) => ColumnSplits::InTurn(split),
            splits => splits,
        };
        let y = poisoned(gpu, (batch * rows) as usize)?;
        let launch = matrix.gemm_split(gpu, &input.activations, &y, batch, other, splits)?;
        let equal = same_bits(&output(gpu, &[&launch], &y)?, &found);
        report.add_equal(format!("{name}: another tile"), &text, equal);
    }

    let row = random.range(0, batch - 1) as usize;
    let alone = x[row * cols as usize..][..cols as usize].to_vec();
    let input = self::input(gpu, report, Shape { batch: 1, ..shape }, &alone)?;
    let y = poisoned(gpu, rows as usize)?;
    let single = output(gpu, &[&path.launch(gpu, &matrix, &input.activations, &y, 1)?], &y)?;
    let equal = same_bits(&single, &found[row * rows as usize..][..rows as usize]);
    report.add_equal(format!("{name}: batch of one"), &text, equal);
    Ok(())
}

/// Tiles that every device with f16 can run.
pub(super) const SMALL: CooperativeTile =
    CooperativeTile { batch: 16, rows: 16, depth: 64, across: 1, down: 1, stages: 1 };
const LARGE: CooperativeTile =
    CooperativeTile { batch: 32, rows: 64, depth: 32, across: 1, down: 2, stages: 2 };

fn gather(gpu: &Gpu, random: &mut Random, report: &mut Report, shape: Shape) -> Result<()> {
    let Shape { format, rows, cols, batch } = shape;
    let weights = random.weights(format, (rows * cols) as usize);
    let matrix = Matrix::upload(gpu, format, rows, cols, &weights)?;
    report.begin_shape();
    let tokens: Vec<u32> = (0..batch).map(|_| random.range(0, rows - 1)).collect();
    let out = poisoned(gpu, (batch * cols) as usize)?;
    let found = output(gpu, &[&matrix.gather(gpu, &gpu.upload(&tokens)?, &out)?], &out)?;
    let values = dequantize(format, &weights);
    let exact: Vec<f64> =
        tokens.iter().flat_map(|&t| &values[(t * cols) as usize..][..cols as usize]).copied().collect();
    // A quant and a minimum of opposite sign may exceed their difference; both are below 2.
    let bound = |i: usize| 4.0 * EPSILON * if format.has_min() { 2.0 } else { exact[i].abs() };
    let text = format!("{batch} of {rows} x {cols}");
    report.add(format!("gather {}", format.name()), &text, worst(&found, &exact, bound));
    let launch = matrix.gather_scaled(gpu, &gpu.upload(&tokens)?, &out, 7.5)?;
    let scaled = output(gpu, &[&launch], &out)?;
    let expected: Vec<f64> = exact.iter().map(|x| 7.5 * x).collect();
    report.add("gather, scaled".to_owned(), &text, worst(&scaled, &expected, |i| 8.0 * bound(i)));
    let beyond = gpu.upload(&vec![rows + batch; tokens.len()])?;
    let first = gpu.upload(&vec![0; tokens.len()])?;
    let launch = matrix.gather_or_first(gpu, &beyond, &out, 7.5)?;
    let found = output(gpu, &[&launch], &out)?;
    let expected = output(gpu, &[&matrix.gather_scaled(gpu, &first, &out, 7.5)?], &out)?;
    report.add_equal("gather, beyond".to_owned(), &text, same_bits(&found, &expected));
    Ok(())
}

/// `(n + 16) 2^-23` with the additions per lane `n`.
pub(super) fn bound_factor(gpu: &Gpu, shape: Shape) -> f64 {
    let Shape { format, cols, batch, .. } = shape;
    let lanes = Tile::choose(format, cols, batch, gpu.target()).lanes;
    let (values, additions) = match format {
        Format::F16 => (8, 8),
        Format::Q4K | Format::Q5K => (32, 2),
        Format::Q8_0 | Format::Q4_0 | Format::IQ4NL | Format::MXFP4 | Format::Q6K => (32, 1),
    };
    let per_lane = (cols / values).div_ceil(lanes) * additions + lanes.ilog2();
    f64::from(per_lane + 16) * f64::from(f32::EPSILON)
}

/// Sums of products, and sums of their magnitudes; `[batch, rows]`.
pub(super) fn exact(shape: Shape, weights: &[f64], x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let cols = shape.cols as usize;
    let mut sums = Vec::new();
    let mut magnitudes = Vec::new();
    for x in x.chunks_exact(cols) {
        for w in weights.chunks_exact(cols) {
            let products = || w.iter().zip(x).map(|(w, x)| w * x);
            sums.push(products().sum());
            magnitudes.push(products().map(f64::abs).sum());
        }
    }
    // The minimum of a group is added apart from its quants: its magnitude counts apart too.
    if shape.format.has_min() {
        magnitudes.iter_mut().for_each(|m| *m *= 4.0);
    }
    (sums, magnitudes)
}

pub(super) fn input(gpu: &Gpu, report: &mut Report, shape: Shape, x: &[f32]) -> Result<Input> {
    let buffer = gpu.upload(x)?;
    if !shape.format.takes_quantized() {
        return Ok(Input { activations: buffer.into(), values: x.iter().map(|&x| x.into()).collect() });
    }
    let quantized = Quantized::new(gpu, shape.batch, shape.cols)?;
    gpu.run(&[&gpu.quantize(&buffer, &quantized)?])?;
    let (values, sums_match) = stored(gpu, &quantized)?;
    let text = format!("{} x {}", shape.batch, shape.cols);
    let largest = |i: usize| x[i / 32 * 32..][..32].iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    let bound = |i: usize| f64::from(largest(i)) / 127.0 * (0.5 + 1.0 / 16_384.0);
    let given: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    let rounded: Vec<f32> = values.iter().map(|&v| v as f32).collect();
    report.add("quantize".to_owned(), &text, worst(&rounded, &given, bound));
    report.add_equal("quantize: sums".to_owned(), &text, sums_match);
    Ok(Input { activations: quantized.into(), values })
}

/// Stored values in order, and whether the stored sums match the quants.
pub(super) fn stored(gpu: &Gpu, quantized: &Quantized) -> Result<(Vec<f64>, bool)> {
    let quants: Vec<i8> = gpu.download(quantized.quants())?;
    let scales: Vec<[u32; 2]> = gpu.download(quantized.scales())?;
    let cols = quantized.cols() as usize;
    let groups = cols / 32;
    let mut values = Vec::with_capacity(quants.len());
    let mut sums_match = true;
    for (row, quants) in quants.chunks_exact(cols).enumerate() {
        for group in 0..groups {
            let [scale, sum] = scales[row * groups + group];
            let halves = [&quants[group * 16..][..16], &quants[cols / 2 + group * 16..][..16]];
            let half_sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum::<i16>() as u16;
            sums_match &= [half_sum(halves[0]), half_sum(halves[1])] == [sum as u16, (sum >> 16) as u16];
            values.extend(halves.concat().iter().map(|&q| f64::from(f32::from_bits(scale)) * f64::from(q)));
        }
    }
    Ok((values, sums_match))
}
