//! Compilation of kernels by background threads, and by whoever needs one first.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cache::{CacheError, PipelineStore};
use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::future::block_on;
use crate::kernel::{Kernel, Target};

/// Maximum number of background threads. Drivers serialize part of the work.
const MAX_THREADS: usize = 8;

/// Compiled kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// A kernel and its pipeline, compiled once.
#[derive(Debug)]
pub(crate) struct Slot {
    kernel: Kernel,
    pipeline: OnceLock<Result<Pipeline>>,
}

impl Slot {
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }
}

/// Time spent on kernels, as the sum over all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompileTimes {
    /// Compiled kernels.
    pub kernels: usize,
    /// Generation of WGSL.
    pub source: Duration,
    /// Parsing and validation by naga.
    pub module: Duration,
    /// Translation to SPIR-V or MSL by naga, and compilation by the driver.
    pub pipeline: Duration,
    /// Time in which submissions waited for kernels or compiled them themselves.
    pub waited: Duration,
}

/// Sums of [`CompileTimes`] in nanoseconds.
#[derive(Debug, Default)]
struct Sums {
    kernels: AtomicUsize,
    source: AtomicU64,
    module: AtomicU64,
    pipeline: AtomicU64,
    waited: AtomicU64,
}

/// Kernels of a device. Dropping it waits for its threads and writes the pipeline cache.
#[derive(Debug)]
pub(crate) struct Compiler {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    device: wgpu::Device,
    target: Target,
    faults: Arc<Faults>,
    store: Option<PipelineStore>,
    warnings: Mutex<Vec<CacheError>>,
    slots: Mutex<HashMap<Kernel, Arc<Slot>>>,
    queue: Mutex<Queue>,
    /// Signalled when a background thread ends.
    ended: Condvar,
    /// True if kernels were compiled since the cache was written.
    is_unsaved: AtomicBool,
    sums: Sums,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Slot>>,
    threads: usize,
}

impl Compiler {
    /// A compiler without kernels. `store`: the cache on disk, and the reason not to use it.
    pub(crate) fn new(
        device: &wgpu::Device,
        target: Target,
        faults: &Arc<Faults>,
        (store, warning): (Option<PipelineStore>, Option<CacheError>),
    ) -> Self {
        let shared = Shared {
            device: device.clone(),
            target,
            faults: Arc::clone(faults),
            store,
            warnings: Mutex::new(warning.into_iter().collect()),
            slots: Mutex::default(),
            queue: Mutex::default(),
            ended: Condvar::new(),
            is_unsaved: AtomicBool::new(false),
            sums: Sums::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Slot of a kernel; a new one is queued for the background threads.
    pub(crate) fn request(&self, kernel: &Kernel) -> Arc<Slot> {
        let slot = {
            let mut slots = lock(&self.shared.slots);
            if let Some(slot) = slots.get(kernel) {
                return Arc::clone(slot);
            }
            let slot = Arc::new(Slot { kernel: kernel.clone(), pipeline: OnceLock::new() });
            slots.insert(kernel.clone(), Arc::clone(&slot));
            slot
        };
        let mut queue = lock(&self.shared.queue);
        queue.waiting.push_back(Arc::clone(&slot));
        self.add_thread(&mut queue);
        slot
    }

    /// Moves kernels that are not compiled yet to the front of the queue.
    pub(crate) fn prefer<'s>(&self, slots: impl DoubleEndedIterator<Item = &'s Arc<Slot>>) {
        let absent = |slot: &&Arc<Slot>| slot.pipeline.get().is_none();
        let mut slots = slots.filter(absent).rev().peekable();
        if slots.peek().is_some() {
            let mut queue = lock(&self.shared.queue);
            // The second time that a thread finds a kernel it is compiled.
            slots.for_each(|slot| queue.waiting.push_front(Arc::clone(slot)));
            self.add_thread(&mut queue);
        }
    }

    fn add_thread(&self, queue: &mut Queue) {
        let wanted = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        if queue.threads < wanted {
            let shared = Arc::clone(&self.shared);
            let spawned =
                thread::Builder::new().name("gpu-compile".to_owned()).spawn(move || shared.compile_queued());
            // Without threads the first submission compiles.
            queue.threads += usize::from(spawned.is_ok());
        }
    }

    /// Pipeline of a slot; compiles it, or waits for the thread that does.
    pub(crate) fn pipeline<'s>(&self, slot: &'s Slot) -> Result<&'s Pipeline> {
        let pipeline = match slot.pipeline.get() {
            Some(pipeline) => pipeline,
            None => {
                let start = Instant::now();
                let pipeline = self.shared.compiled(slot);
                add(&self.shared.sums.waited, start.elapsed());
                pipeline
            }
        };
        pipeline.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn kernels(&self) -> Vec<Kernel> {
        lock(&self.shared.slots).keys().cloned().collect()
    }

