//! The open device: memory, pipelines, submission.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::adapter::{self, AdapterInfo, Selection};
use crate::cache::{CacheError, CacheFile, PipelineStore};
use crate::compiler::{CompileTimes, Compiler, Pipeline};
use crate::dispatch::{Dispatch, Launch, Work};
use crate::error::{Error, Result, expect_multiple};
use crate::experimental;
use crate::faults::Faults;
use crate::future::block_on;
use crate::kernel::{Kernel, Target};
use crate::memory::{Buffer, Ledger, Memory, Scratch};
use crate::tiles::Tiles;
use crate::timer::Timer;
use crate::trace::Traced;

/// Size of the staging memory of uploads, outside the budget.
const STAGING: usize = 16 << 20;

/// Feature of devices whose kernels use memory of the host.
const HOST_BUFFERS: wgpu::Features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;

/// Blocks of a memory budget.
const BLOCKS_OF_BUDGET: u64 = 128;

/// An open GPU with a memory budget and its kernels. Shareable between threads.
///
/// Background threads compile the kernels of prepared dispatches; a submission waits for those it
/// needs.
///
/// # Examples
/// ```no_run
/// use ruvllm_gpu::{Format, Gpu, Matrix, Selection};
///
/// let gpu = Gpu::open(&Selection::default(), 1 << 30)?;
/// let weights = vec![0_u8; 256 * 128]; // F16, [64 rows, 256 columns]
/// let matrix = Matrix::upload(&gpu, Format::F16, 64, 256, &weights)?;
/// let x = gpu.upload(&[1.0_f32; 256])?;
/// let y = gpu.zeroed(64 * 4)?;
/// let product = matrix.product(&gpu, &x.into(), &y, 1)?;
/// gpu.run(&[&product])?;
/// let values: Vec<f32> = gpu.download(&y)?;
/// # Ok::<(), ruvllm_gpu::Error>(())
/// ```
#[derive(Debug)]
pub struct Gpu {
    // First, so that its threads end before the device is released.
    compiler: Compiler,
    info: AdapterInfo,
    target: Target,
    device: wgpu::Device,
    queue: wgpu::Queue,
    ledger: Arc<Ledger>,
    /// Memory of the host, without a budget.
    host: Arc<Ledger>,
    faults: Arc<Faults>,
    timer: Option<Timer>,
    pub(crate) tiles: Tiles,
    scratch: Mutex<[Option<Buffer>; 2]>,
    pub(crate) trace: Mutex<Option<Vec<Traced>>>,
}

impl Gpu {
    /// Opens an adapter with a budget of `budget` bytes for all buffers, without a pipeline cache.
    ///
    /// # Errors
    /// [`Error::NoAdapter`], [`Error::UnknownAdapter`], or [`Error::Driver`] if the device cannot
    /// be opened.
    pub fn open(selection: &Selection, budget: u64) -> Result<Self> {
        Self::open_cached(selection, budget, None)
    }

    /// Opens an adapter as [`Gpu::open`] does, with compiled pipelines kept in `cache_folder`.
    ///
    /// The folder is created if absent. A folder or file that cannot be used, or an adapter without
    /// a pipeline cache, is no error ([`Gpu::take_cache_warnings`]).
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open_cached(selection: &Selection, budget: u64, cache_folder: Option<&Path>) -> Result<Self> {
        let (info, adapter) = adapter::select(&adapter::instance(), selection)?;
        Self::open_adapter(info, &adapter, budget, cache_folder)
    }

