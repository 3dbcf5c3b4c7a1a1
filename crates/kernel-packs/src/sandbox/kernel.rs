//! Kernels that are ready to be called.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::fault::Fault;
use super::guest::Guest;
use super::health::{Counters, Counts, Health};
use super::interface::Code;
use super::layout::{Binding, Direction};
use super::options::SandboxOptions;
use super::pool::Pool;
use super::template::{Needs, Template};
use super::trap::TrapKind;
use crate::error::{Error, Result};
use crate::manifest::{self, ParameterValue};

/// Kernel that is ready to be called, from any number of threads.
///
/// Clones share instances, counters and quarantine. Each handle calls for one tenant, 0 unless
/// [`for_tenant`](Self::for_tenant) says otherwise: no call sees memory that calls for another
/// tenant have used.
#[derive(Clone)]
pub struct Kernel {
    shared: Arc<Shared>,
    tenant: u64,
}

/// Function that is told of a quarantine, with the number of traps in a row.
type OnQuarantine = Box<dyn Fn(&str, u32) + Send + Sync>;

struct Shared {
    /// Number that tells bindings of this kernel from those of others, also of ones that are gone:
    /// an address would be used again.
    number: u64,
    manifest: manifest::Kernel,
    template: Template,
    needs: Needs,
    pool: Pool,
    health: Arc<Health>,
    on_quarantine: OnceLock<OnQuarantine>,
    refuse_non_finite: bool,
}

/// One request of a call: inputs and outputs as bytes, in the order of the manifest.
///
/// For [`Direction::Backward`], inputs are the gradients of the outputs, then the inputs; outputs
/// are the gradients of the inputs.
#[derive(Debug)]
pub struct Job<'j, 'd> {
    /// Sizes and parameters.
    pub binding: &'j Binding,
    /// Bytes of each input.
    pub inputs: &'j [&'d [u8]],
    /// Bytes of each output. A call that fails leaves them as they are.
    pub outputs: &'j mut [&'d mut [u8]],
}

/// Source of the outputs of [`Kernel::call_or`].
#[derive(Debug)]
pub enum Outcome<R = ()> {
    /// The kernel.
    Kernel,
    /// Native code, after this error of the kernel.
    Native {
        /// Result of the native code.
        result: R,
        /// Error of the kernel.
        error: Error,
    },
}

