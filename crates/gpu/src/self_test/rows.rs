//! Operations on rows.

use super::products::stored;
use super::{EPSILON, Report, output, poisoned, same_bits, worst};
use crate::activation::Activation;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::head_key::{CutHeadsKernel, stored_head_dim};
use crate::kernel::{HeadNormKernel, RopeKernel};
use crate::largest_key::LARGEST_VALUES;
use crate::layer_keys::{HeadValues, RowPart};
use crate::memory::Buffer;
use crate::reference::Random;
use crate::rope_layout::RopeLayout;
use crate::rows::{Quantized, RowOutput};

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    norm(gpu, random, report)?;
    layer_norm(gpu, random, report)?;
    let clamped = Activation::ClampedSilu { alpha_bits: 1.702_f32.to_bits(), limit_bits: 7.0_f32.to_bits() };
    for activation in [Activation::Silu, Activation::GeluTanh, clamped, Activation::SquaredRelu] {
        gated(gpu, random, report, activation)?;
    }
    for layout in [RopeLayout::Halves, RopeLayout::Interleaved] {
        rope(gpu, random, report, layout)?;
    }
    add(gpu, random, report)?;
    gated_part(gpu, random, report)?;
    join(gpu, random, report)?;
    for values in [HeadValues::Kept, HeadValues::Normed, HeadValues::Keys] {
        head_norm(gpu, random, report, (false, values))?;
    }
    head_norm(gpu, random, report, (true, HeadValues::Kept))?;
    cut_heads(gpu, random, report)?;
    copy_row(gpu, random, report)?;
    argmax(gpu, random, report)?;
    largest(gpu, random, report)
}

fn norm(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, cols) = (random.range(1, 5), 32 * random.range(1, 150));
    let (x, delta) = (random.values((rows * cols) as usize), random.values((rows * cols) as usize));
    let weight = random.values(cols as usize);
    let eps = 1e-5_f32;
    let text = format!("{rows} x {cols}");
    let weight_buffer = gpu.upload(&weight)?;
    let bound = (f64::from(cols) / 2048.0 + 16.0) * EPSILON;

    let exact = normalized(&x, &weight, eps);
    let out = poisoned(gpu, x.len())?;
    let x_buffer = gpu.upload(&x)?;
    let launch = gpu.rms_norm(&x_buffer, &weight_buffer, eps, rows, &out.clone().into())?;
    let found = output(gpu, &[&launch], &out)?;
    report.add("rms_norm".to_owned(), &text, worst(&found, &exact, |i| bound * exact[i].abs()));
    let again = output(gpu, &[&launch], &out)?;
    report.add_equal("rms_norm: repeated".to_owned(), &text, same_bits(&found, &again));
    let quantized = Quantized::new(gpu, rows, cols)?;
    let launch = gpu.rms_norm(&x_buffer, &weight_buffer, eps, rows, &quantized.clone().into())?;
    gpu.run(&[&launch])?;
    check_quantized(gpu, report, "rms_norm to 8 bits", &quantized, &found)?;

    let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| x + d).collect();
    let exact = normalized(&sum, &weight, eps);
    let delta_buffer = gpu.upload(&delta)?;
    let out = poisoned(gpu, x.len())?;
    let target: RowOutput = out.clone().into();
    let launch = gpu.add_rms_norm(&x_buffer, &delta_buffer, &weight_buffer, eps, rows, &target)?;
    let found = output(gpu, &[&launch], &out)?;
    report.add("add_rms_norm".to_owned(), &text, worst(&found, &exact, |i| bound * exact[i].abs()));
    let residual: Vec<f32> = gpu.download(&x_buffer)?;
    report.add_equal("add_rms_norm: residual".to_owned(), &text, same_bits(&residual, &sum));
    let scale = 0.22_f32;
    let x_buffer = gpu.upload(&x)?;
    let launch =
        gpu.add_scaled_rms_norm(&x_buffer, (&delta_buffer, scale), &weight_buffer, eps, rows, &target)?;
    let found = output(gpu, &[&launch], &out)?;
    let residual: Vec<f32> = gpu.download(&x_buffer)?;
    let exact: Vec<f64> =
        x.iter().zip(&delta).map(|(&x, &d)| f64::from(x) + f64::from(scale) * f64::from(d)).collect();
    let name = "add_scaled_rms_norm";
    report.add(format!("{name}: residual"), &text, worst(&residual, &exact, |_| 2.0 * EPSILON));
    let exact = normalized(&residual, &weight, eps);
    report.add(name.to_owned(), &text, worst(&found, &exact, |i| bound * exact[i].abs()));
    let copied = poisoned(gpu, x.len())?;
    let equal = output(gpu, &[&gpu.copy_rows(&x_buffer, rows, &copied.clone().into())?], &copied)?;
    report.add_equal("copy_rows".to_owned(), &text, same_bits(&equal, &residual));
    Ok(())
}

