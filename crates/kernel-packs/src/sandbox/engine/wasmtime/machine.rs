//! Instances of wasmtime.

use wasmtime::{
    Extern, Instance, InstancePre, Linker, Memory, Module, ModuleExport, ResourceLimiter, Store, TypedFunc,
    Val, WasmParams, WasmResults,
};

use super::trap::trapped;
use crate::manifest::{Kernel, ResourceLimits};
use crate::sandbox::fault::Fault;
use crate::sandbox::interface::{Factory, MAX_TABLES, Machine};
use crate::sandbox::layout::Direction;
use crate::sandbox::limiter::Limiter;
use crate::sandbox::names::{BACKWARD, CLEANUP, HEAP_BASE, INFO, INIT, MEMORY};

/// Entry point: offset and number of descriptors, return code.
type Entry = TypedFunc<(i32, i32), i32>;

/// Maker of instances of a checked module.
pub(super) struct Maker {
    pre: InstancePre<Limiter>,
    exports: Exports,
    limits: ResourceLimits,
    entry_point: String,
}

/// Exports that the interface has, by their index in the module.
struct Exports {
    memory: ModuleExport,
    forward: ModuleExport,
    heap_base: Option<ModuleExport>,
    init: Option<ModuleExport>,
    info: Option<ModuleExport>,
    backward: Option<ModuleExport>,
    cleanup: Option<ModuleExport>,
}

impl Maker {
    /// Resolves the exports of a module.
    ///
    /// # Errors
    /// [`Fault::MissingExport`], [`Fault::Malformed`].
    pub(super) fn new(module: &Module, kernel: &Kernel, limits: ResourceLimits) -> Result<Self, Fault> {
        let optional = |name: &str| module.get_export_index(name);
        let index = |name: &str| optional(name).ok_or_else(|| Fault::missing(name));
        let exports = Exports {
            memory: index(MEMORY)?,
            forward: index(&kernel.entry_point)?,
            heap_base: optional(HEAP_BASE),
            init: optional(INIT),
            info: optional(INFO),
            backward: optional(BACKWARD),
            cleanup: optional(CLEANUP),
        };
        let pre = Linker::new(module.engine()).instantiate_pre(module);
        let pre = pre.map_err(|error| Fault::Malformed { why: error.root_cause().to_string() })?;
        Ok(Self { pre, exports, limits, entry_point: kernel.entry_point.clone() })
    }

    /// Fault of an instance that could not be made: of the machine, or of the start function.
    fn failed(&self, error: &wasmtime::Error) -> Fault {
        if error.is::<wasmtime::PoolConcurrencyLimitError>() || error.is::<std::io::Error>() {
            return Fault::NoInstance { why: error.root_cause().to_string() };
        }
        trapped(error, self.limits.epoch_ticks)
    }
}

impl Factory for Maker {
    fn instance(&self) -> Result<Box<dyn Machine>, Fault> {
        let mut store = Store::new(self.pre.module().engine(), Limiter::new(&self.limits));
        store.limiter(|limiter| limiter);
        store.epoch_deadline_trap();
        set_budget(&mut store, self.limits.epoch_ticks);
        let instance = self.pre.instantiate(&mut store).map_err(|error| self.failed(&error))?;
        let exports = &self.exports;
        let Some(Extern::Memory(memory)) = instance.get_module_export(&mut store, &exports.memory) else {
            return Err(Fault::missing(MEMORY));
        };
        let forward = function(&mut store, &instance, Some(&exports.forward), &self.entry_point)?;
        let forward = forward.ok_or_else(|| Fault::missing(&self.entry_point))?;
        let backward = function(&mut store, &instance, exports.backward.as_ref(), BACKWARD)?;
        let init = function(&mut store, &instance, exports.init.as_ref(), INIT)?;
        let info = function(&mut store, &instance, exports.info.as_ref(), INFO)?;
        let cleanup = function(&mut store, &instance, exports.cleanup.as_ref(), CLEANUP)?;
        let heap_base = exports.heap_base.as_ref();
        let heap_base = heap_base.and_then(|export| instance.get_module_export(&mut store, export));
        let heap_base = match heap_base {
            Some(Extern::Global(global)) => match global.get(&mut store) {
                Val::I32(base) => Some(base.cast_unsigned()),
                _ => return Err(Fault::ExportType { name: HEAP_BASE.to_owned(), expected: "an i32" }),
            },
            _ => None,
        };
        let ticks = self.limits.epoch_ticks;
        Ok(Box::new(Compiled { store, memory, forward, backward, init, info, cleanup, heap_base, ticks }))
    }
}

/// Instance with its own store.
struct Compiled {
    store: Store<Limiter>,
    memory: Memory,
    forward: Entry,
    backward: Option<Entry>,
    init: Option<TypedFunc<(), i32>>,
    info: Option<TypedFunc<(), i32>>,
    cleanup: Option<TypedFunc<(), ()>>,
    heap_base: Option<u32>,
    /// Ticks of a call.
    ticks: u32,
}

impl Machine for Compiled {
    fn memory(&mut self) -> &mut [u8] {
        self.memory.data_mut(&mut self.store)
    }

    fn grow(&mut self, pages: u64) -> bool {
        self.memory.grow(&mut self.store, pages).is_ok()
    }

    fn heap_base(&self) -> Option<u32> {
        self.heap_base
    }

    fn compute(&mut self, direction: Direction, descriptors: u32, count: u32) -> Result<i32, Fault> {
        let entry = match (direction, &self.backward) {
            (Direction::Forward, _) => &self.forward,
            (Direction::Backward, Some(backward)) => backward,
            (Direction::Backward, None) => return Err(Fault::missing(BACKWARD)),
        };
        set_budget(&mut self.store, self.ticks);
        let arguments = (descriptors.cast_signed(), count.cast_signed());
        entry.call(&mut self.store, arguments).map_err(|error| trapped(&error, self.ticks))
    }

    fn init(&mut self) -> Result<Option<i32>, Fault> {
        let Some(init) = &self.init else { return Ok(None) };
        let code = init.call(&mut self.store, ());
        code.map(Some).map_err(|error| trapped(&error, self.ticks))
    }

    fn info(&mut self) -> Result<Option<i32>, Fault> {
        let Some(info) = &self.info else { return Ok(None) };
        set_budget(&mut self.store, self.ticks);
        let offset = info.call(&mut self.store, ());
        offset.map(Some).map_err(|error| trapped(&error, self.ticks))
    }

    fn cleanup(&mut self, ticks: u32) {
        if let Some(cleanup) = &self.cleanup {
            set_budget(&mut self.store, ticks);
            let _ = cleanup.call(&mut self.store, ());
        }
    }
}

/// Gives the next call its time. The epoch that has begun does not count.
fn set_budget(store: &mut Store<Limiter>, ticks: u32) {
    store.set_epoch_deadline(u64::from(ticks) + 1);
}

/// Exported function, if the module has it.
fn function<P: WasmParams, R: WasmResults>(
    store: &mut Store<Limiter>,
    instance: &Instance,
    export: Option<&ModuleExport>,
    name: &str,
) -> Result<Option<TypedFunc<P, R>>, Fault> {
    let Some(export) = export else { return Ok(None) };
    let wrong = || Fault::ExportType { name: name.to_owned(), expected: "a function of the interface" };
    match instance.get_module_export(&mut *store, export) {
        Some(Extern::Func(function)) => function.typed(&*store).map(Some).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.grow_memory(desired)?;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.grow_table(current, desired)?;
        Ok(true)
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }
}
