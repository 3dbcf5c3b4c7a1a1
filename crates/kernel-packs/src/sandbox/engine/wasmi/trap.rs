//! Traps of wasmi.

use wasmi::TrapCode;
use wasmi::errors::{ErrorKind, InstantiationError, MemoryError, TableError};

use super::watch::Watch;
use crate::sandbox::fault::Fault;
use crate::sandbox::trap::Trap;

/// Fault of an instance that could not be made: of the machine, or of the start function.
#[cold]
pub(super) fn failed(error: &wasmi::Error, watch: &Watch, ticks: u32) -> Fault {
    match error.kind() {
        ErrorKind::Instantiation(
            InstantiationError::FailedToInstantiateMemory(MemoryError::OutOfSystemMemory)
            | InstantiationError::FailedToInstantiateTable(TableError::OutOfSystemMemory),
        )
        | ErrorKind::Memory(MemoryError::OutOfSystemMemory)
        | ErrorKind::Table(TableError::OutOfSystemMemory) => Fault::NoInstance { why: error.to_string() },
        _ => Fault::Trap(trap_of(error, watch, ticks)),
    }
}

/// Trap of an error that a call into a module with a budget of `ticks` gave.
#[cold]
pub(super) fn trap_of(error: &wasmi::Error, watch: &Watch, ticks: u32) -> Trap {
    if let Some(exceeded) = watch.exceeded() {
        return exceeded.into();
    }
    if let ErrorKind::Instantiation(InstantiationError::ElementSegmentDoesNotFit { .. }) = error.kind() {
        return Trap::TableOutOfBounds;
    }
    let other = || Trap::Other { why: error.to_string() };
    let Some(code) = error.as_trap_code() else { return other() };
    match code {
        TrapCode::OutOfFuel => Trap::Deadline { ticks },
        TrapCode::MemoryOutOfBounds => Trap::OutOfBounds { offset: None, memory: None },
        TrapCode::TableOutOfBounds => Trap::TableOutOfBounds,
        TrapCode::BadSignature => Trap::BadIndirectCall,
        TrapCode::IndirectCallToNull => Trap::NullCall,
        TrapCode::IntegerOverflow => Trap::IntegerOverflow,
        TrapCode::IntegerDivisionByZero => Trap::DivisionByZero,
        TrapCode::BadConversionToInteger => Trap::BadConversion,
        TrapCode::UnreachableCodeReached => Trap::Unreachable,
        TrapCode::StackOverflow => Trap::StackOverflow,
        TrapCode::GrowthOperationLimited if watch.is_cut() => Trap::Other { why: CUT.to_owned() },
        TrapCode::GrowthOperationLimited | TrapCode::OutOfSystemMemory => other(),
    }
}

/// Reason of a stop at a growth of a table that cannot be resumed.
const CUT: &str = "a table grew where a slice of fuel ended, which the interpreter cannot resume";
