//! Low-rank updates of rows with lists of slots.

use half::f16;

use super::products::stored;
use super::{EPSILON, Report, output, same_bits, worst};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::low_rank::{LowRank, LowRankExpansion, LowRankRows};
use crate::low_rank_key::{LowRankRoom, MAX_TERMS};
use crate::matrix::Activations;
use crate::reference::Random;
use crate::rows::Quantized;

pub(super) fn check(gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
    for (f16, quantized) in [(true, false), (true, true), (false, false), (false, true)] {
        Case::new(gpu, random, f16, quantized)?.check(gpu, random, report)?;
    }
    Ok(())
}

/// Update in a slot, with its values as stored.
struct Update {
    a: Vec<f32>,
    parts: Vec<Part>,
}

struct Part {
    first: usize,
    rank: usize,
    output: usize,
    outputs: usize,
    b: Vec<f32>,
}

/// Inputs of one shape.
struct Case {
    cols: usize,
    width: usize,
    rows: usize,
    quantized: bool,
    updates: Vec<Update>,
    slots: LowRank,
    /// Another order of the same updates.
    others: LowRank,
    x: Vec<f32>,
    y: Vec<f32>,
}

/// List of a row: updates and scales.
type List = Vec<(usize, f32)>;

impl Case {
    fn new(gpu: &Gpu, random: &mut Random, f16: bool, quantized: bool) -> Result<Self> {
        // One of four is a long row.
        let longest = if random.range(0, 3) == 0 { random.limit(170, 80) } else { random.limit(40, 20) };
        let cols = 32 * random.range(1, longest) as usize;
        let width = random.range(1, 700) as usize;
        let rows = random.range(1, 21) as usize;
        let updates: Vec<Update> = (0..3).map(|_| Update::new(random, cols, width, f16)).collect();
        let most = |of: fn(&Update) -> usize| updates.iter().map(of).max().unwrap_or(1).max(1) as u32;
        let words = |update: &Update| {
            let parts = update.parts.iter().map(|part| (part.rank as u32, part.outputs as u32));
            LowRankRoom::words_of(cols as u32, (update.a.len() / cols) as u32, parts)
        };
        let room = LowRankRoom {
            slots: 4,
            cols: cols as u32,
            width: width as u32,
            components: random.range(0, 3)
                + updates.iter().map(|update| update.a.len() / cols).max().unwrap_or(1) as u32,
            expansions: most(|update| update.parts.len()),
            words: updates.iter().map(words).max().unwrap_or(1) as u32 + random.range(0, 9),
            f16,
        };
        let (slots, others) = (LowRank::zeroed(gpu, room)?, LowRank::zeroed(gpu, room)?);
        for (index, update) in updates.iter().enumerate() {
            update.write(gpu, &slots, index as u32)?;
            update.write(gpu, &others, 3 - index as u32)?;
        }
        let (x, y) = (random.values(rows * cols), random.values(rows * width));
        Ok(Self { cols, width, rows, quantized, updates, slots, others, x, y })
    }

    fn check(&self, gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
        report.begin_shape();
        let terms = random.range(1, MAX_TERMS) as usize;
        let mut list = |most: usize| -> List {
            let len = random.range(0, most as u32);
            (0..len).map(|_| (random.range(0, 2) as usize, 2.0 * random.value())).collect()
        };
        let mut lists: Vec<List> = (0..self.rows).map(|_| list(terms)).collect();
        lists[0].clear();
        let name = format!(
            "low rank {}{}",
            if self.slots.room().f16 { "F16" } else { "F32" },
            match self.quantized {
                true => " of 8 bits",
                false => "",
            }
        );
        let LowRankRoom { cols, width, components, .. } = *self.slots.room();
        let text = format!("{width} x {cols}, {components} components, {} rows of {terms}", self.rows);
        let (found, x) = self.run(gpu, &self.slots, (0, self.rows), &lists, terms, |slot| slot)?;
        let (exact, bounds) = self.exact(&x, &lists);
        report.add(name.clone(), &text, worst(&found, &exact, |i| bounds[i]));
        let equal = same_bits(&found[..self.width], &self.y[..self.width]);
        report.add_equal(format!("{name}: rows without"), &text, equal);

        // The last row alone, in longer lists, from other slots; then with one list for all rows.
        let last = self.rows - 1;
        let row = |rows: &[f32], index: usize| rows[index * self.width..][..self.width].to_vec();
        let alone = &lists[last..];
        let (single, _) =
            self.run(gpu, &self.others, (last, 1), alone, MAX_TERMS as usize, |slot| 3 - slot)?;
        report.add_equal(format!("{name}: alone"), &text, same_bits(&single, &row(&found, last)));
        if self.rows >= 4 {
            let n = self.rows / 4 * 4;
            let (one, _) = self.run(gpu, &self.slots, (0, n), &lists[n - 1..n], terms, |slot| slot)?;
            report.add_equal(
                format!("{name}: one list"),
                &text,
                same_bits(&row(&one, n - 1), &row(&found, n - 1)),
            );
        }
        Ok(())
    }

