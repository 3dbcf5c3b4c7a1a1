//! Merging of adapters: one adapter, or one delta per matrix, of several (ADR-0055).
//!
//! Modules are independent: beside the result, one dense delta is in memory at a time, with as much
//! again for trimming and panels of it for decomposition. A matrix that an input does not change
//! has a delta of zero there.

pub mod arithmetic;
mod mask;
mod method;
mod modules;
mod svd;

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use faer::Mat;
use ruvllm_kernels::ThreadPool;

use self::arithmetic::Trim;
use self::mask::Mask;
pub use self::method::{Dare, Method, Ties};
pub use self::modules::Module;
use self::modules::{Delta, Group};
pub use self::svd::Rank;
use self::svd::{Dense, Product};
use crate::error::{Error, Result};
use crate::export::{AdapterFormat, FactorType, NewAdapter, NewUpdate};
use crate::file::LoraFile;
use crate::place::{BaseModel, Projection, RowOrder, reorder};

/// Rows of a delta that a thread computes at a time.
const BLOCK_ROWS: usize = 32;

/// Adapter of a merge and its weight.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The adapter.
    pub file: &'a LoraFile,
    /// Factor of its deltas; 1 = as trained. SLERP does not use it.
    pub weight: f64,
}

/// A merge that was checked; deltas are computed when they are asked for.
#[derive(Debug)]
pub struct Merge<'a> {
    weights: Vec<f64>,
    method: Method,
    base: Option<BaseModel>,
    format: AdapterFormat,
    architecture: Option<String>,
    groups: Vec<Group<'a>>,
}

/// Adapter in memory and its deviation from the exact result.
#[derive(Debug, Clone)]
pub struct Compressed {
    /// The adapter.
    pub adapter: NewAdapter,
    /// Deviation of each of its matrices, in their order.
    pub deviations: Vec<Deviation>,
}

/// Deviation of one matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deviation {
    /// Frobenius norm of the exact delta.
    pub norm: f64,
    /// Frobenius norm of the difference between the product of the stored factors and the delta.
    pub distance: f64,
}

impl Deviation {
    /// Relative error in the Frobenius norm; 0 for a delta of zero.
    pub fn relative(&self) -> f64 {
        if self.norm > 0.0 { self.distance / self.norm } else { 0.0 }
    }
}

impl Compressed {
    /// Relative error of all matrices together, in the Frobenius norm.
    pub fn relative_error(&self) -> f64 {
        let root = |value: fn(&Deviation) -> f64| {
            self.deviations.iter().map(|deviation| value(deviation).powi(2)).sum::<f64>().sqrt()
        };
        Deviation { norm: root(|deviation| deviation.norm), distance: root(|deviation| deviation.distance) }
            .relative()
    }
}

/// Progress of a merge or an extraction: modules done, of all; `Break` cancels the work.
pub type Progress<'a> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'a;

