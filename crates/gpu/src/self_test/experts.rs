//! Mixtures of experts.

use super::products::{Input, SMALL, Shape, bound_factor, exact, input, placed};
use super::{EPSILON, Report, output, poisoned, same_bits, worst};
use crate::error::Result;
use crate::expert_keys::{RouterKernel, RouterScoring, SumStart};
use crate::experts::{Choices, ExpertMatrix, SortedPairs};
use crate::gpu::Gpu;
use crate::kernel::CooperativeTile;
use crate::matrix::{Activations, Matrix};
use crate::reference::{Random, dequantize};
use crate::repack::Format;
use crate::split_key::ColumnSplits;

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    logits(gpu, random, report)?;
    for scoring in RouterScoring::ALL {
        route(gpu, random, report, scoring)?;
    }
    sort(gpu, random, report)?;
    let format = Format::ALL[random.range(0, Format::ALL.len() as u32 - 1) as usize];
    let is_shared = random.range(0, 1) == 1;
    products(gpu, random, report, (format, is_shared))?;
    affine(gpu, random, report)?;
    scale(gpu, random, report)?;
    sum(gpu, random, report)
}

/// Factors of weights by expert.
fn scale(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, experts) = (random.range(1, 90), random.range(2, 130));
    let choices = Choices::new(gpu, rows, random.range(1, experts.min(8)))?;
    let pairs = choices.pairs() as usize;
    let chosen: Vec<u32> = (0..pairs).map(|_| random.range(0, experts - 1)).collect();
    let (weights, scales) = (random.values(pairs), random.values(experts as usize));
    gpu.write(choices.experts(), &chosen)?;
    gpu.write(choices.weights(), &weights)?;
    let launch = gpu.scale_choices(&choices, &gpu.upload(&scales)?)?;
    let found = output(gpu, &[&launch], choices.weights())?;
    let exact: Vec<f32> = chosen.iter().zip(&weights).map(|(&e, w)| w * scales[e as usize]).collect();
    let text = format!("{pairs} pairs of {experts} experts");
    report.add_equal("scale_choices".to_owned(), &text, same_bits(&found, &exact));
    Ok(())
}

fn logits(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, outputs, cols) = (random.range(2, 11), random.range(1, 90), 4 * random.range(1, 300));
    let (w, x) = (random.values((outputs * cols) as usize), random.values((rows * cols) as usize));
    let bias = random.values(outputs as usize);
    let (w_buffer, b_buffer) = (gpu.upload(&w)?, gpu.upload(&bias)?);
    let text = format!("{rows} rows, {outputs} x {cols}");
    let mut previous: Option<Vec<f32>> = None;
    for is_biased in [false, true] {
        let run = |x: &[f32], rows: u32| {
            let y = poisoned(gpu, (rows * outputs) as usize)?;
            let bias = is_biased.then_some(&b_buffer);
            output(gpu, &[&gpu.router_logits(&w_buffer, bias, &gpu.upload(x)?, rows, &y)?], &y)
        };
        let found = run(&x, rows)?;
        let (mut sums, mut magnitudes) = (Vec::new(), Vec::new());
        for x in x.chunks_exact(cols as usize) {
            for (w, &bias) in w.chunks_exact(cols as usize).zip(&bias) {
                let bias = if is_biased { f64::from(bias) } else { 0.0 };
                let products = || w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                sums.push(products().sum::<f64>() + bias);
                magnitudes.push(products().map(f64::abs).sum::<f64>() + bias.abs());
            }
        }
        let bound = (f64::from(cols) / 64.0 + 16.0) * EPSILON;
        report.add("router logits".to_owned(), &text, worst(&found, &sums, |i| bound * magnitudes[i]));
        let row = random.range(0, rows - 1) as usize;
        let alone = run(&x[row * cols as usize..][..cols as usize], 1)?;
        let equal = same_bits(&alone, &found[row * outputs as usize..][..outputs as usize]);
        report.add_equal("router logits: a row alone".to_owned(), &text, equal);
        let is_other = previous.is_none_or(|previous| !same_bits(&previous, &found));
        report.add_equal("router logits: with a bias".to_owned(), &text, is_other);
        previous = Some(found);
    }
    Ok(())
}

