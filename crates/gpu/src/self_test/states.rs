//! Layers with a state: several sequences in a launch, whole and in two parts, with the state
//! behind every row and behind the last ones.

use super::{EPSILON, Report, output, poisoned, same_bits, worst};
use crate::dispatch::Dispatch;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::reference::Random;
use crate::state_keys::{
    ConvolutionForm, ConvolutionKernel, DeltaRuleKernel, GateKernel, GateNorm, SelectiveScanKernel,
    SplitGatesKernel,
};
use crate::states::{Span, Spans};

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    for biased in [false, true] {
        convolution(gpu, random, report, ConvolutionForm::Silu { biased })?;
    }
    convolution(gpu, random, report, ConvolutionForm::Gated)?;
    delta_rule(gpu, random, report)?;
    selective_scan(gpu, random, report)?;
    for norm in [GateNorm::None, GateNorm::Before(EPS.to_bits()), GateNorm::Behind(EPS.to_bits())] {
        gate(gpu, random, report, norm)?;
    }
    split_gates(gpu, random, report)
}

/// Added to mean squares.
const EPS: f32 = 1e-5;

/// Sequences of a launch, with a row of no sequence behind each.
struct Layout {
    /// Rows, and rows of the first part.
    lens: Vec<(usize, usize)>,
    /// Values of a state, and of an output row.
    values: (usize, usize),
    /// A slot per sequence, of the state before it.
    before: Vec<f32>,
}

/// Launches with states, spans and an output.
type Launch<'l> = dyn Fn(&Buffer, &Spans, &Buffer) -> Result<Dispatch> + 'l;

/// Spans of a launch, and the slots of rows.
type Launched = (Vec<Span>, Vec<(u32, u32)>);

impl Layout {
    fn new(random: &mut Random, values: (usize, usize), most: u32) -> Self {
        let lens: Vec<(usize, usize)> = (0..random.range(1, 4))
            .map(|_| {
                let len = random.range(1, most);
                (len as usize, random.range(0, len - 1) as usize)
            })
            .collect();
        let before = random.values(lens.len() * values.0);
        Self { lens, values, before }
    }

    fn rows(&self) -> usize {
        self.lens.iter().map(|(len, _)| len + 1).sum()
    }

    /// First row of a sequence.
    fn first(&self, index: usize) -> usize {
        self.lens[..index].iter().map(|(len, _)| len + 1).sum()
    }

    /// State before a sequence: every other one begins with zeros.
    fn before(&self, index: usize) -> Vec<f32> {
        match index % 2 {
            0 => vec![0.0; self.values.0],
            _ => self.before[index * self.values.0..][..self.values.0].to_vec(),
        }
    }

    /// Slot of the state behind a row.
    fn slot(&self, row: usize) -> u32 {
        (self.lens.len() + row) as u32
    }