fn layer_norm(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    let (rows, cols) = (random.range(1, 5), 32 * random.range(1, 150));
    // Means far from 0, and rows of one value.
    let offset = [0.0, 3.0, 300.0][random.range(0, 2) as usize];
    let mut x: Vec<f32> = random.values((rows * cols) as usize).into_iter().map(|x| x + offset).collect();
    if random.range(0, 3) == 0 {
        x[..cols as usize].fill(offset);
    }
    let delta = random.values(x.len());
    let (weight, bias) = (random.values(cols as usize), random.values(cols as usize));
    let eps = 1e-5_f32;
    let text = format!("{rows} x {cols} around {offset}");
    let (weight_buffer, bias_buffer) = (gpu.upload(&weight)?, gpu.upload(&bias)?);
    let parameters = (&weight_buffer, &bias_buffer);

    let (exact, bounds) = centered(&x, (&weight, &bias), eps);
    let (x_buffer, out) = (gpu.upload(&x)?, poisoned(gpu, x.len())?);
    let launch = gpu.layer_norm(&x_buffer, parameters, eps, rows, &out.clone().into())?;
    let found = output(gpu, &[&launch], &out)?;
    report.add("layer_norm".to_owned(), &text, worst(&found, &exact, |i| bounds[i]));
    let again = output(gpu, &[&launch], &out)?;
    report.add_equal("layer_norm: repeated".to_owned(), &text, same_bits(&found, &again));
    let row = random.range(0, rows - 1) as usize * cols as usize;
    let one = gpu.upload(&x[row..row + cols as usize])?;
    let alone = poisoned(gpu, cols as usize)?;
    let launch = gpu.layer_norm(&one, parameters, eps, 1, &alone.clone().into())?;
    let equal = same_bits(&output(gpu, &[&launch], &alone)?, &found[row..row + cols as usize]);
    report.add_equal("layer_norm: a row alone".to_owned(), &text, equal);
    let quantized = Quantized::new(gpu, rows, cols)?;
    gpu.run(&[&gpu.layer_norm(&x_buffer, parameters, eps, rows, &quantized.clone().into())?])?;
    check_quantized(gpu, report, "layer_norm to 8 bits", &quantized, &found)?;

    let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| x + d).collect();
    let (exact, bounds) = centered(&sum, (&weight, &bias), eps);
    let (delta, out) = (gpu.upload(&delta)?, poisoned(gpu, x.len())?);
    let launch = gpu.add_layer_norm((&x_buffer, &delta), parameters, eps, rows, &out.clone().into())?;
    let found = output(gpu, &[&launch], &out)?;
    report.add("add_layer_norm".to_owned(), &text, worst(&found, &exact, |i| bounds[i]));
    let residual: Vec<f32> = gpu.download(&x_buffer)?;
    report.add_equal("add_layer_norm: residual".to_owned(), &text, same_bits(&residual, &sum));
    Ok(())
}

