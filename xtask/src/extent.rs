//! Extent of test runs.

use crate::process::CommandLine;

/// Cases of a property test in a full run; proptest's default is 256, and each test states its own
/// as a share of it.
const FULL_CASES: &str = "4096";

/// Number of tests of a step, and of their generated cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Generated cases as each test states them; repetitions on other instruction sets only where
    /// they matter.
    Normal,
    /// Sixteen times as many cases, everything repeated.
    Full,
}

impl Extent {
    /// A command that runs tests to this extent.
    pub(crate) fn apply(self, command: CommandLine) -> CommandLine {
        match self {
            Self::Normal => command,
            Self::Full => command.env("PROPTEST_CASES", FULL_CASES),
        }
    }
}
