//! Traps: the reasons for which a call is stopped.

use std::fmt;

/// Reason for which a call was stopped in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trap {
    /// The budget of time is used up.
    #[error("it ran for more than its {ticks} ticks of 10 ms (limits.epoch_ticks)")]
    Deadline {
        /// Ticks of the budget.
        ticks: u32,
    },
    /// A load or store outside of the memory.
    #[error("it read or wrote outside of its memory{}", place(*offset, *memory))]
    OutOfBounds {
        /// Offset of the access; absent where the engine does not know it.
        offset: Option<u64>,
        /// Size of the memory in bytes at this time.
        memory: Option<u64>,
    },
    /// An access outside of a table.
    #[error("it used an element outside of its table")]
    TableOutOfBounds,
    /// An indirect call of a function of another type.
    #[error("it called a function of another type through its table")]
    BadIndirectCall,
    /// An indirect call of an empty element.
    #[error("it called an empty element of its table")]
    NullCall,
    /// An integer operation whose result its type cannot hold.
    #[error("an integer operation overflowed")]
    IntegerOverflow,
    /// An integer division by zero.
    #[error("it divided an integer by zero")]
    DivisionByZero,
    /// A conversion of NaN to an integer.
    #[error("it converted a NaN to an integer")]
    BadConversion,
    /// The instruction `unreachable`, as a panic in Rust has it.
    #[error("it reached `unreachable` (a panic or failed assertion)")]
    Unreachable,
    /// Calls within calls used up the stack.
    #[error("its stack is used up")]
    StackOverflow,
    /// Memory was to grow beyond the limit.
    #[error("it asked for {asked} bytes of memory, limits.memory_pages allows {most}")]
    MemoryLimit {
        /// Bytes of memory after the growth.
        asked: u64,
        /// Bytes that the manifest allows.
        most: u64,
    },
    /// Tables were to grow beyond the limit.
    #[error("it asked for {asked} table elements, limits.table_elements allows {most}")]
    TableLimit {
        /// Elements of all tables after the growth.
        asked: u64,
        /// Elements that the manifest allows.
        most: u64,
    },
    /// Any other reason.
    #[error("it was stopped: {why}")]
    Other {
        /// Message of the engine.
        why: String,
    },
}

/// Kind of a trap, for counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TrapKind {
    /// Budget of time.
    Deadline,
    /// Access outside of memory.
    OutOfBounds,
    /// Access outside of a table.
    TableOutOfBounds,
    /// Indirect call of another type, or of an empty element.
    BadIndirectCall,
    /// Overflow, division by zero or bad conversion of integers.
    Arithmetic,
    /// `unreachable`.
    Unreachable,
    /// Stack.
    StackOverflow,
    /// Growth of memory.
    MemoryLimit,
    /// Growth of tables.
    TableLimit,
    /// Return codes that say that the kernel is at fault, values that are not finite, and others.
    Other,
}

impl TrapKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Deadline,
        Self::OutOfBounds,
        Self::TableOutOfBounds,
        Self::BadIndirectCall,
        Self::Arithmetic,
        Self::Unreachable,
        Self::StackOverflow,
        Self::MemoryLimit,
        Self::TableLimit,
        Self::Other,
    ];

    /// Name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::OutOfBounds => "out_of_bounds",
            Self::TableOutOfBounds => "table_out_of_bounds",
            Self::BadIndirectCall => "bad_indirect_call",
            Self::Arithmetic => "arithmetic",
            Self::Unreachable => "unreachable",
            Self::StackOverflow => "stack_overflow",
            Self::MemoryLimit => "memory_limit",
            Self::TableLimit => "table_limit",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for TrapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Trap {
    /// Kind of the trap.
    pub fn kind(&self) -> TrapKind {
        match self {
            Self::Deadline { .. } => TrapKind::Deadline,
            Self::OutOfBounds { .. } => TrapKind::OutOfBounds,
            Self::TableOutOfBounds => TrapKind::TableOutOfBounds,
            Self::BadIndirectCall | Self::NullCall => TrapKind::BadIndirectCall,
            Self::IntegerOverflow | Self::DivisionByZero | Self::BadConversion => TrapKind::Arithmetic,
            Self::Unreachable => TrapKind::Unreachable,
            Self::StackOverflow => TrapKind::StackOverflow,
            Self::MemoryLimit { .. } => TrapKind::MemoryLimit,
            Self::TableLimit { .. } => TrapKind::TableLimit,
            Self::Other { .. } => TrapKind::Other,
        }
    }
}

/// Place of an access, for messages.
fn place(offset: Option<u64>, memory: Option<u64>) -> String {
    match (offset, memory) {
        (Some(offset), Some(memory)) => format!(": at {offset}, the memory has {memory} bytes"),
        _ => String::new(),
    }
}