    /// State in the slot of a row.
    fn behind<'s>(&self, states: &'s [f32], row: usize) -> &'s [f32] {
        &states[self.slot(row) as usize * self.values.0..][..self.values.0]
    }

    /// Span of the rows from `from` to `to` of a sequence; none without rows.
    fn span(&self, index: usize, (from, to): (usize, usize)) -> Option<Span> {
        let first = self.first(index) + from;
        let before =
            if from > 0 { Some(self.slot(first - 1)) } else { (index % 2 == 1).then_some(index as u32) };
        (from < to).then_some(Span { from: before, first: first as u32, rows: (to - from) as u32 })
    }

    /// Rows from `from` to `to` of each sequence, each with a slot for the state behind it.
    fn part(&self, bounds: impl Fn((usize, usize)) -> (usize, usize)) -> Launched {
        let spans = (0..self.lens.len()).filter_map(|index| self.span(index, bounds(self.lens[index])));
        let mut spans: Vec<Span> = spans.collect();
        let rows = spans.iter().flat_map(|span| span.first..span.first + span.rows);
        let kept = rows.map(|row| (row, self.slot(row as usize))).collect();
        // A workgroup without rows among the others.
        spans.insert(spans.len().min(1), Span { from: None, first: 0, rows: 0 });
        (spans, kept)
    }

    /// Outputs, and the states behind rows: NaN where none was kept.
    fn run(&self, gpu: &Gpu, passes: &[Launched], launch: &Launch<'_>) -> Result<[Vec<f32>; 2]> {
        let mut states = self.before.clone();
        states.resize((self.lens.len() + self.rows()) * self.values.0, f32::NAN);
        let state = gpu.upload(&states)?;
        let spans = Spans::new(gpu, self.rows() as u32)?;
        let out = poisoned(gpu, self.rows() * self.values.1)?;
        for (pass, kept) in passes {
            spans.write(gpu, pass, kept)?;
            gpu.run(&[&launch(&state, &spans, &out)?])?;
        }
        Ok([gpu.download(&out)?, gpu.download(&state)?])
    }

    /// Runs whole sequences and both parts; compares with `exact`, which has the outputs and bounds
    /// of a sequence by its index.
    fn check(
        &self,
        gpu: &Gpu,
        (name, text): (&str, &str),
        report: &mut Report,
        launch: &Launch<'_>,
        exact: impl Fn(usize) -> (Vec<f64>, Vec<f64>),
    ) -> Result<[Vec<f32>; 2]> {
        let whole = self.part(|(len, _)| (0, len));
        let [out, states] = self.run(gpu, std::slice::from_ref(&whole), launch)?;
        let passes = [self.part(|(_, cut)| (0, cut)), self.part(|(len, cut)| (cut, len))];
        let [again, parts] = self.run(gpu, &passes, launch)?;
        let text = format!("{text}, {:?} rows", self.lens);
        report.add_equal(format!("{name}: outputs of parts"), &text, same_bits(&out, &again));
        report.add_equal(format!("{name}: states of parts"), &text, same_bits(&states, &parts));
        // States at the ends alone.
        let ends: Vec<usize> = (0..self.lens.len()).map(|i| self.first(i) + self.lens[i].0 - 1).collect();
        let kept = ends.iter().map(|&row| (row as u32, self.slot(row))).collect();
        let [last, kept] = self.run(gpu, &[(whole.0, kept)], launch)?;
        report.add_equal(format!("{name}: outputs without states"), &text, same_bits(&out, &last));
        let is_kept = |row: usize| match ends.contains(&row) {
            true => same_bits(self.behind(&kept, row), self.behind(&states, row)),
            false => self.behind(&kept, row).iter().all(|value| value.is_nan()),
        };
        report.add_equal(format!("{name}: states at the ends"), &text, (0..self.rows()).all(is_kept));
        let width = self.values.1;
        for (index, &(len, _)) in self.lens.iter().enumerate() {
            let rows = &out[self.first(index) * width..][..(len + 1) * width];
            let (found, unused) = rows.split_at(len * width);
            let (exact, bounds) = exact(index);
            report.add(name.to_owned(), &text, worst(found, &exact, |i| bounds[i]));
            let is_kept = unused.iter().all(|value| value.is_nan());
            report.add_equal(format!("{name}: rows of no sequence"), &text, is_kept);
        }
        Ok([out, states])
    }
}

fn convolution_name(form: ConvolutionForm) -> &'static str {
    match form {
        ConvolutionForm::Gated => "convolve, gated",
        ConvolutionForm::Silu { biased: true } => "convolve, biased",
        ConvolutionForm::Silu { biased: false } => "convolve",
    }
}