    /// Results of `n` rows from `first` on, and the inputs as stored. Fewer lists than rows: one
    /// for all.
    fn run(
        &self,
        gpu: &Gpu,
        slots: &LowRank,
        (first, n): (usize, usize),
        lists: &[List],
        terms: usize,
        slot: impl Fn(u32) -> u32,
    ) -> Result<(Vec<f32>, Vec<f64>)> {
        let one_list = lists.len() < n;
        let values = &self.x[first * self.cols..][..n * self.cols];
        let buffer = gpu.upload(values)?;
        let (x, stored): (Activations, _) = if self.quantized {
            let x = Quantized::new(gpu, n as u32, self.cols as u32)?;
            gpu.run(&[&gpu.quantize(&buffer, &x)?])?;
            let (values, _) = stored(gpu, &x)?;
            (x.into(), values)
        } else {
            (buffer.into(), values.iter().map(|&x| x.into()).collect())
        };
        let y = gpu.upload(&self.y[first * self.width..][..n * self.width])?;
        let rows = LowRankRows::new(gpu, n as u32, terms as u32, one_list, slots.room().components)?;
        let lists: Vec<Vec<(u32, f32)>> = lists
            .iter()
            .map(|list| list.iter().map(|&(index, scale)| (slot(index as u32), scale)).collect())
            .collect();
        rows.write(gpu, &lists.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        let [shrink, expand] = slots.add(gpu, &x, &rows, &y)?;
        Ok((output(gpu, &[&shrink, &expand], &y)?, stored))
    }

    /// Sums and bounds, `[rows, width]`.
    fn exact(&self, x: &[f64], lists: &[List]) -> (Vec<f64>, Vec<f64>) {
        let mut exact: Vec<f64> = self.y.iter().map(|&y| y.into()).collect();
        let mut magnitudes: Vec<f64> = exact.iter().map(|y| y.abs()).collect();
        let mut components = vec![0; self.rows];
        for (row, list) in lists.iter().enumerate() {
            let x = &x[row * self.cols..][..self.cols];
            for &(index, scale) in list {
                let update = &self.updates[index];
                let products =
                    |a: &[f32]| -> Vec<f64> { a.iter().zip(x).map(|(&a, x)| f64::from(a) * x).collect() };
                let u: Vec<Vec<f64>> = update.a.chunks_exact(self.cols).map(products).collect();
                components[row] += u.len();
                for part in &update.parts {
                    for i in 0..part.rank {
                        let u = &u[part.first + i];
                        let (sum, size): (f64, f64) = (u.iter().sum(), u.iter().map(|u| u.abs()).sum());
                        for o in 0..part.outputs {
                            let b = f64::from(scale) * f64::from(part.b[i * part.outputs + o]);
                            let at = row * self.width + part.output + o;
                            exact[at] += b * sum;
                            magnitudes[at] += b.abs() * size;
                        }
                    }
                }
            }
        }
        let bound = |(at, size): (usize, &f64)| {
            let n = components[at / self.width] as f64 + self.cols as f64 / 256.0;
            (n + 24.0) * EPSILON * size
        };
        let bounds = magnitudes.iter().enumerate().map(bound).collect();
        (exact, bounds)
    }
}

impl Update {
    /// One to three parts, each with components of its own or all the same; outputs with and
    /// without gaps between them.
    fn new(random: &mut Random, cols: usize, width: usize, f16: bool) -> Self {
        let round = |x: &mut f32| {
            if f16 {
                *x = f16::from_f32(*x).to_f32();
            }
        };
        let (mut components, mut parts) = (0, Vec::new());
        let shares = random.range(0, 1) == 0;
        let rank = random.range(1, 11) as usize;
        for part in 0..random.range(1, 3) {
            let output = 4 * random.range(0, (width as u32 - 1) / 4) as usize;
            let outputs = random.range(1, (width - output) as u32) as usize;
            // Of parts for the same word of outputs only the last may end within it.
            let outputs = if output + outputs == width { outputs } else { outputs / 4 * 4 };
            let first = if shares { 0 } else { components };
            if !shares || part == 0 {
                components += rank;
            }
            let mut b = random.values(rank * outputs);
            b.iter_mut().for_each(round);
            parts.push(Part { first, rank, output, outputs, b });
        }
        let mut a = random.values(components * cols);
        a.iter_mut().for_each(round);
        Self { a, parts }
    }

    fn write(&self, gpu: &Gpu, slots: &LowRank, slot: u32) -> Result<()> {
        let part =
            |part: &Part| (part.first as u32, part.rank as u32, part.output as u32, part.outputs as u32);
        let parts: Vec<LowRankExpansion<'_>> = self
            .parts
            .iter()
            .map(|of| {
                let (first, rank, output, outputs) = part(of);
                LowRankExpansion { first, rank, output, outputs, b: &of.b }
            })
            .collect();
        slots.write(gpu, slot, &self.a, &parts)
    }
}