impl<'a> Merge<'a> {
    /// Aligns the matrices of the inputs, with rows in the order of `format`.
    ///
    /// `base` is needed where an input has rows in another order than `format`; with it, the inputs
    /// are checked against it.
    ///
    /// # Errors
    /// Too few or too many inputs, parameters out of range, inputs for different models or not for
    /// `base`, and [`Error::BaseNeeded`].
    pub fn new(
        inputs: &[Input<'a>],
        method: Method,
        base: Option<&BaseModel>,
        format: AdapterFormat,
    ) -> Result<Self> {
        let weights: Vec<f64> = inputs.iter().map(|input| input.weight).collect();
        method.check(&weights)?;
        let architecture = architecture(inputs, base)?;
        let groups = modules::align(inputs, base, format)?;
        Ok(Self { weights, method, base: base.cloned(), format, architecture, groups })
    }

    /// Matrices that it changes, ascending by layer and projection.
    pub fn modules(&self) -> impl ExactSizeIterator<Item = &Module> {
        self.groups.iter().map(|group| &group.module)
    }

    /// Largest rank that an input has for a matrix.
    pub fn largest_rank(&self) -> usize {
        self.groups.iter().flat_map(|group| &group.parts).map(modules::Part::rank).max().unwrap_or(0)
    }

    /// Largest sum of ranks of the inputs for a matrix: the rank of a linear merge.
    pub fn summed_rank(&self) -> usize {
        let sum = |group: &Group<'_>| group.parts.iter().map(modules::Part::rank).sum();
        self.groups.iter().map(sum).max().unwrap_or(0)
    }

    /// Dense delta of a module, `[outputs, inputs]`, to be added to the weights.
    ///
    /// # Errors
    /// [`Error::NotFinite`].
    ///
    /// # Panics
    /// If there is no such module.
    pub fn delta(&self, module: usize, pool: &ThreadPool) -> Result<Vec<f32>> {
        let group = &self.groups[module];
        self.dense(group, &self.read(group)?, pool)
    }

    /// The merge as an adapter, module by module.
    ///
    /// A linear merge is truncated from its factors, exactly; a dense delta is decomposed.
    ///
    /// # Errors
    /// A rank of 0 or an error out of range, values that are not finite or not of `factors`'
    /// range, and [`Error::Cancelled`].
    pub fn adapter(
        &self,
        rank: Rank,
        factors: FactorType,
        pool: &ThreadPool,
        progress: &mut Progress<'_>,
    ) -> Result<Compressed> {
        rank.check()?;
        self.check_names()?;
        let mut updates = Vec::with_capacity(self.groups.len());
        let mut deviations = Vec::with_capacity(self.groups.len());
        for (done, group) in self.groups.iter().enumerate() {
            step(progress, done, self.groups.len())?;
            let (update, deviation) = self.compress(group, rank, factors, pool)?;
            updates.push(update);
            deviations.push(deviation);
        }
        step(progress, self.groups.len(), self.groups.len())?;
        let adapter = NewAdapter::new(self.format, self.architecture.clone(), factors, updates)?;
        Ok(Compressed { adapter, deviations })
    }

    /// Refuses a GGUF adapter with a part of a matrix that the model stores as one, or the reverse:
    /// no tensor of the model has its name.
    fn check_names(&self) -> Result<()> {
        use Projection as P;
        let Some(base) = self.base.as_ref().filter(|_| self.format == AdapterFormat::Gguf) else {
            return Ok(());
        };
        let unnamed = |projection: Projection| match projection {
            P::Query | P::Key | P::Value => base.joint_attention,
            P::Gate | P::Up => base.joint_feed_forward,
            P::QueryKeyValue => !base.joint_attention,
            P::GateUp => !base.joint_feed_forward,
            _ => false,
        };
        match self.modules().map(|module| module.projection).find(|&projection| unnamed(projection)) {
            Some(projection) => Err(Error::Unnamed { format: "a GGUF file of the base model", projection }),
            None => Ok(()),
        }
    }

    fn read(&self, group: &Group<'_>) -> Result<Vec<Delta>> {
        group.parts.iter().map(|part| part.read(&group.module, self.base.as_ref(), self.format)).collect()
    }

    fn compress(
        &self,
        group: &Group<'_>,
        rank: Rank,
        factors: FactorType,
        pool: &ThreadPool,
    ) -> Result<(NewUpdate, Deviation)> {
        let (deltas, module) = (self.read(group)?, &group.module);
        if !self.method.is_linear() {
            let values = self.dense(group, &deltas, pool)?;
            return compress_dense(module, &values, rank, factors, pool);
        }
        let exact = concatenated(module, &deltas, &self.coefficients(group, &deltas));
        let whole = exact.b.ncols() <= module.inputs.min(module.outputs);
        let near = match rank {
            Rank::Exact if whole => exact.clone(),
            Rank::AtMost(rank) if whole && rank >= exact.b.ncols() => exact.clone(),
            rank => exact.truncate(rank, &module.name)?,
        };
        let (update, stored) = store(module, &near, factors)?;
        Ok((update, Deviation { norm: exact.norm(), distance: exact.distance(&stored) }))
    }

    /// Factors of the deltas of a method that is linear, or of their sum after masks.
    fn coefficients(&self, group: &Group<'_>, deltas: &[Delta]) -> Vec<f64> {
        let weight = |part: &modules::Part<'_>| self.weights[part.input];
        match self.method {
            Method::Average => {
                let sum: f64 = self.weights.iter().sum();
                group.parts.iter().map(|part| weight(part) / sum).collect()
            }
            Method::Slerp { t } => {
                let weights = match deltas {
                    [a, b] => arithmetic::slerp_weights(t, [a.dot(a), a.dot(b), b.dot(b)]),
                    _ => arithmetic::slerp_weights(t, [0.0; 3]),
                };
                group.parts.iter().map(|part| weights[part.input]).collect()
            }
            _ => group.parts.iter().map(weight).collect(),
        }
    }

    /// The merged delta; at most one other dense matrix is made on the way.
    fn dense(&self, group: &Group<'_>, deltas: &[Delta], pool: &ThreadPool) -> Result<Vec<f32>> {
        let (dare, ties) = match self.method {
            Method::DareLinear(dare) => (Some(dare), None),
            Method::DareTies(dare, ties) => (Some(dare), Some(ties)),
            Method::Ties(ties) => (None, Some(ties)),
            _ => (None, None),
        };
        let cols = group.module.inputs;
        let mask = |part: &modules::Part<'_>| {
            dare.map(|dare| (dare.p, Mask::new(dare.seed, dare.p, &group.module, part.input)))
        };
        let entries = |i: usize, first: usize, out: &mut [f32], sums: &mut Vec<f64>| {
            deltas[i].rows(first, cols, out, sums);
            if let Some((p, mask)) = mask(&group.parts[i]) {
                arithmetic::drop_and_rescale(out, first * cols, p, |index| mask.keeps(index));
            }
        };
        let trims: Vec<Option<Trim>> = (0..deltas.len())
            .map(|i| {
                let ties = ties.filter(|ties| ties.density < 1.0)?;
                let whole =
                    blocks(&group.module, pool, &|first, out| entries(i, first, out, &mut Vec::new()));
                Some(Trim::new(&whole, ties.density))
            })
            .collect();
        let weights = self.coefficients(group, deltas);
        let values = blocks(&group.module, pool, &|first, out| {
            let mut sums = Vec::new();
            let mut parts = vec![vec![0.0; out.len()]; deltas.len()];
            for (i, part) in parts.iter_mut().enumerate() {
                entries(i, first, part, &mut sums);
                if let Some(kept) = &trims[i] {
                    arithmetic::trim(part, first * cols, kept);
                }
            }
            let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
            match ties {
                Some(ties) => arithmetic::elect(&parts, &weights, ties.lambda, out),
                None => arithmetic::linear(&parts, &weights, out),
            }
        });
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(Error::NotFinite { name: group.module.name.clone() }),
        }
    }
}

