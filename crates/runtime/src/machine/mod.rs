//! Memory, processors and cores of the machine that this process may use.

#[cfg(any(target_os = "linux", test))]
mod linux;

/// Memory and processors that this process may use. What the system does not tell is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of memory of the machine.
    pub total_bytes: Option<u64>,
    /// Bytes that can be had now without swapping, within the limit.
    pub available_bytes: Option<u64>,
    /// Bytes that the process's control group allows, if that is less than the machine has. Linux
    /// alone has such groups.
    pub limit_bytes: Option<u64>,
    /// Processors that run its threads: all that its affinity and its control group leave, at
    /// least 1.
    pub cpus: usize,
    /// Physical cores that these belong to; fewer where two processors share a core.
    pub cores: Option<usize>,
}

impl Machine {
    /// Looks at the machine: through `/proc` and `/sys` on Linux, else through the system's own
    /// calls.
    pub fn detect() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::of_system(cpus)
    }

    /// Bytes that everything together may take: the limit, else the machine's memory.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.limit_bytes.or(self.total_bytes)
    }

    #[cfg(target_os = "linux")]
    fn of_system(cpus: usize) -> Self {
        linux::read(&|path| std::fs::read_to_string(path).ok(), cpus)
    }

    /// The calls tell the cores of the whole machine; a process that may use fewer processors has
    /// no more cores than these.
    #[cfg(not(target_os = "linux"))]
    fn of_system(cpus: usize) -> Self {
        let system = sysinfo::System::new().ok().map(|mut system| {
            system.refresh_memory();
            system
        });
        // Zero stands for "unknown" there.
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
