//! Memory, processors and cores of the machine that this process may use.

#[cfg(any(target_os = "linux", test))]
mod linux;

/// Memory and processors that this process may use. Values that the system does not report are
/// absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Memory of the machine in bytes.
    pub total_bytes: Option<u64>,
    /// Bytes available now without swapping, within the limit.
    pub available_bytes: Option<u64>,
    /// Memory limit of the process's cgroup in bytes, if below the machine's memory. Linux only.
    pub limit_bytes: Option<u64>,
    /// Processors within the process's affinity and cgroup quota, at least 1.
    pub cpus: usize,
    /// Physical cores of these processors; fewer where processors share a core (SMT).
    pub cores: Option<usize>,
}

impl Machine {
    /// Detects the machine: from `/proc` and `/sys` on Linux, else through system calls.
    pub fn detect() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::of_system(cpus)
    }

    /// Usable memory in bytes: the cgroup limit, else the machine's memory.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.limit_bytes.or(self.total_bytes)
    }

    #[cfg(target_os = "linux")]
    fn of_system(cpus: usize) -> Self {
        linux::read(&|path| std::fs::read_to_string(path).ok(), cpus)
    }

    /// The system calls count the cores of the whole machine; a process limited to fewer processors
    /// has at most that many.
    #[cfg(not(target_os = "linux"))]
    fn of_system(cpus: usize) -> Self {
        let system = sysinfo::System::new().ok().map(|mut system| {
            system.refresh_memory();
            system
        });
        // `sysinfo` returns 0 for "unknown".
        let told = |bytes: fn(&sysinfo::System) -> u64| system.as_ref().map(bytes).filter(|&n| n > 0);
        Self {
            total_bytes: told(sysinfo::System::total_memory),
            available_bytes: told(sysinfo::System::available_memory),
            limit_bytes: None,
            cpus,
            cores: sysinfo::System::physical_core_count().ok().map(|cores| cores.min(cpus)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells_its_memory_and_cores() {
        let machine = Machine::detect();
        assert!(machine.total_bytes.is_some_and(|bytes| bytes > 0), "{machine:?}");
        assert!(machine.available_bytes.is_some(), "{machine:?}");
        assert!(machine.available_bytes <= machine.memory_bytes(), "{machine:?}");
        assert!(machine.cpus > 0);
        assert!(machine.cores.is_none_or(|cores| (1..=machine.cpus).contains(&cores)), "{machine:?}");
    }
}
