//! Instances of wasmi, and their budgets.
//!
//! The interpreter counts fuel: about one unit per instruction, and one per 64 bytes that an
//! instruction copies. A call gets fuel in slices; where one is used up, it is stopped, the time is
//! compared with the deadline, and it goes on where it was. A start function cannot be resumed: it
//! has an amount of fuel per tick.

use std::time::{Duration, Instant};

use wasmi::{
    Extern, Instance, Memory, Module, Store, TypedFunc, TypedResumableCall, Val, WasmParams, WasmResults,
};

use super::trap::{failed, trap_of};
use super::watch::Watch;
use crate::manifest::{Kernel, ResourceLimits};
use crate::sandbox::fault::Fault;
use crate::sandbox::interface::{Factory, Machine};
use crate::sandbox::layout::Direction;
use crate::sandbox::names::{BACKWARD, CLEANUP, HEAP_BASE, INFO, INIT, MEMORY};
use crate::sandbox::trap::Trap;

/// Length of a tick: budgets of manifests count these.
const TICK: Duration = Duration::from_millis(10);
/// Fuel between two looks at the time: below a millisecond where the interpreter is optimized.
pub(super) const SLICE: u64 = 100_000;
/// Fuel of a start function per tick.
const START: u64 = 1_000_000;

/// Entry point: offset and number of descriptors, return code.
type Entry = TypedFunc<(i32, i32), i32>;

/// Maker of instances of a checked module.
pub(super) struct Maker {
    module: Module,
    limits: ResourceLimits,
    entry_point: String,
    slice: u64,
}

impl Maker {
    /// Maker for a kernel whose calls look at the time after `slice` of fuel.
    pub(super) fn new(module: Module, kernel: &Kernel, limits: ResourceLimits, slice: u64) -> Self {
        Self { module, limits, entry_point: kernel.entry_point.clone(), slice }
    }
}

impl Factory for Maker {
    fn instance(&self) -> Result<Box<dyn Machine>, Fault> {
        let ticks = self.limits.epoch_ticks;
        let mut store = Store::new(self.module.engine(), Watch::new(&self.limits));
        store.limiter(|watch| watch);
        let deadline = deadline(ticks);
        set_fuel(&mut store, START * u64::from(ticks))?;
        let made = Instance::new(&mut store, &self.module, &[]);
        let instance = made.map_err(|error| failed(&error, store.data(), ticks))?;
        let memory = instance.get_memory(&store, MEMORY).ok_or_else(|| Fault::missing(MEMORY))?;
        let forward = function(&store, instance, &self.entry_point)?;
        let heap_base = match instance.get_global(&store, HEAP_BASE).map(|global| global.get(&store)) {
            Some(Val::I32(base)) => Some(base.cast_unsigned()),
            _ => None,
        };
        Ok(Box::new(Interpreted {
            memory,
            forward: forward.ok_or_else(|| Fault::missing(&self.entry_point))?,
            backward: function(&store, instance, BACKWARD)?,
            init: function(&store, instance, INIT)?,
            info: function(&store, instance, INFO)?,
            cleanup: function(&store, instance, CLEANUP)?,
            heap_base,
            budget: Budget { ticks, deadline, slice: self.slice },
            store,
        }))
    }
}

/// Exported function, if the module has it.
fn function<P: WasmParams, R: WasmResults>(
    store: &Store<Watch>,
    instance: Instance,
    name: &str,
) -> Result<Option<TypedFunc<P, R>>, Fault> {
    let wrong = || Fault::ExportType { name: name.to_owned(), expected: "a function of the interface" };
    match instance.get_export(store, name) {
        None => Ok(None),
        Some(Extern::Func(function)) => function.typed(store).map(Some).map_err(|_| wrong()),
        Some(_) => Err(wrong()),
    }
}

/// Instance with its own store.
struct Interpreted {
    store: Store<Watch>,
    memory: Memory,
    forward: Entry,
    backward: Option<Entry>,
    init: Option<TypedFunc<(), i32>>,
    info: Option<TypedFunc<(), i32>>,
    cleanup: Option<TypedFunc<(), ()>>,
    heap_base: Option<u32>,
    /// Budget of a call.
    budget: Budget,
}

impl Machine for Interpreted {
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
        let entry = match direction {
            Direction::Forward => self.forward,
            Direction::Backward => self.backward.ok_or_else(|| Fault::missing(BACKWARD))?,
        };
        let arguments = (descriptors.cast_signed(), count.cast_signed());
        self.budget.renewed().run(&mut self.store, entry, arguments)
    }

    fn init(&mut self) -> Result<Option<i32>, Fault> {
        self.init.map(|init| self.budget.run(&mut self.store, init, ())).transpose()
    }

    fn info(&mut self) -> Result<Option<i32>, Fault> {
        self.info.map(|info| self.budget.renewed().run(&mut self.store, info, ())).transpose()
    }

    fn cleanup(&mut self, ticks: u32) {
        if let Some(cleanup) = self.cleanup {
            let budget = Budget { ticks, ..self.budget };
            let _ = budget.renewed().run(&mut self.store, cleanup, ());
        }
    }
}

/// Time of a call, and fuel between two looks at it.
#[derive(Debug, Clone, Copy)]
struct Budget {
    ticks: u32,
    deadline: Instant,
    slice: u64,
}

impl Budget {
    /// The budget, beginning now.
    fn renewed(self) -> Self {
        Self { deadline: deadline(self.ticks), ..self }
    }

    /// Calls a function until it returns, traps or reaches the deadline.
    ///
    /// # Errors
    /// [`Fault::Trap`].
    fn run<P: WasmParams, R: WasmResults>(
        self,
        store: &mut Store<Watch>,
        function: TypedFunc<P, R>,
        parameters: P,
    ) -> Result<R, Fault> {
        set_fuel(store, self.slice)?;
        let mut call = function.call_resumable(&mut *store, parameters);
        loop {
            let rest = match call {
                Ok(TypedResumableCall::Finished(results)) => return Ok(results),
                Ok(TypedResumableCall::OutOfFuel(rest)) => rest,
                // Of functions of the host, which nothing can import.
                Ok(TypedResumableCall::HostTrap(trap)) => return Err(other(trap.host_error())),
                Err(error) => return Err(Fault::Trap(trap_of(&error, store.data(), self.ticks))),
            };
            if Instant::now() >= self.deadline {
                return Err(Fault::Trap(Trap::Deadline { ticks: self.ticks }));
            }
            // One instruction may copy more than a slice pays for: all of the memory at most.
            set_fuel(store, self.slice.max(rest.required_fuel()))?;
            call = rest.resume(&mut *store);
        }
    }
}

/// End of a budget that begins now.
fn deadline(ticks: u32) -> Instant {
    Instant::now() + TICK * ticks
}

/// Fills up the fuel of a store.
///
/// # Errors
/// [`Fault::Trap`] for an engine without fuel, which no setting gives.
fn set_fuel(store: &mut Store<Watch>, fuel: u64) -> Result<(), Fault> {
    store.set_fuel(fuel).map_err(|error| other(&error))
}

/// Fault of an error without a kind of its own.
#[cold]
fn other(error: &wasmi::Error) -> Fault {
    Fault::Trap(Trap::Other { why: error.to_string() })
}
