//! Calls of one instance.

use super::code::ReturnCode;
use super::fault::Fault;
use super::guest::Guest;
use super::interface::{Machine, PAGE};
use super::layout::{Binding, DESCRIPTOR, Direction, aligned, check_area};
use super::names::{BACKWARD, REQUESTS};

/// Ticks of `kernel_cleanup`.
const CLEANUP_TICKS: u32 = 10;

/// Instance with its own memory and tables.
pub(super) struct Instance {
    pub(super) machine: Box<dyn Machine>,
    pub(super) region: Region,
    /// Bytes of memory that are allowed.
    pub(super) memory_bytes: u64,
    /// Tenant whose data the memory may have; `None` before the first call.
    pub(super) tenant: Option<u64>,
}

/// Part of the memory in which requests are laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Region {
    /// Offset of its begin.
    pub(super) base: u64,
    /// End of the memory when the host grew it last.
    pub(super) end: u64,
    /// True if everything behind the begin is the host's: the module exports `__heap_base`.
    pub(super) is_of_host: bool,
}

impl Instance {
    /// One call: lays the requests out, has `write` fill the inputs, calls the kernel (its
    /// forward function is `entry_point`), and has `read` take the outputs.
    ///
    /// # Errors
    /// [`Fault::Room`], [`Fault::Trap`], [`Fault::Code`], and the faults of `write` and `read`.
    pub(super) fn call<R>(
        &mut self,
        entry_point: &str,
        bindings: &[&Binding],
        write: impl FnOnce(&mut Guest<'_>) -> Result<(), Fault>,
        read: impl FnOnce(&Guest<'_>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let direction = bindings.first().map_or(Direction::Forward, |binding| binding.direction);
        let descriptors = aligned(DESCRIPTOR * bindings.len() as u64);
        let requests = bindings.iter().map(|binding| binding.bytes).sum::<u64>();
        let at = self.make_room(descriptors.saturating_add(requests))?;
        let memory = self.machine.memory();
        write_descriptors(memory, at, at + descriptors, bindings)?;
        let mut guest = Guest { memory, base: at + descriptors, bindings };
        guest.write_parameters()?;
        write(&mut guest)?;
        let code = self.machine.compute(direction, at as u32, bindings.len() as u32)?;
        let name = || match direction {
            Direction::Forward => entry_point.to_owned(),
            Direction::Backward => BACKWARD.to_owned(),
        };
        ReturnCode::check(code).map_err(|code| Fault::Code { export: name(), code })?;
        read(&Guest { memory: self.machine.memory(), base: at + descriptors, bindings })
    }

    /// Offset of a part of the memory with `bytes` bytes for requests, which may have grown.
    fn make_room(&mut self, bytes: u64) -> Result<u64, Fault> {
        let most = self.memory_bytes;
        let size = self.machine.memory().len() as u64;
        let region = &mut self.region;
        // The kernel has taken memory behind the region since.
        if !region.is_of_host && size != region.end && region.base.saturating_add(bytes) > region.end {
            region.base = size;
            region.end = size;
        }
        let need = region.base.saturating_add(bytes);
        if need > most {
            return Err(Fault::Room { need, most });
        }
        if need > size {
            let pages = (need - size).div_ceil(PAGE);
            if !self.machine.grow(pages) {
                // The module's own maximum.
                return Err(Fault::Room { need, most: size });
            }
            self.region.end = self.machine.memory().len() as u64;
        }
        Ok(self.region.base)
    }

    /// Calls `kernel_cleanup`, with little time. Its outcome means nothing: the instance is closed.
    pub(super) fn close(mut self) {
        self.machine.cleanup(CLEANUP_TICKS);
    }
}

/// Writes the descriptors of requests that begin at `base`, each checked against the memory.
fn write_descriptors(memory: &mut [u8], at: u64, base: u64, bindings: &[&Binding]) -> Result<(), Fault> {
    let size = memory.len() as u64;
    let (mut to, mut request) = (at, base);
    for binding in bindings {
        check_area(REQUESTS, to, DESCRIPTOR, size)?;
        let descriptor = binding.descriptor(request, size)?.to_bytes();
        memory[to as usize..to as usize + descriptor.len()].copy_from_slice(&descriptor);
        to += DESCRIPTOR;
        request += binding.bytes;
    }
    Ok(())
}