/// Layer norms of rows in float64, and their bounds.
fn centered(x: &[f32], (weight, bias): (&[f32], &[f32]), eps: f32) -> (Vec<f64>, Vec<f64>) {
    let cols = weight.len();
    let unit = (cols as f64 / 2048.0 + 16.0) * EPSILON;
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for row in x.chunks_exact(cols) {
        let mean_of =
            |value: &dyn Fn(f64) -> f64| row.iter().map(|&x| value(f64::from(x))).sum::<f64>() / cols as f64;
        let (mean, magnitude) = (mean_of(&|x| x), mean_of(&f64::abs));
        let scale = 1.0 / (mean_of(&|x| (x - mean).powi(2)) + f64::from(eps)).sqrt();
        for (&x, (&weight, &bias)) in row.iter().zip(weight.iter().zip(bias)) {
            let (distance, weight, bias) = (f64::from(x) - mean, f64::from(weight), f64::from(bias));
            exact.push(distance * scale * weight + bias);
            bounds.push(2.0 * unit * (weight.abs() * scale * (magnitude + distance.abs()) + bias.abs()));
        }
    }
    (exact, bounds)
}

pub(super) fn normalized(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mut exact = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let scale = 1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt();
        exact.extend(row.iter().zip(weight).map(|(&x, &w)| f64::from(x) * scale * f64::from(w)));
    }
    exact
}

/// A fused 8-bit output against the f32 output of the same operation.
pub(super) fn check_quantized(
    gpu: &Gpu,
    report: &mut Report,
    name: &str,
    quantized: &Quantized,
    values: &[f32],
) -> Result<()> {
    let (stored, sums_match) = stored(gpu, quantized)?;
    let stored: Vec<f32> = stored.iter().map(|&v| v as f32).collect();
    let exact: Vec<f64> = values.iter().map(|&v| v.into()).collect();
    let largest = |i: usize| values[i / 32 * 32..][..32].iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    let bound = |i: usize| f64::from(largest(i)) / 127.0 * (0.5 + 1.0 / 1024.0);
    let text = format!("{} values", values.len());
    report.add(name.to_owned(), &text, worst(&stored, &exact, bound));
    report.add_equal(format!("{name}: sums"), &text, sums_match);
    Ok(())
}

fn gated(gpu: &Gpu, random: &mut Random, report: &mut Report, activation: Activation) -> Result<()> {
    report.begin_shape();
    let (rows, cols) = (random.range(1, 5), 32 * random.range(1, 100));
    let width = activation.inputs() * cols;
    let mut x = random.values((rows * width) as usize);
    x.iter_mut().for_each(|x| *x *= 12.0);
    x[0] = -200.0; // exp and tanh saturate
    x[1] = 1e-30; // squares vanish
    let name = match activation {
        Activation::ClampedSilu { .. } => "gated clamped silu".to_owned(),
        Activation::SquaredRelu => "squared relu".to_owned(),
        other => format!("gated {other:?}").to_lowercase(),
    };
    let text = format!("{rows} x {cols}");
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for row in x.chunks_exact(width as usize) {
        let (gate, up) = (&row[..cols as usize], &row[(width - cols) as usize..]);
        for (&gate, &up) in gate.iter().zip(up) {
            let (gate, up) = (f64::from(gate), f64::from(up));
            let (value, scale) = gated_exactly(activation, gate, up);
            exact.push(value);
            bounds.push(64.0 * EPSILON * scale);
        }
    }
    let input = gpu.upload(&x)?;
    let out = poisoned(gpu, exact.len())?;
    let found = output(gpu, &[&gpu.gated(activation, &input, rows, cols, &out.clone().into())?], &out)?;
    report.add(name.clone(), &text, worst(&found, &exact, |i| bounds[i]));
    let quantized = Quantized::new(gpu, rows, cols)?;
    gpu.run(&[&gpu.gated(activation, &input, rows, cols, &quantized.clone().into())?])?;
    check_quantized(gpu, report, &format!("{name} to 8 bits"), &quantized, &found)
}

/// Output of a gate in float64, and the magnitude that its bound refers to.
fn gated_exactly(activation: Activation, gate: f64, up: f64) -> (f64, f64) {
    // exp saturates at 80.
    let magnitude = |value: f64, product: f64| value.abs() + 1e-33 / (64.0 * EPSILON) * product.abs();
    match activation {
        Activation::Silu => {
            let value = gate / (1.0 + (-gate).exp()) * up;
            (value, magnitude(value, gate * up))
        }
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
            (0.5 * gate * (1.0 + inner.tanh()) * up, (gate * up).abs())
        }
        Activation::ClampedSilu { alpha_bits, limit_bits } => {
            let [alpha, limit] = [alpha_bits, limit_bits].map(|bits| f64::from(f32::from_bits(bits)));
            let (gate, up) = (gate.min(limit), 1.0 + up.clamp(-limit, limit));
            let value = gate / (1.0 + (-alpha * gate).exp()) * up;
            (value, magnitude(value, gate * up))
        }
        Activation::SquaredRelu => {
            let value = up.max(0.0).powi(2);
            (value, (value + 0.5_f64.powi(126) / EPSILON) / 64.0)
        }
    }
}