/// Factors of a dense delta of a module, row-major `[outputs, inputs]`.
///
/// # Errors
/// As [`Merge::adapter`].
pub fn compress_dense(
    module: &Module,
    delta: &[f32],
    rank: Rank,
    factors: FactorType,
    pool: &ThreadPool,
) -> Result<(NewUpdate, Deviation)> {
    rank.check()?;
    let dense = Dense { rows: module.outputs, cols: module.inputs, values: delta };
    let near = dense.factor(rank, &module.name, pool)?;
    let (update, stored) = store(module, &near, factors)?;
    let (norm, distance) = dense.norm_and_distance(&stored, pool);
    Ok((update, Deviation { norm, distance }))
}

/// Rows of a Hugging Face module's matrix, `[rows, inputs]`, in the order of a format.
///
/// `from_gguf` tells that they are in the order of GGUF files.
pub fn reorder_rows(
    rows: Vec<f32>,
    module: &Module,
    base: &BaseModel,
    from_gguf: bool,
    format: AdapterFormat,
) -> Vec<f32> {
    let from = if from_gguf { RowOrder::Gguf } else { RowOrder::HuggingFace };
    reorder(rows, module.inputs, module.projection, base, (from, format.row_order()))
}

/// Reports progress.
fn step(progress: &mut Progress<'_>, done: usize, total: usize) -> Result<()> {
    match progress(done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    }
}