impl Kernel {
    /// Makes the first instance of a checked module.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn new(
        manifest: &manifest::Kernel,
        module: &dyn Code,
        options: &SandboxOptions,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let failed = |fault| Error::kernel(&manifest.id, fault);
        let template = Template::new(module, manifest, options.limits(manifest.limits)).map_err(failed)?;
        let (first, needs) = template.first_instance().map_err(failed)?;
        let pool = Pool::new(options.idle_instances);
        pool.put(first);
        let shared = Shared {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            manifest: manifest.clone(),
            template,
            needs,
            pool,
            health: Arc::new(Health::new(options.quarantine_after)),
            on_quarantine: OnceLock::new(),
            refuse_non_finite: options.refuse_non_finite,
        };
        Ok(Self { shared: Arc::new(shared), tenant: 0 })
    }

    /// Kernel in the manifest.
    pub fn manifest(&self) -> &manifest::Kernel {
        &self.shared.manifest
    }

    /// Handle that calls for another tenant.
    pub fn for_tenant(&self, tenant: u64) -> Self {
        Self { shared: self.shared.clone(), tenant }
    }

    /// True if the kernel has a gradient (`kernel_backward`).
    pub fn has_backward(&self) -> bool {
        self.shared.needs.backward
    }

    /// Request with these sizes of symbols and values of parameters.
    ///
    /// # Errors
    /// [`Error::Kernel`] with [`Fault::Argument`] for sizes and values that are absent, unknown,
    /// contradictory or out of range, and [`Fault::Room`] for more than 2 GiB.
    pub fn bind(&self, sizes: &[(&str, u64)], parameters: &[(&str, ParameterValue)]) -> Result<Binding> {
        self.bind_direction(Direction::Forward, sizes, parameters)
    }

    /// Request in a direction, with these sizes of symbols and values of parameters.
    ///
    /// # Errors
    /// As [`bind`](Self::bind); [`Fault::MissingExport`] if there is no gradient.
    pub fn bind_direction(
        &self,
        direction: Direction,
        sizes: &[(&str, u64)],
        parameters: &[(&str, ParameterValue)],
    ) -> Result<Binding> {
        let Shared { manifest, needs, .. } = &*self.shared;
        if direction == Direction::Backward && !needs.backward {
            let name = super::names::BACKWARD.to_owned();
            return Err(self.error(Fault::MissingExport { name }));
        }
        let binding = Binding::new(manifest, direction, sizes, parameters, needs.scratch);
        let mut binding = binding.map_err(|fault| self.error(fault))?;
        binding.owner = self.shared.number;
        Ok(binding)
    }

    /// Computes requests in one call: one copy in and one copy out.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the fault of the call, [`Error::Quarantined`].
    pub fn call(&self, jobs: &mut [Job<'_, '_>]) -> Result<()> {
        // One request needs no list on the heap.
        if let [job] = jobs {
            return self.call_jobs(&[job.binding], jobs);
        }
        let bindings: Vec<&Binding> = jobs.iter().map(|job| job.binding).collect();
        self.call_jobs(&bindings, jobs)
    }

    fn call_jobs(&self, bindings: &[&Binding], jobs: &mut [Job<'_, '_>]) -> Result<()> {
        let inputs: &[Job<'_, '_>] = jobs;
        self.check_sizes(inputs).map_err(|fault| self.error(fault))?;
        // Copied out by `read`, after `write` has ended.
        let jobs = std::cell::RefCell::new(jobs);
        self.call_with(
            bindings,
            |guest| {
                for (request, job) in jobs.borrow().iter().enumerate() {
                    for (index, input) in job.inputs.iter().enumerate() {
                        guest.input_mut::<u8>(request, index)?.copy_from_slice(input);
                    }
                }
                Ok(())
            },
            |guest| {
                for (request, job) in jobs.borrow_mut().iter_mut().enumerate() {
                    for (index, output) in job.outputs.iter_mut().enumerate() {
                        output.copy_from_slice(guest.output::<u8>(request, index)?);
                    }
                }
                Ok(())
            },
        )
    }

    /// Computes requests in one call, with inputs written to and outputs read from the memory of
    /// the instance.
    ///
    /// # Errors
    /// As [`call`](Self::call), and those of `write` and `read`.
    pub fn call_with<R>(
        &self,
        bindings: &[&Binding],
        write: impl FnOnce(&mut Guest<'_>) -> Result<(), Fault>,
        read: impl FnOnce(&Guest<'_>) -> Result<R, Fault>,
    ) -> Result<R> {
        let shared = &*self.shared;
        self.check_bindings(bindings).map_err(|fault| self.error(fault))?;
        if !shared.health.begin() {
            return Err(self.quarantined());
        }
        let called = shared.pool.take(&shared.template, self.tenant).and_then(|mut instance| {
            let result = instance.call(&shared.manifest.entry_point, bindings, write, |guest| {
                if shared.refuse_non_finite {
                    guest.check_finite()?;
                }
                read(guest)
            });
            match &result {
                // A new instance may have room that the kernel has taken in this one.
                Err(fault) if fault.is_defect() || matches!(fault, Fault::Room { .. }) => drop(instance),
                _ => shared.pool.put(instance),
            }
            result
        });
        match called {
            Ok(result) => {
                shared.health.done();
                Ok(result)
            }
            Err(fault) => Err(self.failed(fault)),
        }
    }

    /// Computes requests in one call; if it fails, `native` computes them.
    pub fn call_or<'j, 'd, R>(
        &self,
        jobs: &mut [Job<'j, 'd>],
        native: impl FnOnce(&mut [Job<'j, 'd>]) -> R,
    ) -> Outcome<R> {
        match self.call(jobs) {
            Ok(()) => Outcome::Kernel,
            Err(error) => {
                self.shared.health.fell_back();
                Outcome::Native { result: native(jobs), error }
            }
        }
    }

    /// Computes requests as [`call_with`](Self::call_with); false if that fails, which is counted
    /// as a call that native code replaces.
    pub fn attempt(
        &self,
        bindings: &[&Binding],
        write: impl FnOnce(&mut Guest<'_>) -> Result<(), Fault>,
        read: impl FnOnce(&Guest<'_>) -> Result<(), Fault>,
    ) -> bool {
        let is_done = self.call_with(bindings, write, read).is_ok();
        if !is_done {
            self.shared.health.fell_back();
        }
        is_done
    }

    /// Makes unused instances until `count` are ready, at most those that the sandbox keeps.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn prepare(&self, count: usize) -> Result<()> {
        self.shared.pool.fill(&self.shared.template, count).map_err(|fault| self.failed(fault))
    }

    /// Closes all ready instances and frees their memory; their number.
    pub fn close_idle(&self) -> usize {
        self.shared.pool.clear()
    }

    /// Number of ready instances.
    pub fn idle_instances(&self) -> usize {
        self.shared.pool.len()
    }

    /// Counters since the kernel was loaded.
    pub fn counts(&self) -> Counts {
        self.shared.health.counts()
    }

    /// Handle of the counters, for a reader that outlives the kernel.
    pub(crate) fn counters(&self) -> Counters {
        Counters::new(&self.shared.health)
    }

    /// True if calls are refused until [`release`](Self::release).
    pub fn is_quarantined(&self) -> bool {
        self.shared.health.is_quarantined()
    }

    /// Ends the quarantine.
    pub fn release(&self) {
        self.shared.health.release();
    }

    /// Sets the function that is told of a quarantine, with the kernel's id and the traps in a row,
    /// by the thread whose call led to it. Later functions are ignored.
    pub(crate) fn on_quarantine(&self, tell: impl Fn(&str, u32) + Send + Sync + 'static) {
        let _ = self.shared.on_quarantine.set(Box::new(tell));
    }

    /// Counts a failure and adds the kernel's id to it.
    #[cold]
    fn failed(&self, fault: Fault) -> Error {
        let Shared { health, manifest, on_quarantine, .. } = &*self.shared;
        let is_quarantined_now = match &fault {
            Fault::Trap(trap) => health.trapped(trap.kind()),
            other if other.is_defect() => health.trapped(TrapKind::Other),
            _ => {
                health.failed();
                false
            }
        };
        if is_quarantined_now && let Some(tell) = on_quarantine.get() {
            tell(&manifest.id, health.in_a_row());
        }
        self.error(fault)
    }

    fn error(&self, fault: Fault) -> Error {
        Error::kernel(&self.shared.manifest.id, fault)
    }

    fn quarantined(&self) -> Error {
        let kernel = self.shared.manifest.id.clone();
        Error::Quarantined { kernel, traps: self.shared.health.in_a_row() }
    }

    /// Checks that requests are of this kernel and of one direction.
    fn check_bindings(&self, bindings: &[&Binding]) -> Result<(), Fault> {
        let Some(first) = bindings.first() else {
            return Err(Fault::argument("requests", "a call has at least one"));
        };
        if bindings.iter().any(|binding| binding.owner != self.shared.number) {
            return Err(Fault::argument("requests", "one was bound for another kernel"));
        }
        if bindings.iter().any(|binding| binding.direction != first.direction) {
            return Err(Fault::argument("requests", "those of one call have one direction"));
        }
        if i32::try_from(bindings.len()).is_err() {
            return Err(Fault::argument("requests", "there are 2^31 or more"));
        }
        Ok(())
    }

    /// Checks numbers and lengths of inputs and outputs.
    fn check_sizes(&self, jobs: &[Job<'_, '_>]) -> Result<(), Fault> {
        for job in jobs {
            let Binding { inputs, outputs, .. } = job.binding;
            let counts =
                [("inputs", inputs.len(), job.inputs.len()), ("outputs", outputs.len(), job.outputs.len())];
            if let Some((what, expected, found)) = counts.into_iter().find(|(_, a, b)| a != b) {
                return Err(Fault::argument(what, format!("there are {found}, the kernel has {expected}")));
            }
            let given = job.inputs.iter().map(|bytes| bytes.len());
            let given = given.chain(job.outputs.iter().map(|bytes| bytes.len()));
            for (slot, found) in inputs.iter().chain(outputs).zip(given) {
                if slot.bytes != found as u64 {
                    let why = format!("it has {found} bytes, its shape needs {}", slot.bytes);
                    return Err(Fault::argument(&slot.name, why));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { manifest, .. } = &*self.shared;
        f.debug_struct("Kernel")
            .field("id", &manifest.id)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}