fn cut_heads(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, heads, head_dim) = (random.range(1, 5), random.range(1, 9), random.range(1, 130));
    let stored = stored_head_dim(head_dim) as usize;
    let x = random.values((rows * heads) as usize * stored);
    let exact: Vec<f32> =
        x.chunks_exact(stored).flat_map(|head| &head[..head_dim as usize]).copied().collect();
    let out = poisoned(gpu, exact.len())?;
    let launch = gpu.cut_heads(CutHeadsKernel { heads, head_dim }, &gpu.upload(&x)?, &out)?;
    let equal = same_bits(&output(gpu, &[&launch], &out)?, &exact);
    report.add_equal("cut_heads".to_owned(), &format!("{rows} x {heads} of {head_dim}"), equal);
    Ok(())
}

/// Random positions below 100, with angles.
pub(super) struct Turns {
    half: usize,
    positions: Vec<u32>,
    angles: Vec<f32>,
}

impl Turns {
    pub(super) fn new(random: &mut Random, rows: usize, rotary_dim: u32) -> Self {
        let half = rotary_dim as usize / 2;
        let positions = (0..rows).map(|_| random.range(0, 99)).collect();
        let angle = |position: usize, j: usize| {
            position as f64 * 10_000.0_f64.powf(-(2.0 * j as f64) / f64::from(rotary_dim))
        };
        let turns = (0..100).flat_map(|p| (0..half).map(move |j| angle(p, j)));
        let angles = turns.flat_map(|a| [a.cos() as f32, a.sin() as f32]).collect();
        Self { half, positions, angles }
    }

    /// Position of a row.
    pub(super) fn position(&self, row: usize) -> usize {
        self.positions[row] as usize
    }

    /// Angles and positions on the device.
    pub(super) fn upload(&self, gpu: &Gpu) -> Result<(Buffer, Buffer)> {
        Ok((gpu.upload(&self.angles)?, gpu.upload(&self.positions)?))
    }

    /// A head of a row in float64, and the bounds.
    pub(super) fn rotate(&self, row: usize, head: &[f32], layout: RopeLayout) -> (Vec<f64>, Vec<f64>) {
        let mut exact: Vec<f64> = head.iter().map(|&x| x.into()).collect();
        let mut bounds = vec![0.0; head.len()];
        for j in 0..self.half {
            let (a, b) = match layout {
                RopeLayout::Halves => (j, j + self.half),
                RopeLayout::Interleaved => (2 * j, 2 * j + 1),
            };
            let turn = &self.angles[(self.positions[row] as usize * self.half + j) * 2..];
            let (cos, sin, left, right) = (f64::from(turn[0]), f64::from(turn[1]), exact[a], exact[b]);
            (exact[a], exact[b]) = (left * cos - right * sin, right * cos + left * sin);
            bounds[a] = 2.0 * EPSILON * (left.abs() + right.abs());
            bounds[b] = bounds[a];
        }
        (exact, bounds)
    }
}