fn route(gpu: &Gpu, random: &mut Random, report: &mut Report, scoring: RouterScoring) -> Result<()> {
    report.begin_shape();
    // One of four has more experts than a workgroup has threads.
    let most = if random.range(0, 3) == 0 { 120 } else { 16 };
    let (count, len) = (random.range(1, 8), random.range(1, most));
    let experts = count * len;
    let used = random.range(1, experts.min(9));
    let groups = random.range(used.div_ceil(len), count);
    let has_scores = matches!(scoring, RouterScoring::Softmax | RouterScoring::Sigmoid);
    let key = RouterKernel {
        experts,
        used,
        width: experts + random.range(0, 2),
        scoring,
        groups: (has_scores && random.range(0, 1) == 1).then_some((count, groups)),
        biased: has_scores && random.range(0, 1) == 1,
        renormalize: random.range(0, 1) == 1,
        scale_bits: [1.0_f32, 2.5][random.range(0, 1) as usize].to_bits(),
    };
    let rows = random.range(1, 9);
    // On a grid, so that scores are equal or far from each other.
    let logits: Vec<f32> = (0..rows * key.width).map(|_| random.range(0, 200) as f32 / 16.0 - 6.0).collect();
    let bias = random.values(experts as usize);
    let choices = Choices::new(gpu, rows, used)?;
    gpu.fill(choices.experts(), &[u32::MAX])?;
    gpu.fill(choices.weights(), &[f32::NAN])?;
    let bias_buffer = gpu.upload(&bias)?;
    let launch = gpu.route(key, &gpu.upload(&logits)?, key.biased.then_some(&bias_buffer), &choices)?;
    let weights = output(gpu, &[&launch], choices.weights())?;
    let found: Vec<u32> = gpu.download(choices.experts())?;
    let (mut chosen, mut exact) = (Vec::new(), Vec::new());
    for logits in logits.chunks_exact(key.width as usize) {
        for (expert, weight) in reference(&key, &logits[..experts as usize], &bias) {
            chosen.push(expert);
            exact.push(weight);
        }
    }
    let text = format!("{rows} rows, {used} of {experts}, groups {:?}", key.groups);
    let name = format!("route {scoring:?}").to_lowercase();
    report.add_equal(format!("{name}: choice"), &text, found == chosen);
    let bound = (64.0 + 4.0 * 13.0 + f64::from(experts)) * EPSILON;
    report.add(name, &text, worst(&weights, &exact, |i| bound * exact[i]));
    Ok(())
}

/// Experts of a row, ascending, and their weights in float64.
fn reference(key: &RouterKernel, logits: &[f32], bias: &[f32]) -> Vec<(u32, f64)> {
    let logits: Vec<f64> = logits.iter().map(|&x| x.into()).collect();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    let scores: Vec<f64> = match key.scoring {
        RouterScoring::Softmax => logits.iter().map(|x| x.exp() / sum).collect(),
        RouterScoring::Sigmoid => logits.iter().map(|&x| sigmoid(x)).collect(),
        _ => logits.clone(),
    };
    let biased = |i: usize| scores[i] + if key.biased { f64::from(bias[i]) } else { 0.0 };
    let mut selection: Vec<f64> = (0..scores.len()).map(biased).collect();
    if let Some((count, used)) = key.groups {
        keep_groups(&mut selection, (count as usize, used as usize), key.biased);
    }
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| selection[b].total_cmp(&selection[a]).then(a.cmp(&b)));
    let mut chosen: Vec<(u32, f64)> = Vec::new();
    for (rank, &best) in order[..key.used as usize].iter().enumerate() {
        let weight = match key.scoring {
            RouterScoring::ChosenSigmoid => sigmoid(logits[best]),
            RouterScoring::SparseMixer => {
                let most = logits[best];
                let is_near = |&&i: &&usize| most - logits[i] <= 0.02 * logits[i].abs().max(most);
                1.0 / order[rank..].iter().filter(is_near).map(|&i| (logits[i] - most).exp()).sum::<f64>()
            }
            RouterScoring::ChosenSoftmax => logits[best].exp(),
            _ => scores[best],
        };
        chosen.push((best as u32, weight));
    }
    chosen.sort_by_key(|(expert, _)| *expert);
    let sum: f64 = chosen.iter().map(|(_, weight)| weight).sum();
    let is_normed = key.renormalize || key.scoring == RouterScoring::ChosenSoftmax;
    let divisor = if is_normed { sum } else { 1.0 };
    let scale = f64::from(f32::from_bits(key.scale_bits));
    chosen.iter().map(|&(expert, weight)| (expert, weight / divisor * scale)).collect()
}

