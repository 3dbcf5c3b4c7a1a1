//! Several residual streams, and gates of which few pass.

use super::{EPSILON, Report, output, poisoned, same_bits, worst};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::reference::Random;
use crate::stream_keys::{CutGatesKernel, MAX_STREAMS, StreamRows};
use crate::streams::StreamGates;

const EPS: f32 = 1e-6;

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    ends(gpu, random, report)?;
    predict(gpu, random, report)?;
    correct(gpu, random, report)?;
    cut_gates(gpu, random, report)
}

/// Streams of rows, `[rows, count, dim]`.
struct Case {
    key: StreamRows,
    rows: usize,
    values: Vec<f32>,
    text: String,
}

impl Case {
    fn new(random: &mut Random, report: &mut Report) -> Self {
        report.begin_shape();
        let (count, dim) = (random.range(2, MAX_STREAMS), 4 * random.range(1, random.limit(400, 300)));
        let key = StreamRows { count, dim, active: random.range(0, count - 1), eps_bits: EPS.to_bits() };
        let rows = random.range(1, 4) as usize;
        let values = random.values(rows * (count * dim) as usize);
        Self { key, rows, values, text: format!("{rows} x {count} x {dim}") }
    }

    fn count(&self) -> usize {
        self.key.count as usize
    }

    fn dim(&self) -> usize {
        self.key.dim as usize
    }

    /// A stream of a row in float64.
    fn stream(&self, row: usize, stream: usize) -> Vec<f64> {
        let at = (row * self.count() + stream) * self.dim();
        self.values[at..at + self.dim()].iter().map(|&x| x.into()).collect()
    }

    /// `(dim / 256 + 64) 2^-23`.
    fn unit(&self) -> f64 {
        (self.dim() as f64 / 256.0 + 64.0) * EPSILON
    }
}

/// Weights of gates.
struct Weights {
    norm: Vec<f32>,
    router: Vec<f32>,
    shares: Vec<f32>,
}

impl Weights {
    fn new(random: &mut Random, case: &Case, shares: usize) -> Self {
        Self {
            norm: random.values(case.dim()),
            router: random.values(case.count() * case.dim()).iter().map(|x| x * 0.2).collect(),
            shares: random.values(shares),
        }
    }

    /// Gates by a stream, and their bounds.
    fn gates(&self, case: &Case, value: &[f64]) -> Vec<(f64, f64)> {
        let square = value.iter().map(|x| x * x).sum::<f64>() / value.len() as f64;
        let scale = (square + f64::from(EPS)).sqrt().recip();
        let gate = |router: &[f32]| {
            let products = value
                .iter()
                .zip(&self.norm)
                .zip(router)
                .map(|((x, &norm), &router)| x * scale * f64::from(norm) * f64::from(router));
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for product in products {
                sum += product;
                magnitude += product.abs();
            }
            (sum.tanh(), case.unit() * (1.0 + magnitude))
        };
        self.router.chunks_exact(case.dim()).map(gate).collect()
    }
}

/// Sum of weighted gates, its bound, and the sum of its magnitudes.
fn weighted(weights: &[f32], gates: &[(f64, f64)]) -> (f64, f64, f64) {
    let mut sums = (0.0, 0.0, 0.0);
    for (&weight, &(gate, bound)) in weights.iter().zip(gates) {
        let weight = f64::from(weight);
        sums.0 += weight * gate;
        sums.1 += weight.abs() * bound;
        sums.2 += (weight * gate).abs();
    }
    sums
}

