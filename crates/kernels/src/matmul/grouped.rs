//! Products of groups of rows, each group with a matrix of its own: the experts of a mixture.
//!
//! Groups of few rows are bound by reading weights: one dispatch divides the weight rows of all of
//! them. A group of many rows is bound by arithmetic and divided by itself, so that one expert that
//! most tokens chose does not end up on one thread.

use crate::matmul::activations::RowGroup;
use crate::matmul::float::PackedInputs;
use crate::matmul::{Activations, GRAIN_WORK, Input, RowGroups, UNIT_ROWS};
use crate::pool::DisjointMut;
use crate::quant::PackedMatrix;
use crate::{Kernels, ThreadPool};

/// One of several stacks of matrices that multiply the same rows ([`Kernels::matmul_grouped`]).
#[derive(Debug)]
pub struct GroupedJob<'a> {
    /// Matrices of one shape, `[rows, cols]` each, by the index that groups have.
    pub weights: &'a [PackedMatrix],
    /// Output, `[tokens, rows]`, overwritten.
    pub out: &'a mut [f32],
}

/// Stacks per dispatch: gate and up.
const MAX_JOBS: usize = 2;

/// A stack of matrices and the output of all groups.
struct Stack<'a> {
    weights: &'a [PackedMatrix],
    out: DisjointMut<'a, f32>,
    /// Units of work per group.
    units: usize,
}

impl Kernels {
    /// Computes `out = x Wᵀ` for groups of rows, each with a matrix of its own.
    ///
    /// # Shapes
    /// `x`: `[tokens, cols]`, the rows of `groups`; each job's `out`: `[tokens, rows]`,
    /// overwritten. Zero columns give zeros.
    ///
    /// # Numerics
    /// The bits of [`matmul`](Self::matmul) with each group alone: an output depends only on its
    /// weight row and its token.
    ///
    /// # Panics
    /// If shapes do not match, a group has no matrix, or a format [uses 8-bit
    /// activations](crate::quant::WeightFormat::uses_q8) and `x` is not
    /// [quantized](Activations::quantize_groups) for these groups.
    pub fn matmul_grouped(
        &self,
        pool: &ThreadPool,
        x: &Activations,
        groups: &RowGroups,
        jobs: &mut [GroupedJob<'_>],
    ) {
        assert_eq!(groups.rows(), x.tokens(), "matmul_grouped: the groups are of other rows");
        if x.tokens() == 0 {
            return;
        }
        for jobs in jobs.chunks_mut(MAX_JOBS) {
            for job in &*jobs {
                check(x, groups, job);
            }
            if x.cols() == 0 {
                jobs.iter_mut().for_each(|job| job.out.fill(0.0));
            } else {
                self.dispatch_groups(pool, x, groups, jobs);
            }
        }
    }

    fn dispatch_groups(
        &self,
        pool: &ThreadPool,
        x: &Activations,
        groups: &RowGroups,
        jobs: &mut [GroupedJob<'_>],
    ) {
        let uses_q8 = |weights: &[PackedMatrix], group: &RowGroup| weights[group.matrix].format().uses_q8();
        let any = |q8: bool| {
            jobs.iter().any(|job| groups.all().iter().any(|group| uses_q8(job.weights, group) == q8))
        };
        let (any_q8, any_float) = (any(true), any(false));
        let packed = PackedInputs::of_groups(self, pool, x, groups.all(), any_float);
        let mut stacks: [Option<Stack<'_>>; MAX_JOBS] = [const { None }; MAX_JOBS];
        for (stack, job) in stacks.iter_mut().zip(jobs) {
            let rows = job.out.len() / x.tokens();
            let (weights, units) = (job.weights, rows.div_ceil(UNIT_ROWS));
            *stack = Some(Stack { weights, out: DisjointMut::new(job.out), units });
        }
        let stacks: &[Option<Stack<'_>>] = &stacks;
        let inputs = |group: &RowGroup| Input {
            first: group.first,
            tokens: group.len,
            values: &x.values()[group.first * x.cols()..][..group.len * x.cols()],
            q8: any_q8.then(|| x.q8_of_group(group)),
            packed: packed.of_group(group, x.cols()),
        };
        let (many, few) = groups.split();
        for group in many.chunks(1).chain((!few.is_empty()).then_some(few)) {
            self.share(pool, group, stacks, &inputs);
        }
    }

    /// Distributes the weight rows of some groups over the threads, in units of [`UNIT_ROWS`].
    fn share<'a>(
        &self,
        pool: &ThreadPool,
        groups: &[RowGroup],
        stacks: &[Option<Stack<'_>>],
        inputs: &(dyn Fn(&RowGroup) -> Input<'a> + Sync),
    ) {
        let units_per_group: usize = stacks.iter().flatten().map(|stack| stack.units).sum();
        let n_units = units_per_group * groups.len();
        let work = |group: &RowGroup| {
            let bytes = stacks.iter().flatten().map(|stack| stack.weights[group.matrix].bytes().len());
            bytes.sum::<usize>().saturating_mul(group.len)
        };
        let work = groups.iter().map(work).fold(0, usize::saturating_add);
        let grain = (GRAIN_WORK / (work / n_units.max(1)).max(1)).max(1);
        pool.for_each_chunk(n_units, grain, &|units| {
            let mut at = units.start;
            while at < units.end {
                let group = &groups[at / units_per_group];
                let input = inputs(group);
                let mut first = at / units_per_group * units_per_group;
                let end = units.end.min(first + units_per_group);
                for stack in stacks.iter().flatten() {
                    let here = at.max(first)..end.min(first + stack.units);
                    if !here.is_empty() {
                        let w = &stack.weights[group.matrix];
                        let rows =
                            (here.start - first) * UNIT_ROWS..w.rows().min((here.end - first) * UNIT_ROWS);
                        self.rows_product(w, &input, &stack.out, rows);
                    }
                    first += stack.units;
                }
                at = end;
            }
        });
    }
}

/// Checks the shapes of a job: every matrix of a group has the columns of the rows and as many rows
/// as the output is wide.
fn check(x: &Activations, groups: &RowGroups, job: &GroupedJob<'_>) {
    let rows = job.out.len() / x.tokens();
    assert_eq!(job.out.len() % x.tokens(), 0, "matmul_grouped: the output has another shape");
    for group in groups.all() {
        let Some(w) = job.weights.get(group.matrix) else {
            panic!("matmul_grouped: matrix {} of {}", group.matrix, job.weights.len())
        };
        assert_eq!(w.cols(), x.cols(), "matmul_grouped: a matrix and its input differ in columns");
        assert_eq!(w.rows(), rows, "matmul_grouped: the output has another shape");
    }
}
