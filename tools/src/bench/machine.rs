//! Machine of a measurement: processor, cores, load, commit, compiler.

use serde::Serialize;

use xtask::Workspace;
use xtask::process::CommandLine;

/// Conditions of a measurement; unknown facts are absent.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) cores: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) commit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compiler: Option<String>,
    /// Load average (one minute) at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) load_before: Option<f64>,
    /// Wait policy of OpenMP programs, if the environment sets it; it changes a peer's numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) omp_wait_policy: Option<String>,
}

impl Machine {
    pub(super) fn describe(workspace: &Workspace) -> Self {
        let line = |program: &str, args: &[&str]| {
            let output = CommandLine::new(program, workspace.root()).args(args).output().ok()?;
            let line = output.lines().next()?.trim().to_owned();
            (!line.is_empty()).then_some(line)
        };
        Self {
            date: xtask::today(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: proc_value("/proc/cpuinfo", "model name").map(with_level),
            commit: line("git", &["describe", "--always", "--dirty"]),
            compiler: line("rustc", &["--version"]),
            load_before: load(),
            omp_wait_policy: std::env::var("OMP_WAIT_POLICY").ok(),
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        let date = "2026-01-02".to_owned();
        let (cpu, commit, compiler, load_before, omp_wait_policy) = (None, None, None, None, None);
        Self { date, cores: 2, cpu, commit, compiler, load_before, omp_wait_policy }
    }

    /// Name of the processor.
    pub(super) fn cpu_name(&self) -> &str {
        self.cpu.as_deref().unwrap_or("an unnamed processor")
    }

    /// One line for a reader.
    pub(super) fn sentence(&self) -> String {
        let mut parts = vec![self.date.clone()];
        parts.push(format!("{} cores of {}", self.cores, self.cpu_name()));
        parts.extend(self.commit.as_ref().map(|commit| format!("commit {commit}")));
        parts.extend(self.compiler.clone());
        parts.extend(self.load_before.map(|load| format!("load {load:.1} before the run")));
        parts.extend(self.omp_wait_policy.as_ref().map(|policy| format!("OMP_WAIT_POLICY={policy}")));
        parts.join("; ")
    }
}

/// Virtual machines hide the generation of their processor: machines of one name with and without
/// AVX-512 have pages of their own.
fn with_level(cpu: String) -> String {
    let flags = proc_value("/proc/cpuinfo", "flags").unwrap_or_default();
    let has_avx512 = flags.split(' ').any(|flag| flag == "avx512f");
    if flags.is_empty() || has_avx512 { cpu } else { format!("{cpu} without AVX-512") }
}

fn proc_value(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}