/// Streams from embeddings and projections, additions, and their mean.
fn ends(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    let case = Case::new(random, report);
    let (count, dim) = (case.count(), case.dim());
    let like = random.values(case.rows * dim);
    let factor = |own: &[f64], like: &[f64]| {
        let mean = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>() / dim as f64;
        (mean(like) / mean(own).max(1e-5)).sqrt()
    };
    let of_row = |values: &[f32], row: usize| -> Vec<f64> {
        values[row * dim..][..dim].iter().map(|&x| x.into()).collect()
    };
    let mut exact = Vec::new();
    for row in 0..case.rows {
        let like = of_row(&like, row);
        exact.extend(&like);
        for stream in 1..count {
            let own = case.stream(row, stream);
            let factor = factor(&own, &like);
            exact.extend(own.iter().map(|x| x * factor));
        }
    }
    let (streams, hidden) = (gpu.upload(&case.values)?, gpu.upload(&like)?);
    let found = output(gpu, &[&gpu.split_streams(case.key, &hidden, &streams)?], &streams)?;
    let bound = |i: usize| (dim as f64 / 512.0 + 32.0) * EPSILON * exact[i].abs();
    report.add("split_streams".to_owned(), &case.text, worst(&found, &exact, bound));

    let added = output(gpu, &[&gpu.add_to_streams(case.key, &streams, &hidden)?], &streams)?;
    let sums: Vec<f32> = (0..found.len())
        .map(|i| {
            let (row, stream) = (i / (count * dim), i / dim % count);
            if stream == 0 { found[i] } else { found[i] + like[row * dim + i % dim] }
        })
        .collect();
    report.add_equal("add_to_streams".to_owned(), &case.text, same_bits(&added, &sums));

    let projected = random.values(case.rows * (count - 1) * dim);
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for row in 0..case.rows {
        let first = of_row(&added, row * count);
        let mut sum = first.clone();
        let mut magnitudes: Vec<f64> = first.iter().map(|x| x.abs()).collect();
        for other in 0..count - 1 {
            let own = of_row(&projected, row * (count - 1) + other);
            let factor = factor(&own, &first);
            for ((sum, magnitude), x) in sum.iter_mut().zip(&mut magnitudes).zip(own) {
                *sum += x * factor;
                *magnitude += (x * factor).abs();
            }
        }
        exact.extend(sum.iter().map(|sum| sum / count as f64));
        bounds.extend(magnitudes.iter().map(|m| (dim as f64 / 512.0 + 40.0) * EPSILON * m / count as f64));
    }
    let out = poisoned(gpu, case.rows * dim)?;
    let launch = gpu.merge_streams(case.key, (&streams, &gpu.upload(&projected)?), &out)?;
    let found = output(gpu, &[&launch], &out)?;
    report.add("merge_streams".to_owned(), &case.text, worst(&found, &exact, |i| bounds[i]));
    Ok(())
}

fn predict(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    let case = Case::new(random, report);
    let (count, dim, active) = (case.count(), case.dim(), case.key.active as usize);
    let weights = Weights::new(random, &case, count * count * count);
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for row in 0..case.rows {
        let gates = weights.gates(&case, &case.stream(row, active));
        let before: Vec<_> = (0..count).map(|stream| case.stream(row, stream)).collect();
        for (s, shares) in weights.shares.chunks_exact(count * count).enumerate() {
            let shares: Vec<_> = shares.chunks_exact(count).map(|of| weighted(of, &gates)).collect();
            for i in 0..dim {
                let (mut sum, mut magnitude, mut error) = (before[s][i], before[s][i].abs(), 0.0);
                for (before, (share, bound, size)) in before.iter().zip(&shares) {
                    sum += share * before[i];
                    magnitude += size * before[i].abs();
                    error += bound * before[i].abs();
                }
                exact.push(sum);
                bounds.push(error + (8 * count + 8) as f64 * EPSILON * magnitude);
            }
        }
    }
    let uploaded = [&weights.norm, &weights.router, &weights.shares].map(|values| gpu.upload(values));
    let [norm, router, shares] = uploaded;
    let (norm, router, shares) = (norm?, router?, shares?);
    let gates = StreamGates { norm: &norm, router: &router, shares: &shares };
    let (streams, hidden) = (gpu.upload(&case.values)?, poisoned(gpu, case.rows * dim)?);
    let found = output(gpu, &[&gpu.predict_streams(case.key, &streams, gates, &hidden)?], &streams)?;
    report.add("predict_streams".to_owned(), &case.text, worst(&found, &exact, |i| bounds[i]));
    let copied: Vec<f32> = gpu.download(&hidden)?;
    let own = found.chunks_exact(count * dim).flat_map(|row| &row[active * dim..][..dim]).copied();
    let equal = same_bits(&copied, &own.collect::<Vec<_>>());
    report.add_equal("predict_streams: active".to_owned(), &case.text, equal);
    // The last row alone.
    let last = (case.rows - 1) * count * dim;
    let (alone, hidden) = (gpu.upload(&case.values[last..])?, poisoned(gpu, dim)?);
    let single = output(gpu, &[&gpu.predict_streams(case.key, &alone, gates, &hidden)?], &alone)?;
    let equal = same_bits(&single, &found[last..]);
    report.add_equal("predict_streams: a row alone".to_owned(), &case.text, equal);
    Ok(())
}