fn convolution(gpu: &Gpu, random: &mut Random, report: &mut Report, form: ConvolutionForm) -> Result<()> {
    report.begin_shape();
    let (channels, taps) = (4 * random.range(1, 90), random.range(2, 8));
    let parts = if form == ConvolutionForm::Gated { 3 } else { 1 };
    let width = parts * channels + 4 * random.range(0, 9);
    let key = ConvolutionKernel { form, channels, taps, width, one_sequence: false };
    let (c, kept, stride) = (channels as usize, taps as usize - 1, width as usize);
    let layout = Layout::new(random, (kept * c, c), 40);
    let (x, weights) = (random.values(layout.rows() * stride), random.values((kept + 1) * c));
    let bias = (form == ConvolutionForm::Silu { biased: true }).then(|| random.values(c));
    let buffers = (gpu.upload(&x)?, gpu.upload(&weights)?);
    let bias_buffer = bias.as_ref().map(|bias| gpu.upload(bias)).transpose()?;
    let launch = |one_sequence| {
        let key = ConvolutionKernel { one_sequence, ..key };
        let (x, weights, bias) = (&buffers.0, &buffers.1, bias_buffer.as_ref());
        move |state: &Buffer, spans: &Spans, out: &Buffer| {
            gpu.convolve(key, x, (weights, bias), (state, spans), out)
        }
    };
    let part = |row: usize, part: usize, ch: usize| x[row * stride + part * c + ch];
    let input = |row: usize, ch: usize| match form {
        ConvolutionForm::Gated => part(row, 0, ch) * part(row, 2, ch),
        ConvolutionForm::Silu { .. } => part(row, 0, ch),
    };
    // Inputs of a sequence behind those of its state.
    let inputs = |index: usize| -> Vec<f32> {
        let (first, len) = (layout.first(index), layout.lens[index].0);
        let own = (first..first + len).flat_map(|row| (0..c).map(move |ch| (row, ch)));
        layout.before(index).into_iter().chain(own.map(|(row, ch)| input(row, ch))).collect()
    };
    let exact = |index: usize| {
        let (all, mut exact, mut bounds) = (inputs(index), Vec::new(), Vec::new());
        for row in 0..layout.lens[index].0 {
            for ch in 0..c {
                let terms: Vec<f64> = (0..=kept)
                    .map(|j| f64::from(weights[j * c + ch]) * f64::from(all[(row + j) * c + ch]))
                    .collect();
                let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[ch]));
                let sum = terms.iter().sum::<f64>() + bias;
                let size = terms.iter().map(|term| term.abs()).sum::<f64>() + bias.abs();
                let gate = f64::from(part(layout.first(index) + row, parts as usize / 2, ch));
                let (value, factor) = match form {
                    ConvolutionForm::Gated => (sum * gate, gate.abs()),
                    ConvolutionForm::Silu { .. } => (sum / (1.0 + (-sum).exp()), 1.0),
                };
                exact.push(value);
                bounds.push((f64::from(taps) + 68.0) * EPSILON * size * factor);
            }
        }
        (exact, bounds)
    };
    let name = convolution_name(form);
    let text = format!("{channels} channels by {taps}");
    let [out, states] = layout.check(gpu, (name, &text), report, &launch(false), exact)?;
    for (index, &(len, cut)) in layout.lens.iter().enumerate() {
        let (all, first) = (inputs(index), layout.first(index));
        let is_kept =
            |at: usize| same_bits(layout.behind(&states, first + at), &all[(at + 1) * c..][..kept * c]);
        report.add_equal(format!("{name}: last inputs"), &text, (0..len).all(is_kept));
        // One sequence in parts, by tiles.
        let passes: Vec<_> = [(0, cut), (cut, len)]
            .into_iter()
            .filter_map(|bounds| layout.span(index, bounds))
            .map(|span| {
                let rows = span.first..span.first + span.rows;
                (vec![span], rows.map(|row| (row, layout.slot(row as usize))).collect())
            })
            .collect();
        let [tiled, behind] = layout.run(gpu, &passes, &launch(true))?;
        let rows = first * c..(first + len) * c;
        report.add_equal(format!("{name}: one sequence"), &text, same_bits(&tiled[rows.clone()], &out[rows]));
        let is_same = |row: usize| same_bits(layout.behind(&behind, row), layout.behind(&states, row));
        report.add_equal(format!("{name}: state of one sequence"), &text, (first..first + len).all(is_same));
    }
    Ok(())
}

