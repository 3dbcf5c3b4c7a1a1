//! Instruction sets: their names, and whether this CPU and this build have them. Detection happens once per process;
//! no kernel looks at CPU features.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::{Error, Result};

/// An instruction set that kernels can be built for.
///
/// All of them compute the same bits; they differ in speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Portable Rust, on every CPU: the shipped reference.
    Scalar,
    /// x86-64 with AVX2, FMA, F16C and POPCNT together.
    Avx2,
    /// x86-64 with AVX2 and AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// `AArch64` with Advanced SIMD (NEON).
    Neon,
    /// `AArch64` with NEON and its dot products of bytes (`FEAT_DotProd`).
    NeonDotprod,
    /// `AArch64` with NEON, dot products and matrix products of bytes (`FEAT_I8MM`).
    NeonI8mm,
}

impl Isa {
    /// Environment variable that forces an instruction set by name (see [`Kernels::detect`](crate::Kernels::detect)).
    pub const VARIABLE: &str = "RUVLLM_ISA";

    /// Every instruction set, from the most general to the fastest.
    pub const ALL: [Self; 6] =
        [Self::Scalar, Self::Avx2, Self::Avx512, Self::Neon, Self::NeonDotprod, Self::NeonI8mm];

    /// The name that [`FromStr`] and the environment variable `RUVLLM_ISA` accept.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
        }
    }

    /// The CPU features it needs, as Linux names them in `/proc/cpuinfo`.
    pub fn features(self) -> &'static [&'static str] {
        match self {
            Self::Scalar => &[],
            Self::Avx2 => &["avx2", "fma", "f16c"],
            Self::Avx512 => {
                &["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"]
            }
            Self::Neon => &["asimd"],
            Self::NeonDotprod => &["asimd", "asimddp"],
            Self::NeonI8mm => &["asimd", "asimddp", "i8mm"],
        }
    }

    /// Whether this CPU has the instruction set and this build has kernels for it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => has_avx2(),
            Self::Avx512 => has_avx512(),
            Self::Neon | Self::NeonDotprod | Self::NeonI8mm => has_neon(self),
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

/// AVX2, FMA, F16C and POPCNT: the kernels use all four freely, so a CPU with only some of them does not count.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("popcnt")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

/// What AVX2 kernels need, and the parts of AVX-512 that came together with its byte dot products.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

/// NEON, and the further instructions that `isa`, one of the NEON levels, stands for.
#[cfg(target_arch = "aarch64")]
fn has_neon(isa: Isa) -> bool {
    use std::arch::is_aarch64_feature_detected;
    let needs_i8mm = isa == Isa::NeonI8mm;
    let needs_dotprod = needs_i8mm || isa == Isa::NeonDotprod;
    is_aarch64_feature_detected!("neon")
        && (!needs_dotprod || is_aarch64_feature_detected!("dotprod"))
        && (!needs_i8mm || is_aarch64_feature_detected!("i8mm"))
}

#[cfg(not(target_arch = "aarch64"))]
fn has_neon(_: Isa) -> bool {
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