fn correct(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    let case = Case::new(random, report);
    let (count, dim, active) = (case.count(), case.dim(), case.key.active as usize);
    let weights = Weights::new(random, &case, count * count);
    let (hidden, delta) = (random.values(case.rows * dim), random.values(case.rows * dim));
    let factors = random.values(dim);
    let sums: Vec<f64> = hidden.iter().zip(&delta).map(|(x, d)| f64::from(x + d)).collect();
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for (row, value) in sums.chunks_exact(dim).enumerate() {
        let (gates, predicted) = (weights.gates(&case, value), case.stream(row, active));
        for (stream, shares) in weights.shares.chunks_exact(count).enumerate() {
            let (share, bound, size) = weighted(shares, &gates);
            for (i, before) in case.stream(row, stream).into_iter().enumerate() {
                let difference = value[i] - predicted[i];
                let magnitude = before.abs() + (1.0 + size) * (value[i].abs() + predicted[i].abs());
                exact.push(before + (1.0 + share) * difference);
                bounds.push(bound * difference.abs() + (8 * count + 8) as f64 * EPSILON * magnitude);
            }
        }
    }
    let (norm, router) = (gpu.upload(&weights.norm)?, gpu.upload(&weights.router)?);
    let shares = gpu.upload(&weights.shares)?;
    let gates = StreamGates { norm: &norm, router: &router, shares: &shares };
    let (streams, active_stream) = (gpu.upload(&case.values)?, gpu.upload(&hidden)?);
    let operands = (&active_stream, &gpu.upload(&delta)?);
    let launch = gpu.correct_streams(case.key, &streams, gates, operands, &gpu.upload(&factors)?)?;
    let found = output(gpu, &[&launch], &streams)?;
    report.add("correct_streams".to_owned(), &case.text, worst(&found, &exact, |i| bounds[i]));
    let scaled: Vec<f32> = gpu.download(&active_stream)?;
    let own = found.chunks_exact(count * dim).flat_map(|row| &row[active * dim..][..dim]);
    let expected: Vec<f32> = own.zip(factors.iter().cycle()).map(|(x, factor)| x * factor).collect();
    report.add_equal("correct_streams: active".to_owned(), &case.text, same_bits(&scaled, &expected));
    Ok(())
}

fn cut_gates(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, cols) = (random.range(1, 4) as usize, 4 * random.range(1, random.limit(3000, 400)));
    let width = cols + 4 * random.range(0, 100);
    let deviations = [1.644_853_6, 0.0, -0.5, 0.7][random.range(0, 3) as usize];
    let key = CutGatesKernel { cols, width, deviations_bits: f32::to_bits(deviations) };
    let x = random.values(rows * width as usize);
    let unit = (f64::from(cols) / 256.0 + 32.0) * EPSILON;
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for row in x.chunks_exact(width as usize) {
        let (gates, rest) = row.split_at(cols as usize);
        let mean_of =
            |of: &dyn Fn(f64) -> f64| gates.iter().map(|&x| of(x.into())).sum::<f64>() / f64::from(cols);
        let (mean, size) = (mean_of(&|x| x), mean_of(&f64::abs));
        let deviation = mean_of(&|x| (x - mean).powi(2)).sqrt();
        let (times, cutoff) = (f64::from(deviations), mean + deviation * f64::from(deviations));
        for &gate in gates {
            let gate = f64::from(gate);
            exact.push((gate - cutoff).max(0.0));
            bounds.push(unit * (size + times.abs() * (deviation + size) + gate.abs()));
        }
        exact.extend(rest.iter().map(|&x| f64::from(x)));
        bounds.resize(exact.len(), 0.0);
    }
    let buffer = gpu.upload(&x)?;
    let found = output(gpu, &[&gpu.cut_gates(key, &buffer)?], &buffer)?;
    let text = format!("{rows} x {cols} of {width}, {deviations} deviations");
    report.add("cut_gates".to_owned(), &text, worst(&found, &exact, |i| bounds[i]));
    Ok(())
}
