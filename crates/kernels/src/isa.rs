//! Instruction sets: their one table, CPU detection, and code generated from the table. Detection
//! happens once per process; no kernel reads CPU features.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected as detected;
#[cfg(target_arch = "x86_64")]
use std::arch::is_x86_feature_detected as detected;

use crate::lanes::{Apart, Work};
use crate::{Error, Result};

/// Table of instruction sets, from the most general to the fastest.
///
/// Passes all entries to the macro `$then`.
///
/// Each entry is the only definition of its set: detection, [`Isa::features`], the
/// `#[target_feature]` attributes of the slots and of [`Apart`], and the lane tests are generated
/// from it.
macro_rules! instruction_sets {
    ($then:ident) => {
        $then! {
            /// Portable Rust for every CPU: the shipped reference.
            Scalar = "scalar" {
                module: scalar, cfg: all(), lanes: $crate::lanes::ScalarLanes,
                features: [],
            }
            /// x86-64 with AVX2, FMA, F16C and POPCNT.
            Avx2 = "avx2" {
                module: avx2, cfg: target_arch = "x86_64", lanes: $crate::lanes::Avx2Lanes,
                features: ["avx2" "fma" "f16c" "popcnt"],
            }
            /// x86-64 with AVX2 and AVX-512 F, BW, DQ, VL and VNNI.
            Avx512 = "avx512" {
                module: avx512, cfg: target_arch = "x86_64", lanes: $crate::lanes::Avx512Lanes,
                features: ["avx2" "fma" "f16c" "popcnt" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni"],
            }
            /// `AArch64` with Advanced SIMD (NEON).
            Neon = "neon" {
                module: neon, cfg: target_arch = "aarch64", lanes: $crate::lanes::NeonLanes<{ $crate::lanes::neon::PLAIN }>,
                features: ["neon"],
            }
            /// `AArch64` with NEON and int8 dot products (`FEAT_DotProd`).
            NeonDotprod = "neon-dotprod" {
                module: neon_dotprod, cfg: target_arch = "aarch64", lanes: $crate::lanes::NeonLanes<{ $crate::lanes::neon::DOTPROD }>,
                features: ["neon" "dotprod"],
            }
            /// `AArch64` with NEON, int8 dot products and int8 matrix products (`FEAT_I8MM`).
            NeonI8mm = "neon-i8mm" {
                module: neon_i8mm, cfg: target_arch = "aarch64", lanes: $crate::lanes::NeonLanes<{ $crate::lanes::neon::I8MM }>,
                features: ["neon" "dotprod" "i8mm"],
            }
        }
    };
}
pub(crate) use instruction_sets;

/// Declares [`Isa`] from the table.
macro_rules! isa {
    ($( #[$doc:meta] $isa:ident = $name:literal {
        module: $module:ident, cfg: $cfg:meta, lanes: $lanes:ty, features: [$($feature:tt)*],
    } )*) => {
        /// Instruction set that kernels are compiled for.
        ///
        /// All give bit-identical results; they differ in speed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Isa {
            $( #[$doc] $isa, )*
        }

        impl Isa {
            /// Every instruction set, from the most general to the fastest.
            pub const ALL: [Self; [$($name),*].len()] = [$( Self::$isa ),*];

            /// Name accepted by [`FromStr`] and by the environment variable `RUVLLM_ISA`.
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$isa => $name, )*
                }
            }

            /// Required CPU features, as the Rust compiler names them (`rustc --print
            /// target-features`).
            pub fn features(self) -> &'static [&'static str] {
                match self {
                    $( Self::$isa => &[$($feature),*], )*
                }
            }

            /// True if this CPU has the instruction set and this build has kernels for it.
            pub fn is_available(self) -> bool {
                match self {
                    $(
                        #[cfg($cfg)]
                        Self::$isa => true $(&& detected!($feature))*,
                        #[cfg(not($cfg))]
                        Self::$isa => false,
                    )*
                }
            }
        }
    };
}
instruction_sets!(isa);

/// Implements [`Apart`] for the lanes of each entry of the table.
macro_rules! apart {
    ($( #[$doc:meta] $isa:ident = $name:literal {
        module: $module:ident, cfg: $cfg:meta, lanes: $lanes:ty, features: [$($feature:tt)*],
    } )*) => {
        $(
            #[cfg($cfg)]
            impl Apart for $lanes {
                #[inline(always)]
                fn apart(self, work: impl Work<Self>) {
                    #[inline(never)]
                    $( #[target_feature(enable = $feature)] )*
                    fn run<L>(l: L, work: impl Work<L>) {
                        work.run(l);
                    }
                    #[allow(unused_unsafe)] // the portable lanes need none
                    // SAFETY: a value of the lanes exists only where the features of the table are
                    // present.
                    unsafe {
                        run(self, work);
                    }
                }
            }
        )*
    };
}
instruction_sets!(apart);

impl Isa {
    /// Environment variable that forces an instruction set by name (see
    /// [`Kernels::detect`](crate::Kernels::detect)).
    pub const VARIABLE: &str = "RUVLLM_ISA";

    /// Fastest available instruction set; detected once per process.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Scalar)
        })
    }

    /// Instruction set of a setting: the named one, or the best if the name is absent or empty.
    ///
    /// # Errors
    /// [`Error::UnknownIsa`] for an unknown name, [`Error::IsaUnavailable`] for one this machine
    /// lacks.
    pub(crate) fn requested(setting: Option<&OsStr>) -> Result<Self> {
        match setting.filter(|name| !name.is_empty()) {
            Some(name) => name.to_string_lossy().parse::<Self>()?.require(),
            None => Ok(Self::best()),
        }
    }

    /// Error for a request of this instruction set where it is unavailable.
    pub(crate) fn unavailable(self) -> Error {
        Error::IsaUnavailable { isa: self.name(), best: Self::best().name() }
    }

    /// Returns `self` if it is available, else an error.
    pub(crate) fn require(self) -> Result<Self> {
        if self.is_available() { Ok(self) } else { Err(self.unavailable()) }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            Error::UnknownIsa { name: name.to_owned(), expected: Self::ALL.map(Self::name).join(", ") }
        })
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
            Err(Error::UnknownIsa { name, .. }) if name == "sse9"
        ));
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            let refused = Isa::requested(Some(OsStr::new(isa.name())));
            assert!(matches!(refused, Err(Error::IsaUnavailable { isa: asked, .. }) if asked == isa.name()));
        }
    }
}