fn keep_groups(selection: &mut [f64], (count, used): (usize, usize), sums_two: bool) {
    let len = selection.len() / count;
    let score = |group: &[f64]| {
        let mut sorted = group.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        if sums_two && len > 1 { sorted[0] + sorted[1] } else { sorted[0] }
    };
    let scores: Vec<f64> = selection.chunks_exact(len).map(score).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    for &group in &order[used..] {
        selection[group * len..][..len].fill(f64::NEG_INFINITY);
    }
}

/// Choices of distinct experts, some of which nobody chooses.
fn random_choices(gpu: &Gpu, random: &mut Random, rows: u32, experts: u32) -> Result<(Choices, Vec<u32>)> {
    let used = random.range(1, experts.min(4));
    let choices = Choices::new(gpu, rows, used)?;
    let mut list = Vec::new();
    for _ in 0..rows {
        let first = random.range(0, experts - used);
        let step = if used == 1 { 1 } else { random.range(1, (experts - 1 - first) / (used - 1)) };
        list.extend((0..used).map(|i| first + i * step));
    }
    gpu.write(choices.experts(), &list)?;
    Ok((choices, list))
}

fn sort(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, experts) = (random.range(1, 400), random.range(1, 40));
    let (choices, list) = random_choices(gpu, random, rows, experts)?;
    let tile = 16 << random.range(0, 2);
    let sorted = SortedPairs::with_tile(gpu, &choices, experts, tile)?;
    gpu.fill(sorted.sorted(), &[u32::MAX])?;
    gpu.fill(sorted.tiles(), &[u32::MAX])?;
    gpu.run(&[&gpu.sort_pairs(&choices, &sorted)?])?;
    let mut expected: Vec<u32> = (0..choices.pairs()).collect();
    expected.sort_by_key(|&pair| (list[pair as usize], pair));
    let found: Vec<u32> = gpu.download(sorted.sorted())?;
    let text = format!("{rows} rows, {} of {experts}, by {tile}", choices.used());
    report.add_equal("sort pairs".to_owned(), &text, found == expected);
    // Every pair is in one tile, which is its expert's.
    let tiles: Vec<[u32; 4]> = gpu.download(sorted.tiles())?;
    let mut seen = vec![0_u32; expected.len()];
    let mut is_right = true;
    for [expert, first, n, zero] in tiles {
        is_right &= n <= tile && zero == 0 && expert < experts;
        for place in (first..first.saturating_add(n.min(tile))).map(|place| place as usize) {
            is_right &= expected.get(place).is_some_and(|&pair| list[pair as usize] == expert);
            seen.iter_mut().skip(place).take(1).for_each(|n| *n += 1);
        }
    }
    report.add_equal("sort pairs: tiles".to_owned(), &text, is_right && seen.iter().all(|&n| n == 1));
    Ok(())
}

/// Products of pairs with random matrices of experts.
struct Case {
    shape: Shape,
    choices: Choices,
    /// Expert of each pair.
    list: Vec<u32>,
    /// Blocks of all experts.
    weights: Vec<u8>,
    stack: ExpertMatrix,
    /// Values of the input rows.
    x: Vec<f32>,
    given: Input,
    is_shared: bool,
    text: String,
}

impl Case {
    fn new(gpu: &Gpu, random: &mut Random, report: &mut Report, kind: (Format, bool)) -> Result<Self> {
        let (format, is_shared) = kind;
        let unit = format.column_unit() as u32;
        let (experts, rows) = (random.range(2, 9), format.row_unit() * random.range(1, 20));
        let cols = unit * random.range(1, random.limit(768, 512) / unit);
        let n = random.range(1, 40);
        let (choices, list) = random_choices(gpu, random, n, experts)?;
        let weights = random.weights(format, (experts * rows * cols) as usize);
        let matrix = Matrix::zeroed(gpu, format, experts * rows, cols)?;
        // Expert by expert, as models are uploaded.
        for (expert, bytes) in weights.chunks_exact(weights.len() / experts as usize).enumerate() {
            matrix.write_rows(gpu, expert as u32 * rows, bytes)?;
        }
        let stack = ExpertMatrix::new(matrix, experts)?;
        let batch = if is_shared { n } else { choices.pairs() };
        let shape = Shape { format, rows, cols, batch };
        let x = random.values((batch * cols) as usize);
        let given = input(gpu, report, shape, &x)?;
        let used = choices.used();
        let text = format!("{n} rows, {used} of {experts}, {rows} x {cols}, shared {is_shared}");
        Ok(Self { shape, choices, list, weights, stack, x, given, is_shared, text })
    }

    fn name(&self) -> String {
        format!("experts {}", self.shape.format.name())
    }