/// `ln(1 + exp(x))`.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// A matrix of a state, row by row, of a head in the layout of the kernels.
fn matrix(state: &[f32], (rows, width, head): (usize, usize, usize)) -> Vec<f64> {
    let value =
        |row: usize, column: usize| state[((head * rows / 4 + row / 4) * width + column) * 4 + row % 4];
    (0..rows).flat_map(|row| (0..width).map(move |column| f64::from(value(row, column)))).collect()
}

fn delta_rule(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let key_heads = random.range(1, 3);
    let key = DeltaRuleKernel {
        key_heads,
        value_heads: key_heads * random.range(1, 3),
        key_dim: 4 * random.range(1, 40),
        value_dim: 4 * random.range(1, 40),
        grouped: random.range(0, 1) == 0,
    };
    let (heads, k, v) = (key.value_heads as usize, key.key_dim as usize, key.value_dim as usize);
    let layout = Layout::new(random, (heads * k * v, heads * v), 12);
    let channels = key.channels() as usize;
    let x = random.values(layout.rows() * channels);
    let mut rates = random.values(layout.rows() * 2 * heads);
    rates.iter_mut().for_each(|rate| *rate *= 3.0);
    let mut factors = random.values(2 * heads);
    factors[heads..].iter_mut().for_each(|factor| *factor = -factor.abs());
    let buffers = [gpu.upload(&x)?, gpu.upload(&rates)?, gpu.upload(&factors)?];
    let launch = |state: &Buffer, spans: &Spans, out: &Buffer| {
        let [x, rates, heads] = &buffers;
        gpu.delta_rule(key, (x, rates), heads, (state, spans), out)
    };
    let exact = |index: usize| {
        let (first, len) = (layout.first(index), layout.lens[index].0);
        let (mut exact, mut bounds) = (vec![0.0; len * heads * v], vec![0.0; len * heads * v]);
        let before = layout.before(index);
        for head in 0..heads {
            let key_head =
                if key.grouped { head / (heads / key_heads as usize) } else { head % key_heads as usize };
            let mut state = matrix(&before, (k, v, head));
            let mut sizes: Vec<f64> = state.iter().map(|value| value.abs()).collect();
            for row in 0..len {
                let at = (first + row) * channels;
                let unit = |offset: usize| -> Vec<f64> {
                    let values = x[at + offset..][..k].iter().map(|&x| f64::from(x));
                    let squares: f64 = values.clone().map(|x| x * x).sum();
                    values.map(|x| x / (squares + 1e-6_f32 as f64).sqrt()).collect()
                };
                let query: Vec<f64> = unit(key_head * k).iter().map(|q| q / (k as f64).sqrt()).collect();
                let keys = unit((key_heads as usize + key_head) * k);
                let values = &x[at + 2 * key_heads as usize * k + head * v..][..v];
                let rate_at = (first + row) * 2 * heads + head;
                let raw = f64::from(rates[rate_at]) + f64::from(factors[head]);
                let decay = (f64::from(factors[heads + head]) * softplus(raw)).exp();
                let rate = 1.0 / (1.0 + (-f64::from(rates[rate_at + heads])).exp());
                for column in 0..v {
                    let value = f64::from(values[column]);
                    let along = |matrix: &[f64], list: &[f64], size: bool| -> f64 {
                        let terms = list.iter().enumerate().map(|(i, x)| matrix[i * v + column] * x);
                        if size { terms.map(f64::abs).sum() } else { terms.sum() }
                    };
                    let error = rate * (value - decay * along(&state, &keys, false));
                    let error_size = rate * (value.abs() + decay * along(&sizes, &keys, true));
                    for (i, key) in keys.iter().enumerate() {
                        let at = i * v + column;
                        state[at] = decay * state[at] + key * error;
                        sizes[at] = decay * sizes[at] + key.abs() * error_size;
                    }
                    let to = (row * heads + head) * v + column;
                    exact[to] = along(&state, &query, false);
                    let factor = (row + 1) as f64 * (k as f64 + 128.0);
                    bounds[to] = factor * EPSILON * along(&sizes, &query, true);
                }
            }
        }
        (exact, bounds)
    };
    let text = format!("{key_heads} x {k}, {heads} x {v}");
    layout.check(gpu, ("delta_rule", &text), report, &launch, exact).map(|_| ())
}