/// The architecture that the base model or the inputs name.
fn architecture(inputs: &[Input<'_>], base: Option<&BaseModel>) -> Result<Option<String>> {
    let mut named: Option<&str> = base.map(|base| base.architecture.as_str());
    for Input { file, .. } in inputs {
        match (named, file.architecture.as_deref()) {
            (Some(expected), Some(found)) if found != expected => {
                let (found, expected) = (found.to_owned(), expected.to_owned());
                return Err(Error::MergeArchitectures { path: file.path.clone(), found, expected });
            }
            (named_before, found) => named = named_before.or(found),
        }
    }
    Ok(named.map(str::to_owned))
}

/// All deltas as one product: `A` below one another, `B` side by side with their factors.
fn concatenated(module: &Module, deltas: &[Delta], coefficients: &[f64]) -> Product {
    let rank = deltas.iter().map(|delta| delta.rank).sum();
    let (mut b, mut a) = (Mat::zeros(module.outputs, rank), Mat::zeros(rank, module.inputs));
    let mut first = 0;
    for (delta, coefficient) in deltas.iter().zip(coefficients) {
        for row in 0..module.outputs {
            for (i, value) in delta.b_row(row).enumerate() {
                b[(row, first + i)] = coefficient * value;
            }
        }
        for (i, row) in delta.a.chunks_exact(module.inputs).enumerate() {
            for (column, &value) in row.iter().enumerate() {
                a[(first + i, column)] = f64::from(value);
            }
        }
        first += delta.rank;
    }
    Product { b, a }
}

/// Rounds factors to their type, and reads them back.
fn store(module: &Module, product: &Product, factors: FactorType) -> Result<(NewUpdate, Product)> {
    let rank = product.b.ncols();
    let values = |matrix: &Mat<f64>| -> Vec<f32> {
        let cells = (0..matrix.nrows()).flat_map(|row| (0..matrix.ncols()).map(move |column| (row, column)));
        let mut values: Vec<f32> = cells.map(|cell| matrix[cell] as f32).collect();
        factors.round(&mut values);
        values
    };
    let (a, b) = (values(&product.a), values(&product.b));
    if !a.iter().chain(&b).all(|value| value.is_finite()) {
        return Err(Error::NotFinite { name: module.name.clone() });
    }
    let read = |values: &[f32], rows: usize, cols: usize| {
        Mat::from_fn(rows, cols, |row, column| f64::from(values[row * cols + column]))
    };
    let stored = Product { b: read(&b, module.outputs, rank), a: read(&a, rank, module.inputs) };
    let update = NewUpdate {
        projection: module.projection,
        layer: module.layer,
        peft_name: module.peft_name.clone(),
        rank,
        inputs: module.inputs,
        outputs: module.outputs,
        a,
        b,
    };
    Ok((update, stored))
}

/// A dense matrix of a module, made in blocks of rows on all threads; `fill` gets the first row.
fn blocks(module: &Module, pool: &ThreadPool, fill: &(dyn Fn(usize, &mut [f32]) + Sync)) -> Vec<f32> {
    let mut values = vec![0.0; module.outputs * module.inputs];
    // Each block is taken by one thread only: the locks are never contended.
    let parts: Vec<_> = values.chunks_mut(BLOCK_ROWS * module.inputs).map(Mutex::new).collect();
    pool.for_each_chunk(parts.len(), 1, &|range| {
        for i in range {
            fill(i * BLOCK_ROWS, &mut parts[i].lock().unwrap_or_else(PoisonError::into_inner));
        }
    });
    drop(parts);
    values
}