    /// Input row of a pair.
    fn source(&self, pair: usize) -> usize {
        if self.is_shared { pair / self.choices.used() as usize } else { pair }
    }

    /// Sums of products in float64, and sums of their magnitudes; `[pairs, rows]`.
    fn exact(&self) -> (Vec<f64>, Vec<f64>) {
        let Shape { format, rows, cols, .. } = self.shape;
        let dequantized = dequantize(format, &self.weights);
        let (mut sums, mut magnitudes) = (Vec::new(), Vec::new());
        for (pair, &expert) in self.list.iter().enumerate() {
            let own = &dequantized[(expert * rows * cols) as usize..][..(rows * cols) as usize];
            let values = &self.given.values[self.source(pair) * cols as usize..][..cols as usize];
            let (sum, magnitude) = exact(self.shape, own, values);
            sums.extend(sum);
            magnitudes.extend(magnitude);
        }
        (sums, magnitudes)
    }

    /// The matrix of a pair's expert, and its input row.
    fn alone(&self, gpu: &Gpu, report: &mut Report, pair: usize) -> Result<(Matrix, Activations)> {
        let Shape { format, rows, cols, .. } = self.shape;
        let bytes = self.weights.len() / self.stack.experts() as usize;
        let own = &self.weights[self.list[pair] as usize * bytes..][..bytes];
        let x = &self.x[self.source(pair) * cols as usize..][..cols as usize];
        let x = input(gpu, report, Shape { batch: 1, ..self.shape }, x)?.activations;
        Ok((Matrix::upload(gpu, format, rows, cols, own)?, x))
    }
}

/// Products of pairs: the bound of a product, the bits of each pair by itself, parts of rows.
fn products(gpu: &Gpu, random: &mut Random, report: &mut Report, kind: (Format, bool)) -> Result<()> {
    report.begin_shape();
    let case = Case::new(gpu, random, report, kind)?;
    let Case { shape, choices, stack, given, text, .. } = &case;
    let (rows, pairs, name) = (shape.rows, choices.pairs(), case.name());
    let y = poisoned(gpu, (pairs * rows) as usize)?;
    let run = |launch| output(gpu, &[&launch], &y);
    let found = run(stack.product(gpu, &given.activations, choices, &y, (0, rows))?)?;
    let (sums, magnitudes) = case.exact();
    let bound = bound_factor(gpu, Shape { batch: 1, ..*shape });
    report.add(name.clone(), text, worst(&found, &sums, |i| bound * magnitudes[i]));

    let pairs_per_tile = 16 << random.range(0, 2);
    let sorted = SortedPairs::with_tile(gpu, choices, stack.experts(), pairs_per_tile)?;
    gpu.run(&[&gpu.sort_pairs(choices, &sorted)?])?;
    let both = (choices, &sorted);
    let pair = random.range(0, pairs - 1) as usize;
    let (own, alone) = case.alone(gpu, report, pair)?;
    let one = poisoned(gpu, rows as usize)?;
    let mut same = |what: &str, found: &[f32], launch| -> Result<()> {
        let alone = output(gpu, &[&launch], &one)?;
        let equal = same_bits(&alone, &found[pair * rows as usize..][..rows as usize]);
        report.add_equal(format!("{name}: {what}"), text, equal);
        Ok(())
    };
    same("a pair alone", &found, own.product(gpu, &alone, &one, 1)?)?;
    let tiled = run(stack.gemm_tiled(gpu, &given.activations, both, &y, (0, rows))?)?;
    same("sorted, in tiles", &tiled, own.gemm_tiled(gpu, &alone, &one, 1)?)?;
    let chosen = run(stack.gemm(gpu, &given.activations, both, &y, (0, rows))?)?;
    // The matrices of experts have no splits of columns.
    let whole = match CooperativeTile::choose(rows, 1, gpu.target()) {
        Some(_) => own.gemm_split(gpu, &alone, &one, 1, SMALL, ColumnSplits::Whole)?,
        None => own.gemm(gpu, &alone, &one, 1)?,
    };
    same("sorted", &chosen, whole)?;
    if gpu.target().f16 {
        let tile = CooperativeTile { batch: pairs_per_tile, ..SMALL };
        let found = run(stack.gemm_cooperative(gpu, &given.activations, both, &y, (0, rows), tile)?)?;
        let whole = own.gemm_split(gpu, &alone, &one, 1, SMALL, ColumnSplits::Whole)?;
        same("sorted, cooperative", &found, whole)?;
    }
    // Into a part of wider rows; the rest stays.
    let (width, first) = (rows + 6, 3);
    for (what, found) in [("product", found), ("gemm", chosen)] {
        let wide = gpu.upload(&vec![-7.0_f32; (pairs * width) as usize])?;
        let launch = match what {
            "gemm" => stack.gemm(gpu, &given.activations, both, &wide, (first, width))?,
            _ => stack.product(gpu, &given.activations, choices, &wide, (first, width))?,
        };
        let expected = placed(&found, rows as usize, (first as usize, width as usize));
        let equal = same_bits(&output(gpu, &[&launch], &wide)?, &expected);
        report.add_equal(format!("{name}: {what} into a part of wider rows"), text, equal);
    }
    Ok(())
}

