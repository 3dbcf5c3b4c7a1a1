//! Packs that are loaded: compiled kernels that passed their health check.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::health::{self, Checked};
use super::options::ManagerOptions;
use crate::error::Result;
use crate::manifest::Manifest;
use crate::sandbox::{Kernel, Sandbox};
use crate::signature::{Callable, Mismatch};
use crate::{Pack, Release};

/// Pack whose kernels are compiled, and checked if an engine can call them.
///
/// It is freed with the last `Arc`: calls that run on it finish, however long they take.
pub struct LoadedPack {
    number: u64,
    release: Release,
    manifest: Manifest,
    kernels: Vec<LoadedKernel>,
    pub(super) is_from_store: bool,
    _counted: Counted,
}

/// Kernel of a loaded pack.
#[derive(Debug)]
#[non_exhaustive]
pub struct LoadedKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// Category and type under which an engine can call it, or the difference from the signature of
    /// its category.
    pub callable: Result<Callable, Mismatch>,
    /// Outcome of the health check; empty for kernels that are not callable, which have none.
    pub checked: Checked,
}

impl LoadedPack {
    /// Compiles and checks all kernels of a pack.
    ///
    /// # Errors
    /// The errors of [`Sandbox::load_all`]; [`Error::Unhealthy`](crate::Error::Unhealthy) for the
    /// first kernel that fails its check.
    pub(super) fn new(
        sandbox: &Sandbox,
        pack: &Pack,
        options: &ManagerOptions,
        alive: &Arc<AtomicUsize>,
        is_from_store: bool,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut kernels = Vec::new();
        for kernel in sandbox.load_all(pack)? {
            let callable = kernel.manifest().callable();
            let checked = match callable {
                Ok(callable) => health::check(&kernel, callable, sandbox.allows_non_finite())?,
                Err(_) => Checked::default(),
            };
            kernel.prepare(options.ready_instances)?;
            kernels.push(LoadedKernel { kernel, callable, checked });
        }
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            release: pack.release(),
            manifest: pack.manifest().clone(),
            kernels,
            is_from_store,
            _counted: Counted::new(alive),
        })
    }

    /// Number that no other loaded pack of the process has. Requests that were bound for another
    /// number are bound again.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Version and digest.
    pub fn release(&self) -> &Release {
        &self.release
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All kernels, in the order of the manifest.
    pub fn kernels(&self) -> &[LoadedKernel] {
        &self.kernels
    }

    /// Kernel with an id.
    pub fn kernel(&self, id: &str) -> Option<&Kernel> {
        self.kernels.iter().map(|loaded| &loaded.kernel).find(|kernel| kernel.manifest().id == id)
    }

    /// First kernel of the manifest that computes an operation.
    pub fn callable(&self, callable: Callable) -> Option<&Kernel> {
        let loaded = self.kernels.iter().find(|loaded| loaded.callable == Ok(callable))?;
        Some(&loaded.kernel)
    }
}

impl fmt::Debug for LoadedPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedPack")
            .field("number", &self.number)
            .field("release", &self.release)
            .field("kernels", &self.kernels)
            .finish_non_exhaustive()
    }
}

/// One of the packs that are in memory.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self(alive.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
