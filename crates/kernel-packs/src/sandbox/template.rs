//! Modules that were checked, and the making of their instances.

use super::code::ReturnCode;
use super::fault::Fault;
use super::instance::{Instance, Region};
use super::interface::{Code, Factory, PAGE};
use super::layout::{aligned, check_area};
use super::module;
use super::names::{BACKWARD, INFO, INIT};
use crate::manifest::{Kernel, ResourceLimits};

/// Version of the interface, in the record of `kernel_info`.
const ABI_VERSION: u32 = 1;
/// Bytes of the record of `kernel_info`: version, bytes of scratch, and two zeros.
const INFO_BYTES: u64 = 16;

/// Module that was checked, with everything that its instances need.
pub(super) struct Template {
    factory: Box<dyn Factory>,
    /// Bytes of memory that an instance may have.
    memory_bytes: u64,
    backward: bool,
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
    /// As [`module::check`].
    pub(super) fn new(code: &dyn Code, kernel: &Kernel, limits: ResourceLimits) -> Result<Self, Fault> {
        module::check(code, kernel, &limits)?;
        let factory = code.factory(kernel, limits)?;
        let memory_bytes = u64::from(limits.memory_pages) * PAGE;
        Ok(Self { factory, memory_bytes, backward: code.export(BACKWARD).is_some() })
    }

    /// Makes an instance: start function, then `kernel_init`, under the budget of one call.
    ///
    /// # Errors
    /// [`Fault::Trap`], [`Fault::Code`], [`Fault::NoInstance`].
    pub(super) fn instantiate(&self) -> Result<Instance, Fault> {
        let mut machine = self.factory.instance()?;
        if let Some(code) = machine.init()? {
            let failed = |code| Fault::Code { export: INIT.to_owned(), code };
            ReturnCode::check(code).map_err(failed)?;
        }
        let base = machine.heap_base().map(|base| aligned(u64::from(base)));
        let end = machine.memory().len() as u64;
        let region = Region { base: base.unwrap_or(end), end, is_of_host: base.is_some() };
        Ok(Instance { machine, region, memory_bytes: self.memory_bytes, tenant: None })
    }

    /// Makes an instance and asks it for its needs.
    ///
    /// # Errors
    /// As [`instantiate`](Self::instantiate); [`Fault::Area`] and [`Fault::Argument`] for a record
    /// that is not in the memory or of another version.
    pub(super) fn first_instance(&self) -> Result<(Instance, Needs), Fault> {
        let mut instance = self.instantiate()?;
        let mut needs = Needs { scratch: 0, backward: self.backward };
        let Some(offset) = instance.machine.info()? else {
            return Ok((instance, needs));
        };
        let offset = u64::from(offset.cast_unsigned());
        let memory = instance.machine.memory();
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
}
