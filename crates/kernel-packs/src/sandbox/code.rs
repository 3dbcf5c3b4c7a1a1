//! Return codes of kernels.

use std::fmt;

/// Return code of an export of a kernel, other than 0 (done).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnCode {
    /// 1: a descriptor, size or parameter that the kernel does not take.
    InvalidArgument,
    /// 2: too little memory or scratch.
    OutOfMemory,
    /// 3: a shape or type of values that the kernel does not compute.
    Unsupported,
    /// 4: a number that its type cannot hold.
    Overflow,
    /// 5: a fault within the kernel.
    Internal,
    /// 6: an operation that the kernel lacks.
    NotImplemented,
    /// A number that has no meaning.
    Unknown(i32),
}

impl ReturnCode {
    /// Outcome of a number that an export returned; 0 is success.
    ///
    /// # Errors
    /// The code of any other number.
    pub(super) fn check(code: i32) -> Result<(), Self> {
        Err(match code {
            0 => return Ok(()),
            1 => Self::InvalidArgument,
            2 => Self::OutOfMemory,
            3 => Self::Unsupported,
            4 => Self::Overflow,
            5 => Self::Internal,
            6 => Self::NotImplemented,
            _ => Self::Unknown(code),
        })
    }

    /// Number of the code.
    pub fn number(self) -> i32 {
        match self {
            Self::InvalidArgument => 1,
            Self::OutOfMemory => 2,
            Self::Unsupported => 3,
            Self::Overflow => 4,
            Self::Internal => 5,
            Self::NotImplemented => 6,
            Self::Unknown(code) => code,
        }
    }

    /// Name of the code.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid argument",
            Self::OutOfMemory => "out of memory",
            Self::Unsupported => "unsupported shape or type",
            Self::Overflow => "overflow",
            Self::Internal => "internal fault",
            Self::NotImplemented => "not implemented",
            Self::Unknown(_) => "unknown code",
        }
    }

    /// True for codes that say that the kernel itself is at fault.
    pub(super) fn is_defect(self) -> bool {
        matches!(self, Self::Internal | Self::Unknown(_))
    }
}

impl fmt::Display for ReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.number(), self.name())
    }
}
