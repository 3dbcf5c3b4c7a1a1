//! Instruction sets: their names, and whether this CPU and this build have them. Detection happens once per process;
//! no kernel looks at CPU features.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::{Error, Result};

/// Environment variable that forces an instruction set by name (see [`Kernels::detect`](crate::Kernels::detect)).
pub const ISA_VARIABLE: &str = "RUVLLM_ISA";

/// An instruction set that kernels can be built for.
///
/// All of them compute the same bits; they differ in speed. Levels above AVX2 (AVX-VNNI, AVX-512) get a variant here
/// when a path for them is shipped and tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Portable Rust, on every CPU: the shipped reference.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C together.
    Avx2,
    /// `AArch64` Advanced SIMD (NEON); its kernels are still to come, so it is available nowhere yet.
    Neon,
}

impl Isa {
    /// Every instruction set, from the most general to the fastest.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Neon];

    /// The name that [`FromStr`] and the environment variable `RUVLLM_ISA` accept.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
        }
    }

    /// Whether this CPU has the instruction set and this build has kernels for it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => has_avx2(),
            Self::Neon => false,
        }
    }

    /// The fastest available instruction set; found once per process.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Scalar)
        })
    }

    /// The instruction set that a setting asks for: the named one, or the best when there is no (or an empty) name.
    ///
    /// # Errors
    /// [`Error::UnknownIsa`] for a name outside the list, [`Error::IsaUnavailable`] for one this machine lacks.
    pub(crate) fn requested(setting: Option<&OsStr>) -> Result<Self> {
        match setting {
            Some(name) if !name.is_empty() => name.to_string_lossy().parse::<Self>()?.require(),
            _ => Ok(Self::best()),
        }
    }

    /// `self` if it is available, else the error that says so.
    pub(crate) fn require(self) -> Result<Self> {
        if self.is_available() {
            Ok(self)
        } else {
            Err(Error::IsaUnavailable { isa: self, best: Self::best() })
        }
    }
}

/// AVX2, FMA and F16C: the kernels use all three freely, so a CPU with only some of them does not count.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| Error::UnknownIsa { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse::<Isa>().unwrap(), isa);
        }
        assert_eq!("AVX2".parse::<Isa>().unwrap(), Isa::Avx2);
    }

    #[test]
    fn no_setting_means_the_best() {
        assert_eq!(Isa::requested(None).unwrap(), Isa::best());
        assert_eq!(Isa::requested(Some(OsStr::new(""))).unwrap(), Isa::best());
        assert!(Isa::best().is_available());
    }

    #[test]
    fn a_setting_is_obeyed_or_refused_never_replaced() {
        assert_eq!(Isa::requested(Some(OsStr::new("scalar"))).unwrap(), Isa::Scalar);
        assert!(matches!(
            Isa::requested(Some(OsStr::new("sse9"))),
            Err(Error::UnknownIsa { name }) if name == "sse9"
        ));
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            let refused = Isa::requested(Some(OsStr::new(isa.name())));
            assert!(matches!(refused, Err(Error::IsaUnavailable { isa: asked, .. }) if asked == isa));
        }
    }
}
