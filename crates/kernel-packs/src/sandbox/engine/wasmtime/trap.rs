//! Traps of wasmtime.

use crate::sandbox::fault::Fault;
use crate::sandbox::limiter::Exceeded;
use crate::sandbox::trap::Trap;

/// Fault of an error that a call into a module with a budget of `ticks` gave.
#[cold]
pub(super) fn trapped(error: &wasmtime::Error, ticks: u32) -> Fault {
    Fault::Trap(trap_of(error, ticks))
}

fn trap_of(error: &wasmtime::Error, ticks: u32) -> Trap {
    if let Some(exceeded) = error.downcast_ref::<Exceeded>() {
        return (*exceeded).into();
    }
    let Some(trap) = error.downcast_ref::<wasmtime::Trap>() else {
        return Trap::Other { why: error.root_cause().to_string() };
    };
    match trap {
        wasmtime::Trap::Interrupt => Trap::Deadline { ticks },
        wasmtime::Trap::MemoryOutOfBounds => {
            let (offset, memory) = fault_place(error).unzip();
            Trap::OutOfBounds { offset, memory }
        }
        wasmtime::Trap::TableOutOfBounds => Trap::TableOutOfBounds,
        wasmtime::Trap::BadSignature => Trap::BadIndirectCall,
        wasmtime::Trap::IndirectCallToNull => Trap::NullCall,
        wasmtime::Trap::IntegerOverflow => Trap::IntegerOverflow,
        wasmtime::Trap::IntegerDivisionByZero => Trap::DivisionByZero,
        wasmtime::Trap::BadConversionToInteger => Trap::BadConversion,
        wasmtime::Trap::UnreachableCodeReached => Trap::Unreachable,
        wasmtime::Trap::StackOverflow => Trap::StackOverflow,
        other => Trap::Other { why: other.to_string() },
    }
}

/// Offset of an access and size of the memory. The engine has them in a text alone.
fn fault_place(error: &wasmtime::Error) -> Option<(u64, u64)> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    error.chain().find_map(|cause| {
        let text = cause.to_string();
        let rest = text.strip_prefix("memory fault at wasm address 0x")?;
        let (offset, memory) = rest.split_once(" in linear memory of size 0x")?;
        Some((number(offset)?, number(memory)?))
    })
}