fn rope(gpu: &Gpu, random: &mut Random, report: &mut Report, layout: RopeLayout) -> Result<()> {
    report.begin_shape();
    let head_dim = 2 * random.range(1, 64);
    let rotary_dim = 2 * random.range(1, head_dim / 2);
    let key = RopeKernel { heads: random.range(1, 9), head_dim, rotary_dim, layout };
    let rows = random.range(1, 6) as usize;
    let turns = Turns::new(random, rows, rotary_dim);
    let x = random.values(rows * (key.heads * head_dim) as usize);
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for (index, head) in x.chunks_exact(head_dim as usize).enumerate() {
        let (values, errors) = turns.rotate(index / key.heads as usize, head, layout);
        exact.extend(values);
        bounds.extend(errors);
    }
    let (angles, positions) = turns.upload(gpu)?;
    let buffer = gpu.upload(&x)?;
    let launch = gpu.rope(key, &buffer, &angles, &positions)?;
    let found = output(gpu, &[&launch], &buffer)?;
    let text = format!("{rows} x {} x {head_dim}, rotary {rotary_dim}", key.heads);
    let name = format!("rope {layout:?}").to_lowercase();
    report.add(name, &text, worst(&found, &exact, |i| bounds[i]));
    Ok(())
}

fn add(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let n = random.range(1, 5000) as usize;
    let (x, y) = (random.values(n), random.values(n));
    let buffer = gpu.upload(&x)?;
    let launch = gpu.add(&buffer, &gpu.upload(&y)?)?;
    let found = output(gpu, &[&launch], &buffer)?;
    let exact: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    report.add_equal("add".to_owned(), &n.to_string(), same_bits(&found, &exact));
    report.begin_shape();
    let (rows, cols) = (random.range(1, 9) as usize, 4 * random.range(1, 300) as usize);
    let (x, bias) = (random.values(rows * cols), random.values(cols));
    let buffer = gpu.upload(&x)?;
    let found = output(gpu, &[&gpu.add(&buffer, &gpu.upload(&bias)?)?], &buffer)?;
    let exact: Vec<f32> = x.iter().zip(bias.iter().cycle()).map(|(x, y)| x + y).collect();
    report.add_equal("add a bias".to_owned(), &format!("{rows} x {cols}"), same_bits(&found, &exact));
    let (factor, y) = (random.value(), random.values(rows * cols));
    let buffer = gpu.upload(&x)?;
    let launch = gpu.add_and_scale(&buffer, &gpu.upload(&y)?, &gpu.upload(&[factor])?)?;
    let found = output(gpu, &[&launch], &buffer)?;
    let exact: Vec<f32> = x.iter().zip(&y).map(|(x, y)| (x + y) * factor).collect();
    report.add_equal("add_and_scale".to_owned(), &format!("{rows} x {cols}"), same_bits(&found, &exact));
    Ok(())
}

/// Gates of a part of longer rows, into rows that are filled up.
fn gated_part(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, values) = (random.range(1, 5), 4 * random.range(1, 80));
    let (first, behind) = (4 * random.range(0, 9), 4 * random.range(0, 9));
    let part = RowPart { values, width: first + values + behind, first };
    let (gate, up) = (random.values((rows * values) as usize), random.values((rows * part.width) as usize));
    let activation = Activation::GeluTanh;
    let cols = values.next_multiple_of(32);
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for (gate, up) in gate.chunks_exact(values as usize).zip(up.chunks_exact(part.width as usize)) {
        for (&gate, &up) in gate.iter().zip(&up[first as usize..]) {
            let (value, scale) = gated_exactly(activation, gate.into(), up.into());
            exact.push(value);
            bounds.push(64.0 * EPSILON * scale);
        }
        exact.resize(exact.len().next_multiple_of(cols as usize), 0.0);
        bounds.resize(exact.len(), 0.0);
    }
    let text = format!("{rows} x {}", part.name());
    let copied = poisoned(gpu, exact.len())?;
    let launch = gpu.copy_part(part, &gpu.upload(&up)?, (rows, cols), &copied.clone().into())?;
    let found = output(gpu, &[&launch], &copied)?;
    let mut parts = Vec::new();
    for up in up.chunks_exact(part.width as usize) {
        parts.extend_from_slice(&up[first as usize..][..values as usize]);
        parts.resize(parts.len().next_multiple_of(cols as usize), 0.0);
    }
    report.add_equal("copy_part".to_owned(), &text, same_bits(&found, &parts));
    let operands = (&gpu.upload(&gate)?, &gpu.upload(&up)?);
    let out = poisoned(gpu, exact.len())?;
    let launch = gpu.gated_part((activation, part), operands, (rows, cols), &out.clone().into())?;
    let found = output(gpu, &[&launch], &out)?;
    report.add("gated_part".to_owned(), &text, worst(&found, &exact, |i| bounds[i]));
    let quantized = Quantized::new(gpu, rows, cols)?;
    gpu.run(&[&gpu.gated_part((activation, part), operands, (rows, cols), &quantized.clone().into())?])?;
    check_quantized(gpu, report, "gated_part to 8 bits", &quantized, &found)
}