fn selective_scan(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let groups = random.range(1, 3);
    let key = SelectiveScanKernel {
        heads: groups * random.range(1, 3),
        head_dim: 4 * random.range(1, 30),
        groups,
        state_dim: 4 * random.range(1, 40),
    };
    let (heads, width, rows) = (key.heads as usize, key.head_dim as usize, key.state_dim as usize);
    let layout = Layout::new(random, (heads * rows * width, heads * width), 20);
    let channels = key.channels() as usize;
    let (x, mut steps) = (random.values(layout.rows() * channels), random.values(layout.rows() * heads));
    steps.iter_mut().for_each(|step| *step *= 3.0);
    let mut factors = random.values(3 * heads);
    factors[heads..2 * heads].iter_mut().for_each(|factor| *factor = -factor.abs());
    let buffers = [gpu.upload(&x)?, gpu.upload(&steps)?, gpu.upload(&factors)?];
    let launch = |state: &Buffer, spans: &Spans, out: &Buffer| {
        let [x, steps, heads] = &buffers;
        gpu.selective_scan(key, (x, steps), heads, (state, spans), out)
    };
    let exact = |index: usize| {
        let (first, len) = (layout.first(index), layout.lens[index].0);
        let (mut exact, mut bounds) = (vec![0.0; len * heads * width], vec![0.0; len * heads * width]);
        let before = layout.before(index);
        for head in 0..heads {
            let group = head / (heads / groups as usize);
            let mut state = matrix(&before, (rows, width, head));
            let mut sizes: Vec<f64> = state.iter().map(|value| value.abs()).collect();
            for row in 0..len {
                let at = (first + row) * channels;
                let weights = |part: usize| {
                    let offset = heads * width + (part * groups as usize + group) * rows;
                    &x[at + offset..][..rows]
                };
                let raw = f64::from(steps[(first + row) * heads + head]) + f64::from(factors[head]);
                let step = softplus(raw);
                let decay = (f64::from(factors[heads + head]) * step).exp();
                let skip = f64::from(factors[2 * heads + head]);
                for column in 0..width {
                    let input = f64::from(x[at + head * width + column]);
                    let (mut sum, mut size) = (skip * input, (skip * input).abs());
                    for (i, (&taken, &read)) in weights(0).iter().zip(weights(1)).enumerate() {
                        let (at, taken, read) = (i * width + column, f64::from(taken), f64::from(read));
                        state[at] = decay * state[at] + taken * step * input;
                        sizes[at] = decay * sizes[at] + (taken * step * input).abs();
                        sum += state[at] * read;
                        size += sizes[at] * read.abs();
                    }
                    let to = (row * heads + head) * width + column;
                    exact[to] = sum;
                    let factor = (row + 1) as f64 * 128.0 + rows as f64;
                    bounds[to] = factor * EPSILON * size;
                }
            }
        }
        (exact, bounds)
    };
    let text = format!("{heads} x {width}, {groups} x {rows}");
    layout.check(gpu, ("selective_scan", &text), report, &launch, exact).map(|_| ())
}