    /// Opens an adapter as [`Gpu::open`] does, with the features and limits alone that every
    /// WebGPU device has: kernels are those of a browser.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open_plain(selection: &Selection, budget: u64) -> Result<Self> {
        let (info, adapter) = adapter::select(&adapter::instance(), selection)?;
        Self::open_adapter(info.plain(), &adapter, budget, None)
    }

    fn open_adapter(
        info: AdapterInfo,
        adapter: &wgpu::Adapter,
        budget: u64,
        cache_folder: Option<&Path>,
    ) -> Result<Self> {
        let mut wanted = wgpu::Features::SHADER_F16
            | wgpu::Features::SUBGROUP
            | wgpu::Features::TIMESTAMP_QUERY
            | HOST_BUFFERS;
        if cache_folder.is_some() {
            wanted |= wgpu::Features::PIPELINE_CACHE;
        }
        let cooperative = info.matrix_side();
        if cooperative.is_some() {
            wanted |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        }
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("ruvllm"),
            required_features: adapter.features() & wanted,
            experimental_features: experimental::features(cooperative.is_some()),
            required_limits: adapter.limits(),
            memory_hints: memory_hints(budget),
            ..Default::default()
        });
        let (device, queue) = block_on(request).map_err(|e| Error::Driver(e.to_string()))?;
        let faults = Arc::new(Faults::default());
        let seen = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, text| {
            seen.set_lost(format!("{reason:?} {text}").trim());
        });
        let seen = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            seen.set(&error.to_string());
        }));
        let timer = info.timestamps.then(|| Timer::new(&device, &queue));
        let target = Target { subgroup: info.fixed_subgroup(), f16: info.f16, cooperative };
        let store = cache_folder.map(|folder| PipelineStore::open(&device, &info, folder));
        let (store, warning) = store.unwrap_or_default();
        let (tiles, fault) = Tiles::open(cache_folder, &info, target);
        let compiler = Compiler::new(&device, target, &faults, (store, warning.or(fault)));
        let scratch = Mutex::default();
        let trace = Mutex::default();
        Ok(Self {
            compiler,
            info,
            target,
            device,
            queue,
            ledger: Ledger::new(budget),
            host: Ledger::new(u64::MAX),
            faults,
            timer,
            tiles,
            scratch,
            trace,
        })
    }

    /// Description of the adapter.
    pub fn info(&self) -> &AdapterInfo {
        &self.info
    }

    /// Features that kernels are generated for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Memory budget in bytes.
    pub fn budget(&self) -> u64 {
        self.ledger.budget()
    }

    /// Bytes of the budget in use.
    pub fn used(&self) -> u64 {
        self.ledger.used()
    }

    /// Bytes of buffers in memory of the host ([`Memory::Host`]).
    pub fn host_used(&self) -> u64 {
        self.host.used()
    }

    /// Bytes that the driver has given for buffers, in blocks, staging memory of the host included;
    /// `None` if the adapter's allocator does not tell. Takes a lock and lists all buffers.
    pub fn reserved(&self) -> Option<u64> {
        self.device.generate_allocator_report().map(|report| report.total_reserved_bytes)
    }

    /// True once every call fails, after the loss of the device or another fault outside a call:
    /// open it again.
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// Number of kernels of all prepared dispatches.
    pub fn compiled(&self) -> usize {
        self.compiler.kernels().len()
    }

    /// Keys of the kernels of all prepared dispatches, by name.
    pub fn kernels(&self) -> Vec<Kernel> {
        let mut kernels = self.compiler.kernels();
        kernels.sort_by_key(Kernel::name);
        kernels
    }

    /// Times of the compilation of kernels up to now.
    pub fn compile_times(&self) -> CompileTimes {
        self.compiler.times()
    }

    /// File of the pipeline cache; `None` without one.
    pub fn cache_file(&self) -> Option<&CacheFile> {
        self.compiler.store().map(PipelineStore::file)
    }

    /// Reasons not to use the pipeline cache, at most one per opening and one per failed write
    /// since the last call.
    pub fn take_cache_warnings(&self) -> Vec<CacheError> {
        self.compiler.take_warnings()
    }

    /// Waits until the kernels of all prepared dispatches are compiled, and writes the pipeline
    /// cache. Dropping the device writes it too.
    pub fn finish_kernels(&self) {
        self.compiler.finish();
    }

    /// Releases the device; every later call fails with [`Error::DeviceLost`].
    pub fn destroy(&self) {
        // First, so that what other threads submit meanwhile fails with this error.
        self.faults.set_lost("destroyed");
        self.device.destroy();
        let _ = self.device.poll(wgpu::PollType::Poll);
    }

    /// Allocates a zeroed buffer of `len` bytes.
    ///
    /// # Errors
    /// [`Error::OverBudget`], [`Error::BufferTooLarge`], [`Error::OutOfMemory`],
    /// [`Error::DeviceLost`].
    pub fn zeroed(&self, len: u64) -> Result<Buffer> {
        self.zeroed_in(Memory::Device, len)
    }

    /// Allocates a zeroed buffer of `len` bytes in memory of the device or of the host.
    ///
    /// # Errors
    /// As [`Gpu::zeroed`]; [`Error::MissingFeature`] if kernels cannot use memory of the host.
    pub fn zeroed_in(&self, memory: Memory, len: u64) -> Result<Buffer> {
        use wgpu::BufferUsages as U;
        let storage = U::STORAGE | U::COPY_SRC | U::COPY_DST;
        match memory {
            Memory::Device => self.allocate(&self.ledger, len, storage),
            Memory::Host if self.device.features().contains(HOST_BUFFERS) => {
                // Memory that the host reads is its own; memory that it writes may be the device's.
                self.allocate(&self.host, len, storage | U::MAP_READ)
            }
            Memory::Host => {
                let adapter = self.info.name.clone();
                Err(Error::MissingFeature { adapter, feature: "buffers of kernels in memory of the host" })
            }
        }
    }

    fn allocate(&self, ledger: &Arc<Ledger>, len: u64, usage: wgpu::BufferUsages) -> Result<Buffer> {
        self.check()?;
        let size = Buffer::padded(len);
        if size > self.info.max_binding {
            return Err(Error::BufferTooLarge { bytes: size, limit: self.info.max_binding });
        }
        let claim = ledger.claim(size)?;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let raw = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        });
        if block_on(scope.pop()).is_some() {
            return Err(Error::OutOfMemory { bytes: size });
        }
        self.check()?;
        Ok(Buffer::new(raw, len, claim))
    }

    /// Allocates a buffer with the bytes of `values`.
    ///
    /// Staging memory of at most 16 MiB is outside the budget.
    ///
    /// # Errors
    /// See [`Gpu::zeroed`].
    pub fn upload<T: bytemuck::NoUninit>(&self, values: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = self.zeroed(bytes.len() as u64)?;
        self.write(&buffer, values)?;
        Ok(buffer)
    }

    /// Overwrites the first bytes of `buffer` with `values`, ordered before later dispatches.
    ///
    /// # Errors
    /// [`Error::Shape`] when the buffer is shorter, [`Error::DeviceLost`], [`Error::Driver`].
    pub fn write<T: bytemuck::NoUninit>(&self, buffer: &Buffer, values: &[T]) -> Result<()> {
        self.write_at(buffer, 0, bytemuck::cast_slice(values))
    }

    /// Writes `bytes` from `start` on, a multiple of 4.
    pub(crate) fn write_at(&self, buffer: &Buffer, start: u64, bytes: &[u8]) -> Result<()> {
        if start + bytes.len() as u64 > buffer.len() {
            let expected = format!("at most {} bytes", buffer.len() - start.min(buffer.len()));
            return Err(Error::Shape { what: "write", expected, found: bytes.len() as u64 });
        }
        for (index, piece) in bytes.chunks(STAGING).enumerate() {
            let (whole, rest) = piece.split_at(piece.len() / 4 * 4);
            let offset = start + (index * STAGING) as u64;
            if !whole.is_empty() {
                self.queue.write_buffer(buffer.raw(), offset, whole);
            }
            if !rest.is_empty() {
                let mut last = [0; 4];
                last[..rest.len()].copy_from_slice(rest);
                self.queue.write_buffer(buffer.raw(), offset + whole.len() as u64, &last);
            }
            // Ends the life of the staging memory before the next piece.
            if piece.len() >= STAGING / 2 {
                self.queue.submit([]);
                self.wait()?;
            }
        }
        self.check()
    }

    /// Fills `buffer` with repetitions of `values`, whole words of 4 bytes.
    ///
    /// # Errors
    /// See [`Gpu::write`].
    pub fn fill<T: bytemuck::NoUninit>(&self, buffer: &Buffer, values: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        expect_multiple("bytes to repeat", 4, bytes.len() as u64)?;
        let mut start = 0;
        while start < buffer.len() {
            let n = (buffer.len() - start).min(bytes.len() as u64);
            self.write_at(buffer, start, &bytes[..n as usize])?;
            start += n;
        }
        Ok(())
    }

    /// Reads the values of a buffer, after all earlier dispatches.
    ///
    /// # Errors
    /// [`Error::Shape`] if the size is not a multiple of a value's, [`Error::OverBudget`] if the
    /// budget does not cover a copy, [`Error::DeviceLost`], [`Error::Driver`].
    pub fn download<T: bytemuck::Pod>(&self, buffer: &Buffer) -> Result<Vec<T>> {
        if !buffer.len().is_multiple_of(size_of::<T>() as u64) {
            let expected = format!("a multiple of {} bytes", size_of::<T>());
            return Err(Error::Shape { what: "download", expected, found: buffer.len() });
        }
        let reading = self.run_reading(&[], buffer, self.readback(buffer.len())?)?;
        Ok(self.finish(reading)?.0)
    }

    /// Allocates a buffer that the host can map for reading.
    pub(crate) fn host_visible(&self, len: u64) -> Result<Buffer> {
        use wgpu::BufferUsages as U;
        self.allocate(&self.ledger, len, U::MAP_READ | U::COPY_DST)
    }

    /// Copies a buffer on the device, after all earlier dispatches.
    pub(crate) fn duplicate(&self, buffer: &Buffer) -> Result<Buffer> {
        let copy = self.zeroed(buffer.len())?;
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(buffer.raw(), 0, copy.raw(), 0, Buffer::padded(buffer.len()));
        self.queue.submit([encoder.finish()]);
        self.check()?;
        Ok(copy)
    }

    /// Memory of at least `len` bytes that all dispatches share: valid from a launch to the next
    /// one of the same dispatch.
    pub(crate) fn scratch(&self, of: Scratch, len: u64) -> Result<Buffer> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = &mut scratch[of as usize];
        if let Some(buffer) = scratch.as_ref().filter(|buffer| buffer.len() >= len) {
            return Ok(buffer.clone());
        }
        // Dispatches that were prepared with the former one keep it; without any its room is free.
        scratch.take();
        let buffer = self.zeroed(len.next_power_of_two())?;
        *scratch = Some(buffer.clone());
        Ok(buffer)
    }

    fn map(&self, raw: &wgpu::Buffer) -> Result<Vec<u8>> {
        let done = Arc::new(OnceLock::new());
        let result = Arc::clone(&done);
        raw.map_async(wgpu::MapMode::Read, .., move |r| {
            let _ = result.set(r);
        });
        self.wait()?;
        match done.get() {
            Some(Ok(())) => (),
            Some(Err(e)) => return Err(Error::Driver(e.to_string())),
            None => return Err(Error::Driver("a buffer was not mapped".to_owned())),
        }
        let view = raw.get_mapped_range(..).map_err(|e| Error::Driver(e.to_string()))?;
        let bytes = view.to_vec();
        drop(view);
        raw.unmap();
        Ok(bytes)
    }

    /// Submits dispatches in order and returns before they complete.
    ///
    /// Each dispatch sees the results of those before it.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub fn run(&self, dispatches: &[&Dispatch]) -> Result<()> {
        if self.is_traced() {
            return self.run_traced(dispatches);
        }
        self.submit(dispatches, None).map(|_| ())
    }

    /// Submits dispatches and a copy of a buffer's bytes from a position on, which fill another.
    pub(crate) fn submit(
        &self,
        dispatches: &[&Dispatch],
        copy: Option<(&Buffer, u64, &Buffer)>,
    ) -> Result<wgpu::SubmissionIndex> {
        let commands = self.encode(dispatches, copy)?;
        self.submit_encoded(commands)
    }

    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Records dispatches and a copy of the bytes of a buffer from a position on, as
    /// [`Gpu::submit`] submits them.
    pub(crate) fn encode(
        &self,
        dispatches: &[&Dispatch],
        copy: Option<(&Buffer, u64, &Buffer)>,
    ) -> Result<wgpu::CommandBuffer> {
        self.check()?;
        let mut encoder = self.encoder();
        self.record(&mut encoder, &works(dispatches), None)?;
        if let Some((from, first, to)) = copy {
            let bytes = to.len().next_multiple_of(4);
            encoder.copy_buffer_to_buffer(from.raw(), first, to.raw(), 0, bytes);
        }
        Ok(encoder.finish())
    }

    pub(crate) fn submit_encoded(&self, commands: wgpu::CommandBuffer) -> Result<wgpu::SubmissionIndex> {
        self.check()?;
        let submission = self.queue.submit([commands]);
        self.check()?;
        Ok(submission)
    }

    /// Runs kernels and returns their device time in seconds; with copies between them, that of the
    /// kernels before the first.
    ///
    /// # Errors
    /// [`Error::MissingFeature`] without timestamps, [`Error::DeviceLost`], [`Error::Driver`].
    pub fn time(&self, dispatches: &[&Dispatch]) -> Result<f64> {
        self.check()?;
        let Some(timer) = &self.timer else {
            let adapter = self.info.name.clone();
            return Err(Error::MissingFeature { adapter, feature: "timestamp queries" });
        };
        let mut encoder = self.encoder();
        self.record(&mut encoder, &works(dispatches), Some(timer.writes()))?;
        timer.resolve(&mut encoder);
        self.queue.submit([encoder.finish()]);
        Ok(timer.seconds(&self.map(&timer.readable)?))
    }

    /// Waits for all submitted work.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub fn wait(&self) -> Result<()> {
        self.wait_for(None)
    }

    /// Waits for a submission, or for the latest one.
    pub(crate) fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let polled = self.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        self.check()?;
        polled.map(|_| ()).map_err(|e| Error::Driver(e.to_string()))
    }

    /// Prepares a dispatch of `kernel` over `groups` workgroups; `buffers` in binding order.
    pub(crate) fn prepare(
        &self,
        kernel: &Kernel,
        buffers: Vec<Buffer>,
        groups: (u32, u32),
    ) -> Result<Dispatch> {
        let aliased = |(i, a): (usize, &Buffer)| buffers[..i].iter().any(|b| a.is_same(b));
        if buffers.iter().enumerate().any(aliased) {
            return Err(Error::Aliased { kernel: kernel.name() });
        }
        self.check()?;
        kernel.check(&self.info)?;
        let slot = self.compiler.request(kernel);
        let launch = Launch { slot, bindings: OnceLock::new(), groups, buffers };
        Ok(Dispatch { work: Work::Kernel(launch), before: Vec::new() })
    }

    /// Pipeline and bindings of a launch; compiles and binds it at its first use.
    fn ready<'d>(&self, launch: &'d Launch) -> Result<(&'d Pipeline, &'d wgpu::BindGroup)> {
        let pipeline = self.compiler.pipeline(&launch.slot)?;
        let bind = || {
            let entry = |(binding, buffer)| {
                let resource = Buffer::raw(buffer).as_entire_binding();
                wgpu::BindGroupEntry { binding, resource }
            };
            let entries: Vec<_> = (0..).zip(&launch.buffers).map(entry).collect();
            self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &pipeline.layout,
                entries: &entries,
            })
        };
        Ok((pipeline, launch.bindings.get_or_init(bind)))
    }

    pub(crate) fn record(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        works: &[&Work],
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) -> Result<()> {
        self.compiler.prefer(works.iter().filter_map(|work| Some(&work.launch()?.slot)));
        let mut timestamps = timestamp_writes;
        for run in works.chunk_by(|a, b| a.launch().is_some() == b.launch().is_some()) {
            if let Some(Work::Copy { .. }) = run.first() {
                copy(encoder, run);
                continue;
            }
            let timestamp_writes = timestamps.take();
            let mut pass =
                encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
            for launch in run.iter().filter_map(|work| work.launch()) {
                let (pipeline, bindings) = self.ready(launch)?;
                pass.set_pipeline(&pipeline.raw);
                pass.set_bind_group(0, bindings, &[]);
                pass.dispatch_workgroups(launch.groups.0, launch.groups.1, 1);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.faults.check()
    }
}

/// The work of dispatches in order.
fn works<'d>(dispatches: &[&'d Dispatch]) -> Vec<&'d Work> {
    dispatches.iter().flat_map(|dispatch| dispatch.works()).collect()
}

/// Records copies between buffers.
fn copy(encoder: &mut wgpu::CommandEncoder, works: &[&Work]) {
    for work in works {
        if let Work::Copy { from, to } = work {
            encoder.copy_buffer_to_buffer(from.raw(), 0, to.raw(), 0, Buffer::padded(from.len()));
        }
    }
}

/// Blocks that memory is taken from the driver in: small beside a budget, so that memory that no
/// buffer uses stays below about 1 % of it. Buffers larger than a block have memory of their own.
fn memory_hints(budget: u64) -> wgpu::MemoryHints {
    const LEAST: u64 = 4 << 20;
    const MOST: u64 = 256 << 20;
    if budget / BLOCKS_OF_BUDGET >= MOST {
        return wgpu::MemoryHints::Performance;
    }
    let block = (budget / BLOCKS_OF_BUDGET).max(LEAST);
    wgpu::MemoryHints::Manual { suballocated_device_memory_block_size: block..block }
}