fn affine(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, experts, cols) = (random.range(1, 12), random.range(1, 9), 4 * random.range(1, 600));
    let (choices, list) = random_choices(gpu, random, rows, experts)?;
    let pairs = choices.pairs() as usize;
    let (y, bias) = (random.values(pairs * cols as usize), random.values((experts * cols) as usize));
    let weights = random.values(pairs);
    gpu.write(choices.weights(), &weights)?;
    let bias_buffer = gpu.upload(&bias)?;
    let text = format!("{pairs} pairs of {cols}");
    let (weighted, biased) = [(true, false), (false, true), (true, true)][random.range(0, 2) as usize];
    let buffer = gpu.upload(&y)?;
    let launch = gpu.expert_affine(&buffer, &choices, weighted, biased.then_some(&bias_buffer))?;
    let found = output(gpu, &[&launch], &buffer)?;
    let mut exact = Vec::new();
    for ((y, &expert), &weight) in y.chunks_exact(cols as usize).zip(&list).zip(&weights) {
        let bias = &bias[(expert * cols) as usize..][..cols as usize];
        let weight = if weighted { f64::from(weight) } else { 1.0 };
        let bias = bias.iter().map(|&bias| if biased { f64::from(bias) } else { 0.0 });
        exact.extend(y.iter().zip(bias).map(|(&y, bias)| weight * f64::from(y) + bias));
    }
    report.add("expert affine".to_owned(), &text, worst(&found, &exact, |_| 2.0 * EPSILON));
    Ok(())
}

fn sum(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    report.begin_shape();
    let (rows, experts, cols) = (random.range(1, 12), random.range(1, 9), 4 * random.range(1, 600));
    let (choices, _) = random_choices(gpu, random, rows, experts)?;
    let used = choices.used() as usize;
    let (y, before) = (random.values((rows * cols) as usize * used), random.values((rows * cols) as usize));
    let (weights, gates) = (random.values(rows as usize * used), random.values(rows as usize * 3));
    gpu.write(choices.weights(), &weights)?;
    let (y_buffer, gate_buffer) = (gpu.upload(&y)?, gpu.upload(&gates)?);
    let text = format!("{rows} rows of {cols}, {used} each");
    let starts = [SumStart::Zero, SumStart::Output, SumStart::GatedOutput { width: 3, at: 1 }];
    let (start, weighted) = (starts[random.range(0, 2) as usize], random.range(0, 2) > 0);
    let is_gated = matches!(start, SumStart::GatedOutput { .. });
    let out = gpu.upload(&before)?;
    let gates_of = (start, is_gated.then_some(&gate_buffer));
    let found = output(gpu, &[&gpu.expert_sum(&y_buffer, (&choices, weighted), gates_of, &out)?], &out)?;
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for (i, &before) in before.iter().enumerate() {
        let (row, column) = (i / cols as usize, i % cols as usize);
        let gate = 1.0 / (1.0 + (-f64::from(gates[row * 3 + 1])).exp());
        let begin = f64::from(before)
            * match start {
                SumStart::Zero => 0.0,
                SumStart::Output => 1.0,
                SumStart::GatedOutput { .. } => gate,
            };
        let product = |place: usize| {
            let weight = if weighted { f64::from(weights[row * used + place]) } else { 1.0 };
            weight * f64::from(y[(row * used + place) * cols as usize + column])
        };
        exact.push(begin + (0..used).map(product).sum::<f64>());
        let magnitude = begin.abs() + (0..used).map(|place| product(place).abs()).sum::<f64>();
        let more = if is_gated { 64.0 } else { 0.0 };
        bounds.push((used as f64 + 2.0 + more) * EPSILON * magnitude);
    }
    report.add("expert sum".to_owned(), &text, worst(&found, &exact, |i| bounds[i]));
    Ok(())
}
