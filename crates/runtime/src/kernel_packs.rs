//! Kernels of packs in decoders (feature `kernel-packs`, ADR-0100).
//!
//! [`PackKernels`] is the bridge between a [`Manager`] of packs and
//! [`EngineOptions::row_kernels`](crate::EngineOptions::row_kernels). An operation for which the
//! pack has no kernel, or whose call would cost more than a share of the native time, is native.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ruvllm_kernel_packs::manager::{KernelStatus, LoadedPack, Manager, PackReader, Status};
use ruvllm_kernel_packs::manifest::{Category, DType, ParameterValue};
use ruvllm_kernel_packs::sandbox::{Binding, Fault, Guest};
use ruvllm_kernel_packs::signature::Callable;
use ruvllm_kernels::rope::RopeLayout;
use ruvllm_models::{RowKernelCounts, RowKernelReport, RowKernels};
use sha2::{Digest as _, Sha256};

/// Time of a call that computes nothing, in nanoseconds.
const CALL_NS: f64 = 200.0;
/// Bound requests that a thread keeps.
const MOST_BINDINGS: usize = 64;

/// Operations of decoders that packs replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    RmsNorm,
    Swiglu,
    Rope,
}

impl Operation {
    const ALL: [Self; 3] = [Self::RmsNorm, Self::Swiglu, Self::Rope];

    fn callable(self) -> Callable {
        let category = match self {
            Self::RmsNorm => Category::RmsNorm,
            Self::Swiglu => Category::Swiglu,
            Self::Rope => Category::Rope,
        };
        Callable { category, dtype: DType::F32 }
    }

    /// Time of the native AVX-512 kernel per value, in nanoseconds (docs/kernel-packs.md).
    /// Constants, because a measurement at the start would make texts depend on it.
    fn native_ns(self) -> f64 {
        match self {
            Self::RmsNorm => 0.22,
            Self::Swiglu => 0.53,
            Self::Rope => 0.083,
        }
    }
}

/// Settings of [`PackKernels`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PackKernelsOptions {
    /// Largest cost of a call as a share of the native time of its operation: calls of fewer values
    /// are native. 1 admits calls that cost as much as they replace, infinity admits all.
    pub share: f64,
}

/// A tenth of the native time.
impl Default for PackKernelsOptions {
    fn default() -> Self {
        Self { share: 0.1 }
    }
}

impl PackKernelsOptions {
    /// Values from which on an operation is replaced.
    fn least_values(self, operation: Operation) -> usize {
        let least = CALL_NS / (self.share.max(0.0) * operation.native_ns());
        // As many as no call has, for a share of 0 or NaN.
        if least.is_nan() { usize::MAX } else { least.ceil() as usize }
    }
}

/// Kernels of the active pack of a manager, for an engine.
///
/// A failed call is counted by its kernel and computed natively. After a swap, the next call of
/// each thread uses the new pack; after an unload, all operations are native.
#[derive(Debug)]
pub struct PackKernels {
    manager: Manager,
    options: PackKernelsOptions,
    /// Number that tells the views of this value from those of others.
    number: u64,
}

/// A thread's view of the packs of one [`PackKernels`].
struct View {
    number: u64,
    reader: PackReader,
    /// Pack that the requests are bound for.
    pack: u64,
    bindings: Vec<(Request, Binding)>,
}

/// Sizes and parameter of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Request {
    operation: Operation,
    sizes: [usize; 3],
    /// `eps`, or 1 for interleaved pairs.
    parameter: f32,
}

thread_local! {
    /// The view that the thread used last: a process has one engine with packs, as a rule.
    static VIEW: RefCell<Option<View>> = const { RefCell::new(None) };
}