/// Rows of two buffers side by side.
fn join(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, cols) = (random.range(1, 6), 16 * random.range(1, 140));
    let values = (rows * cols) as usize;
    let (x, y) = (random.values(values), random.values(values));
    let rows_of = |values: &[f32]| values.chunks(cols as usize).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let pairs = rows_of(&x).into_iter().zip(rows_of(&y));
    let exact: Vec<f32> = pairs.flat_map(|(x, y)| [x, y].concat()).collect();
    let text = format!("{rows} x 2 x {cols}");
    let (x, y, out) = (gpu.upload(&x)?, gpu.upload(&y)?, poisoned(gpu, exact.len())?);
    let launch = gpu.join_rows([&x, &y], (rows, cols), &out.clone().into())?;
    let found = output(gpu, &[&launch], &out)?;
    report.add_equal("join_rows".to_owned(), &text, same_bits(&found, &exact));
    let quantized = Quantized::new(gpu, rows, 2 * cols)?;
    gpu.run(&[&gpu.join_rows([&x, &y], (rows, cols), &quantized.clone().into())?])?;
    check_quantized(gpu, report, "join_rows to 8 bits", &quantized, &found)
}

fn head_norm(
    gpu: &Gpu,
    random: &mut Random,
    report: &mut Report,
    (together, values): (bool, HeadValues),
) -> Result<()> {
    report.begin_shape();
    let (heads, kv_heads, head_dim) = (random.range(1, 9), random.range(1, 4), 4 * random.range(1, 80));
    let (rows, dim) = (random.range(1, 5) as usize, head_dim as usize);
    let key = HeadNormKernel { heads, kv_heads, head_dim, eps_bits: 1e-5_f32.to_bits(), together, values };
    let all = (heads + 2 * kv_heads) as usize;
    let norms = if together { (heads + kv_heads) as usize } else { 2 };
    let (x, weights) = (random.values(rows * all * dim), random.values(norms * dim));
    let buffer = gpu.upload(&x)?;
    let found = output(gpu, &[&gpu.head_norm(key, &buffer, &gpu.upload(&weights)?)?], &buffer)?;
    let mut exact = Vec::new();
    for row in x.chunks_exact(all * dim).filter(|_| together) {
        let (queries, rest) = row.split_at(heads as usize * dim);
        let (keys, values) = rest.split_at(kv_heads as usize * dim);
        exact.extend(normalized(queries, &weights[..queries.len()], 1e-5));
        exact.extend(normalized(keys, &weights[queries.len()..], 1e-5));
        exact.extend(values.iter().map(|&x| f64::from(x)));
    }
    let unit = vec![1.0; dim];
    for (index, head) in x.chunks_exact(dim).enumerate().filter(|_| !together) {
        let before = index.saturating_sub(kv_heads as usize) * dim;
        match (index % all) as u32 {
            at if at < heads => exact.extend(normalized(head, &weights[..dim], 1e-5)),
            at if at < heads + kv_heads => exact.extend(normalized(head, &weights[dim..], 1e-5)),
            _ if values == HeadValues::Normed => exact.extend(normalized(head, &unit, 1e-5)),
            _ if values == HeadValues::Keys => exact.extend(normalized(&x[before..][..dim], &unit, 1e-5)),
            _ => exact.extend(head.iter().map(|&x| f64::from(x))),
        }
    }
    let (width, unit) = if together { (heads * head_dim, 512.0) } else { (head_dim, 2048.0) };
    let bound = (f64::from(width) / unit + 16.0) * EPSILON;
    let text = format!("{rows} x {heads} + 2 x {kv_heads} heads of {head_dim}");
    let name = match (together, values) {
        (true, _) => "head_norm, together".to_owned(),
        (false, HeadValues::Kept) => "head_norm".to_owned(),
        (false, values) => format!("head_norm, values {values:?}").to_lowercase(),
    };
    report.add(name, &text, worst(&found, &exact, |i| bound * exact[i].abs()));
    Ok(())
}

