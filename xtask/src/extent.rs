//! Extent of test runs.

use crate::process::CommandLine;

/// Cases of a property test in a full run; proptest's default is 256, and each test scales its own
/// number with it.
const FULL_CASES: &str = "4096";

/// Extent of a test step: which tests, and how many generated cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Default number of generated cases; other instruction sets only where results depend on them.
    Normal,
    /// Sixteen times as many cases, on all instruction sets.
    Full,
}

impl Extent {
    /// Applies the extent to a command that runs tests.
    pub(crate) fn apply(self, command: CommandLine) -> CommandLine {
        match self {
            Self::Normal => command,
            Self::Full => command.env("PROPTEST_CASES", FULL_CASES),
        }
    }
}