impl PackKernels {
    /// Kernels of the manager's active pack.
    pub fn new(manager: Manager, options: PackKernelsOptions) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { manager, options, number: NEXT.fetch_add(1, Relaxed) }
    }

    /// The manager, for upgrades, rollbacks and counters.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Replaced operations of the active pack, with the number of values from which on they are.
    pub fn replaced(&self) -> Vec<(Category, usize)> {
        let mut reader = self.manager.reader();
        let Some(pack) = reader.get() else { return Vec::new() };
        let all =
            Operation::ALL.into_iter().filter(|operation| pack.callable(operation.callable()).is_some());
        all.map(|operation| (operation.callable().category, self.options.least_values(operation))).collect()
    }

    /// Calls the kernel of a request; false if there is none, or it fails.
    fn call(
        &self,
        request: Request,
        write: impl FnOnce(&mut Guest<'_>) -> Result<(), Fault>,
        read: impl FnOnce(&Guest<'_>) -> Result<(), Fault>,
    ) -> bool {
        VIEW.with_borrow_mut(|view| {
            let view = match view {
                Some(view) if view.number == self.number => view,
                other => other.insert(View {
                    number: self.number,
                    reader: self.manager.reader(),
                    pack: 0,
                    bindings: Vec::new(),
                }),
            };
            view.call(request, write, read)
        })
    }

    fn is_worth_it(&self, operation: Operation, values: usize) -> bool {
        values >= self.options.least_values(operation).max(1)
    }
}

impl View {
    fn call(
        &mut self,
        request: Request,
        write: impl FnOnce(&mut Guest<'_>) -> Result<(), Fault>,
        read: impl FnOnce(&Guest<'_>) -> Result<(), Fault>,
    ) -> bool {
        let Some(pack) = self.reader.get() else { return false };
        if self.pack != pack.number() || self.bindings.len() >= MOST_BINDINGS {
            self.bindings.clear();
            self.pack = pack.number();
        }
        let Some(kernel) = pack.callable(request.operation.callable()) else { return false };
        let index = match self.bindings.iter().position(|(known, _)| *known == request) {
            Some(index) => index,
            None => {
                let Some(binding) = request.bind(pack) else { return false };
                self.bindings.push((request, binding));
                self.bindings.len() - 1
            }
        };
        kernel.attempt(&[&self.bindings[index].1], write, read)
    }
}

impl Request {
    fn bind(self, pack: &LoadedPack) -> Option<Binding> {
        let kernel = pack.callable(self.operation.callable())?;
        let [a, b, c] = self.sizes.map(|size| size as u64);
        let bound = match self.operation {
            Operation::RmsNorm => {
                let eps = ParameterValue::Number(f64::from(self.parameter));
                kernel.bind(&[("rows", a), ("dim", b)], &[("eps", eps)])
            }
            Operation::Swiglu => kernel.bind(&[("n", a)], &[]),
            Operation::Rope => {
                let is_interleaved = ParameterValue::Bool(self.parameter != 0.0);
                let sizes = [("tokens", 1), ("heads", a), ("dim", b), ("pairs", c)];
                kernel.bind(&sizes, &[("interleaved", is_interleaved)])
            }
        };
        bound.ok()
    }
}

impl RowKernels for PackKernels {
    /// Counters of the kernels that the engine has called, and of those that it calls now.
    fn report(&self) -> Option<RowKernelReport> {
        let Status { name, active, counts, totals, .. } = self.manager.status();
        let of_active = |id: &str| active.as_ref()?.kernels.iter().find(|kernel| kernel.id == id);
        let is_replaced = |kernel: &KernelStatus| {
            Operation::ALL.iter().any(|operation| kernel.callable == Ok(operation.callable()))
        };
        let kernels = totals.into_iter().filter(|(id, counts)| {
            counts.calls + counts.refused > 0 || of_active(id).is_some_and(is_replaced)
        });
        let kernels = kernels.map(|(id, counts)| RowKernelCounts {
            is_quarantined: of_active(&id).is_some_and(|kernel| kernel.is_quarantined),
            id,
            calls: counts.calls,
            failed: counts.failed,
            fallbacks: counts.fallbacks,
            traps: counts.traps.iter().map(|(kind, count)| (kind.name(), *count)).collect(),
        });
        Some(RowKernelReport {
            name,
            version: active.as_ref().map(|pack| pack.release.version.to_string()),
            swaps: counts.swaps,
            refused: counts.refused,
            rollbacks: vec![("requested", counts.requested), ("quarantine", counts.automatic)],
            kernels: kernels.collect(),
        })
    }

    /// Digest of the pack's manifest and of the settings that choose calls.
    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new_with_prefix("kernels of a pack");
        digest.update(self.options.share.to_le_bytes());
        if let Some(pack) = self.manager.reader().get() {
            digest.update(pack.release().manifest_sha256.to_string());
        }
        digest.finalize().into()
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> bool {
        let (operation, dim) = (Operation::RmsNorm, weight.len());
        if !self.is_worth_it(operation, x.len()) || dim == 0 {
            return false;
        }
        let request = Request { operation, sizes: [x.len() / dim, dim, 0], parameter: eps };
        let write = |guest: &mut Guest<'_>| {
            guest.input_mut(0, 0)?.copy_from_slice(x);
            guest.input_mut(0, 1)?.copy_from_slice(weight);
            Ok(())
        };
        self.call(request, write, |guest| {
            out.copy_from_slice(guest.output(0, 0)?);
            Ok(())
        })
    }

    fn silu_mul(&self, gate: &mut [f32], up: &[f32]) -> bool {
        let operation = Operation::Swiglu;
        if !self.is_worth_it(operation, up.len()) {
            return false;
        }
        let request = Request { operation, sizes: [up.len(), 0, 0], parameter: 0.0 };
        let gate = Cell::from_mut(gate).as_slice_of_cells();
        let write = |guest: &mut Guest<'_>| {
            copy_in(gate, guest.input_mut(0, 0)?);
            guest.input_mut(0, 1)?.copy_from_slice(up);
            Ok(())
        };
        self.call(request, write, |guest| {
            copy_out(guest.output(0, 0)?, gate);
            Ok(())
        })
    }

    fn rope(&self, layout: RopeLayout, cos: &[f32], sin: &[f32], x: &mut [f32], head_dim: usize) -> bool {
        let operation = Operation::Rope;
        if !self.is_worth_it(operation, x.len()) || head_dim == 0 {
            return false;
        }
        let parameter = f32::from(u8::from(layout == RopeLayout::Interleaved));
        let request = Request { operation, sizes: [x.len() / head_dim, head_dim, cos.len()], parameter };
        let x = Cell::from_mut(x).as_slice_of_cells();
        let write = |guest: &mut Guest<'_>| {
            copy_in(x, guest.input_mut(0, 0)?);
            guest.input_mut(0, 1)?.copy_from_slice(cos);
            guest.input_mut(0, 2)?.copy_from_slice(sin);
            Ok(())
        };
        self.call(request, write, |guest| {
            copy_out(guest.output(0, 0)?, x);
            Ok(())
        })
    }
}

/// Copies values that are written after the call.
fn copy_in(from: &[Cell<f32>], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.get());
}

fn copy_out(from: &[f32], to: &[Cell<f32>]) {
    to.iter().zip(from).for_each(|(to, from)| to.set(*from));
}

/// The kernels as [`EngineOptions`](crate::EngineOptions) take them.
impl From<PackKernels> for Arc<dyn RowKernels> {
    fn from(kernels: PackKernels) -> Self {
        Arc::new(kernels)
    }
}
