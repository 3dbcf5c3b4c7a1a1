//! Limits of the machine, measured in every round by a program of the benches package (this package
//! has no unsafe code).

use std::path::PathBuf;

use serde::Deserialize;

use super::plan::list;
use super::programs;
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Error, Result};

/// Limits with one number of threads.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct Limits {
    pub(super) threads: usize,
    /// Gigabytes read from memory per second.
    pub(super) read_gb_s: f64,
    /// f32 multiply-adds by instruction.
    pub(super) fma: Vec<Peak>,
    /// int8 multiply-adds by instruction.
    pub(super) int8: Vec<Peak>,
}

/// Peak throughput of one instruction.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct Peak {
    pub(super) name: String,
    /// Billions of operations per second, two per multiply-add.
    pub(super) gop_s: f64,
}

impl Limits {
    /// Parses a line of the program's output.
    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// Fastest instruction for int8 or f32 products.
    pub(super) fn best(&self, is_quantized: bool) -> Option<&Peak> {
        let peaks = if is_quantized { &self.int8 } else { &self.fma };
        peaks.iter().max_by(|a, b| a.gop_s.total_cmp(&b.gop_s))
    }
}

/// The measuring program.
pub(super) struct LimitsProgram {
    program: PathBuf,
    workspace: Workspace,
}

impl LimitsProgram {
    pub(super) fn build(workspace: &Workspace) -> Result<Self> {
        let program = programs::build(workspace, "ruvllm-benches", "limits")?;
        Ok(Self { program, workspace: workspace.clone() })
    }

    /// Measures with each of the numbers of threads.
    pub(super) fn measure(&self, threads: &[usize]) -> Result<Vec<Limits>> {
        let command = CommandLine::new(&self.program, self.workspace.root()).args([list(threads)]);
        let limits: Vec<Limits> = command.output()?.lines().filter_map(Limits::parse).collect();
        if limits.len() == threads.len() {
            Ok(limits)
        } else {
            Err(Error::MissingField { command: command.display(), field: "limits".to_owned() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_instruction_is_the_limit() {
        let line = r#"{"threads":2,"read_gb_s":40.5,"fma":[],"int8":[{"name":"a","gop_s":500.0},{"name":"b","gop_s":900.0}]}"#;
        let limits = Limits::parse(line).expect("limits");
        assert_eq!((limits.threads, limits.read_gb_s), (2, 40.5));
        assert_eq!(limits.best(true).map(|peak| peak.name.as_str()), Some("b"));
        assert_eq!(limits.best(false), None);
        assert_eq!(Limits::parse("no JSON"), None);
    }
}