fn gate(gpu: &Gpu, random: &mut Random, report: &mut Report, norm: GateNorm) -> Result<()> {
    report.begin_shape();
    let (rows, groups, dim) = (random.range(1, 5), random.range(1, 5), 4 * random.range(1, 100));
    let (first, step) = (4 * random.range(0, 9), dim + 4 * random.range(0, 2));
    let width = first + step * groups + 4 * random.range(0, 3);
    let silu = random.range(0, 1) == 0;
    let key = GateKernel { groups, dim, width, first, step, silu, norm };
    let (d, n) = (dim as usize, groups as usize);
    let x = random.values(rows as usize * n * d);
    let mut gates = random.values((rows * width) as usize);
    gates.iter_mut().for_each(|gate| *gate *= 12.0);
    let weights = match norm {
        GateNorm::None => None,
        GateNorm::Before(_) => Some(random.values(d)),
        GateNorm::Behind(_) => Some(random.values(n * d)),
    };
    let buffer = weights.as_ref().map(|weights| gpu.upload(weights)).transpose()?;
    let out = poisoned(gpu, x.len())?;
    let launch = gpu.gate(key, (&gpu.upload(&x)?, &gpu.upload(&gates)?), buffer.as_ref(), &out)?;
    let found = output(gpu, &[&launch], &out)?;
    let mut exact = Vec::new();
    for (index, values) in x.chunks_exact(d).enumerate() {
        let (row, group) = (index / n, index % n);
        let gates = &gates[row * width as usize + first as usize + group * step as usize..][..d];
        let activated = gates.iter().map(|&gate| {
            let gate = f64::from(gate);
            (if silu { gate } else { 1.0 }) / (1.0 + (-gate).exp())
        });
        let products: Vec<f64> =
            values.iter().zip(activated.clone()).map(|(&x, gate)| f64::from(x) * gate).collect();
        let scale = |values: &[f64]| {
            let squares: f64 = values.iter().map(|x| x * x).sum();
            1.0 / (squares / d as f64 + f64::from(EPS)).sqrt()
        };
        let plain: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
        let factor = |i: usize| match (norm, &weights) {
            (GateNorm::Before(_), Some(weights)) => scale(&plain) * f64::from(weights[i]),
            (GateNorm::Behind(_), Some(weights)) => scale(&products) * f64::from(weights[group * d + i]),
            _ => 1.0,
        };
        exact.extend(products.iter().enumerate().map(|(i, product)| product * factor(i)));
    }
    let name = match norm {
        GateNorm::None => "gate",
        GateNorm::Before(_) => "gate behind a norm",
        GateNorm::Behind(_) => "gate before a norm",
    };
    let bound = (f64::from(dim) / 64.0 + 192.0) * EPSILON;
    let text = format!("{rows} x {groups} x {dim}");
    report.add(name.to_owned(), &text, worst(&found, &exact, |i| bound * exact[i].abs()));
    Ok(())
}

fn split_gates(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (heads, kv_heads, head_dim) = (random.range(1, 9), random.range(1, 4), 4 * random.range(1, 70));
    let key = SplitGatesKernel { heads, kv_heads, head_dim };
    let (n, dim, rows) = (heads as usize, head_dim as usize, random.range(1, 5) as usize);
    let wide = 2 * n + 2 * kv_heads as usize;
    let x = random.values(rows * wide * dim);
    let out = poisoned(gpu, rows * (wide - n) * dim)?;
    let found = output(gpu, &[&gpu.split_gates(key, &gpu.upload(&x)?, &out)?], &out)?;
    let is_wanted = |index: &usize| index % wide >= 2 * n || (index % wide).is_multiple_of(2);
    let parts = x.chunks_exact(dim).enumerate().filter(|(index, _)| is_wanted(index));
    let exact: Vec<f32> = parts.flat_map(|(_, part)| part).copied().collect();
    let text = format!("{rows} x {heads} + 2 x {kv_heads} heads of {head_dim}");
    report.add_equal("split_gates".to_owned(), &text, same_bits(&found, &exact));
    Ok(())
}
