//! Modules that were checked, and the making of their instances.

use wasmtime::{
    Extern, InstancePre, Linker, Module, ModuleExport, Store, TypedFunc, Val, WasmParams, WasmResults,
};

use super::code::ReturnCode;
use super::fault::Fault;
use super::instance::{Instance, Region, set_budget};
use super::layout::{aligned, check_area};
use super::limiter::Limiter;
use super::module::Exports;
use super::names::{BACKWARD, CLEANUP, HEAP_BASE, INFO, INIT, MEMORY};
use crate::manifest::{Kernel, ResourceLimits};

/// Version of the interface, in the record of `kernel_info`.
const ABI_VERSION: u32 = 1;
/// Bytes of the record of `kernel_info`: version, bytes of scratch, and two zeros.
const INFO_BYTES: u64 = 16;

/// Module that was checked, with everything that its instances need.
pub(super) struct Template {
    pre: InstancePre<Limiter>,
    exports: Exports,
    limits: ResourceLimits,
    entry_point: String,
}

/// Needs of a kernel beside its tensors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Needs {
    /// Bytes of scratch of each request.
    pub(super) scratch: u64,
    /// True if there is a gradient.
    pub(super) backward: bool,
}

impl Template {
    /// Checks a module.
    ///
    /// # Errors
    /// As [`Exports::of`].
    pub(super) fn new(module: &Module, kernel: &Kernel) -> Result<Self, Fault> {
        let exports = Exports::of(module, kernel)?;
        let pre = Linker::new(module.engine()).instantiate_pre(module);
        let pre = pre.map_err(|error| Fault::Malformed { why: error.root_cause().to_string() })?;
        Ok(Self { pre, exports, limits: kernel.limits, entry_point: kernel.entry_point.clone() })
    }

    /// Makes an instance: start function, then `kernel_init`, under the budget of one call.
    ///
    /// # Errors
    /// [`Fault::Trap`], [`Fault::Code`], [`Fault::NoInstance`].
    pub(super) fn instantiate(&self) -> Result<Instance, Fault> {
        let mut store = Store::new(self.pre.module().engine(), Limiter::new(&self.limits));
        store.limiter(|limiter| limiter);
        store.epoch_deadline_trap();
        set_budget(&mut store, self.limits.epoch_ticks);
        let instance = self.pre.instantiate(&mut store).map_err(|error| self.failed(&error))?;
        let exports = &self.exports;
        let Some(Extern::Memory(memory)) = instance.get_module_export(&mut store, &exports.memory) else {
            return Err(Fault::MissingExport { name: MEMORY.to_owned() });
        };
        let forward = function(&mut store, &instance, Some(&exports.forward), &self.entry_point)?;
        let Some(forward) = forward else {
            return Err(Fault::MissingExport { name: self.entry_point.clone() });
        };
        let backward = function(&mut store, &instance, exports.backward.as_ref(), BACKWARD)?;
        let cleanup = function(&mut store, &instance, exports.cleanup.as_ref(), CLEANUP)?;
        let init = function::<(), i32>(&mut store, &instance, exports.init.as_ref(), INIT)?;
        if let Some(init) = init {
            let code =
                init.call(&mut store, ()).map_err(|error| Fault::trapped(&error, self.limits.epoch_ticks))?;
            let failed = |code| Fault::Code { export: INIT.to_owned(), code };
            ReturnCode::check(code).map_err(failed)?;
        }
        let heap_base = exports.heap_base.as_ref();
        let heap_base = heap_base.and_then(|export| instance.get_module_export(&mut store, export));
        let base = match heap_base {
            Some(Extern::Global(global)) => match global.get(&mut store) {
                Val::I32(base) => Some(aligned(u64::from(base.cast_unsigned()))),
                _ => return Err(Fault::ExportType { name: HEAP_BASE.to_owned(), expected: "an i32" }),
            },
            _ => None,
        };
        let end = memory.data_size(&store) as u64;
        let ticks = self.limits.epoch_ticks;
        let region = Region { base: base.unwrap_or(end), end, is_of_host: base.is_some() };
        Ok(Instance {
            store,
            memory,
            forward,
            backward,
            cleanup,
            region,
            handle: instance,
            ticks,
            tenant: None,
        })
    }

    /// Makes an instance and asks it for its needs.
    ///
    /// # Errors
    /// As [`instantiate`](Self::instantiate); [`Fault::Area`] and [`Fault::Argument`] for a record
    /// that is not in the memory or of another version.
    pub(super) fn first_instance(&self) -> Result<(Instance, Needs), Fault> {
        let mut instance = self.instantiate()?;
        let mut needs = Needs { scratch: 0, backward: instance.backward.is_some() };
        let (store, handle) = (&mut instance.store, &instance.handle);
        let Some(info) = function::<(), i32>(store, handle, self.exports.info.as_ref(), INFO)? else {
            return Ok((instance, needs));
        };
        set_budget(store, self.limits.epoch_ticks);
        let offset =
            info.call(&mut *store, ()).map_err(|error| Fault::trapped(&error, self.limits.epoch_ticks))?;
        let offset = u64::from(offset.cast_unsigned());
        let memory = instance.memory.data(&*store);
        check_area(INFO, offset, INFO_BYTES, memory.len() as u64)?;
        let word = |index: usize| {
            let at = offset as usize + 4 * index;
            memory.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        if word(0) != ABI_VERSION {
            let why = format!("the interface has version {}, this program knows {ABI_VERSION}", word(0));
            return Err(Fault::argument(INFO, why));
        }
        needs.scratch = u64::from(word(1));
        Ok((instance, needs))
    }

    /// Fault of an instance that could not be made: of the machine, or of the start function.
    fn failed(&self, error: &wasmtime::Error) -> Fault {
        if error.is::<wasmtime::PoolConcurrencyLimitError>() || error.is::<std::io::Error>() {
            return Fault::NoInstance { why: error.root_cause().to_string() };
        }
        Fault::trapped(error, self.limits.epoch_ticks)
    }
}

/// Exported function, if the module has it.
fn function<P: WasmParams, R: WasmResults>(
    store: &mut Store<Limiter>,
    instance: &wasmtime::Instance,
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