    pub(crate) fn store(&self) -> Option<&PipelineStore> {
        self.shared.store.as_ref()
    }

    pub(crate) fn take_warnings(&self) -> Vec<CacheError> {
        std::mem::take(&mut *lock(&self.shared.warnings))
    }

    pub(crate) fn times(&self) -> CompileTimes {
        let Sums { kernels, source, module, pipeline, waited } = &self.shared.sums;
        let time = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed));
        CompileTimes {
            kernels: kernels.load(Ordering::Relaxed),
            source: time(source),
            module: time(module),
            pipeline: time(pipeline),
            waited: time(waited),
        }
    }

    /// Waits until no kernel is queued or being compiled, and writes the pipeline cache.
    pub(crate) fn finish(&self) {
        let mut queue = lock(&self.shared.queue);
        while queue.threads > 0 {
            queue = self.shared.ended.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        drop(queue);
        self.shared.save();
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        // A driver must not be unloaded while one of the threads is in it.
        lock(&self.shared.queue).waiting.clear();
        self.finish();
    }
}

impl Shared {
    /// Compiles queued kernels until none is left. The last thread writes the cache.
    fn compile_queued(&self) {
        /// Counts the thread out, also if a driver panics.
        struct Running<'s>(&'s Shared);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                lock(&self.0.queue).threads -= 1;
                self.0.ended.notify_all();
            }
        }
        let _running = Running(self);
        loop {
            let (slot, is_last) = {
                let mut queue = lock(&self.queue);
                (queue.waiting.pop_front(), queue.threads == 1)
            };
            match slot {
                Some(slot) => {
                    self.compiled(&slot);
                }
                None if is_last && self.is_unsaved.load(Ordering::Relaxed) => self.save(),
                None => return,
            }
        }
    }

    fn compiled<'s>(&self, slot: &'s Slot) -> &'s Result<Pipeline> {
        slot.pipeline.get_or_init(|| self.compile(&slot.kernel))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Pipeline> {
        self.faults.check()?;
        let started = Instant::now();
        let source = kernel.source(self.target);
        let label = kernel.name();
        let generated = Instant::now();
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let validated = Instant::now();
        let raw = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: None,
            module: &module,
            entry_point: Some("main"),
            // Every kernel writes workgroup memory before it reads it.
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.store.as_ref().map(PipelineStore::driver),
        });
        if let Some(error) = block_on(scope.pop()) {
            return Err(Error::Driver(format!("{label}: {error}")));
        }
        self.faults.check()?;
        self.sums.kernels.fetch_add(1, Ordering::Relaxed);
        add(&self.sums.source, generated - started);
        add(&self.sums.module, validated - generated);
        add(&self.sums.pipeline, validated.elapsed());
        self.is_unsaved.store(true, Ordering::Relaxed);
        Ok(Pipeline { layout: raw.get_bind_group_layout(0), raw })
    }

    fn save(&self) {
        if !self.is_unsaved.swap(false, Ordering::Relaxed) || self.faults.check().is_err() {
            return;
        }
        if let Some(Err(error)) = self.store.as_ref().map(PipelineStore::save) {
            let mut warnings = lock(&self.warnings);
            // One line is enough for a folder that cannot be written.
            if warnings.is_empty() {
                warnings.push(error);
            }
        }
    }
}

fn add(sum: &AtomicU64, time: Duration) {
    sum.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