fn copy_row(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, cols) = (random.range(1, 9), 4 * random.range(1, 700));
    let (x, row) = (random.values((rows * cols) as usize), random.range(0, rows - 1));
    let out = poisoned(gpu, cols as usize)?;
    let found = output(gpu, &[&gpu.copy_row(&gpu.upload(&x)?, &gpu.upload(&[row])?, &out)?], &out)?;
    let exact = &x[(row * cols) as usize..][..cols as usize];
    report.add_equal("copy_row".to_owned(), &format!("{row} of {rows} x {cols}"), same_bits(&found, exact));
    Ok(())
}

/// Rows of few distinct values, some impossible, of which the first `n` of `width` count.
fn logits(random: &mut Random, (rows, n, width): (usize, usize, usize)) -> Vec<f32> {
    let mut x: Vec<f32> = (0..rows * width).map(|_| random.range(0, 2000) as f32 / 16.0 - 100.0).collect();
    let impossible = |value: &mut f32, nan: u32| *value = [f32::NEG_INFINITY, f32::NAN][nan as usize];
    for _ in 0..rows * width / 8 {
        impossible(&mut x[random.range(0, (rows * width) as u32 - 1) as usize], random.range(0, 1));
    }
    if rows > 4 {
        x[..n].iter_mut().for_each(|value| impossible(value, random.range(0, 1)));
    }
    x
}

/// Number of rows, of values that count, and of all values of a row.
fn logits_shape(random: &mut Random) -> (usize, usize, usize) {
    // One of four has the size of a vocabulary.
    let longest = if random.range(0, 3) == 0 { random.limit(150_000, 20_000) } else { 3000 };
    let (rows, n) = (random.range(1, 9) as usize, random.range(1, longest) as usize);
    (rows, n, n + random.range(0, 300) as usize)
}

fn argmax(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let shape @ (rows, n, width) = logits_shape(random);
    // Few distinct values: the first of equals must win.
    let x = logits(random, shape);
    let first_largest = |row: &[f32]| {
        let largest = row[..n].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = row[..n].iter().position(|&value| value == largest && value > f32::NEG_INFINITY);
        first.map_or(u32::MAX, |index| index as u32)
    };
    let exact: Vec<u32> = x.chunks_exact(width).map(first_largest).collect();
    let out = gpu.upload(&vec![u32::MAX - 1; rows])?;
    let [first, merge] = gpu.argmax(&gpu.upload(&x)?, n as u32, &out)?;
    gpu.run(&[&first, &merge])?;
    let found: Vec<u32> = gpu.download(&out)?;
    report.add_equal("argmax".to_owned(), &format!("{rows} x {n} of {width}"), found == exact);
    Ok(())
}

fn largest(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let shape @ (rows, n, width) = logits_shape(random);
    let x = logits(random, shape);
    let list = LARGEST_VALUES as usize;
    let out = gpu.upload(&vec![u32::MAX - 1; rows * list * 2])?;
    let launches = gpu.largest(&gpu.upload(&x)?, n as u32, &out)?;
    gpu.run(&launches.iter().collect::<Vec<_>>())?;
    let found: Vec<u32> = gpu.download(&out)?;
    let is_right = |(row, found): (&[f32], &[u32])| {
        let mut exact: Vec<(usize, f32)> =
            row[..n].iter().copied().enumerate().filter(|&(_, value)| value > f32::NEG_INFINITY).collect();
        exact.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        exact.truncate(list);
        let entry = |pair: &[u32]| (pair[0] as usize, f32::from_bits(pair[1]));
        let mut entries = found.chunks_exact(2).map(entry);
        entries.by_ref().take(exact.len()).eq(exact.iter().copied())
            && entries.all(|(_, value)| value == f32::NEG_INFINITY)
    };
    let right = x.chunks_exact(width).zip(found.chunks_exact(2 * list)).all(is_right);
    report.add_equal("largest".to_owned(), &format!("{rows} x {n} of {width}"), right);
    Ok(())
}
