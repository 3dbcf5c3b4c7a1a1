//! Resident memory of this process, as reported by the operating system.

/// Memory of this process. Values that the system does not report are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessMemory {
    /// Resident set size in bytes, resident pages of mapped files included.
    pub resident_bytes: Option<u64>,
    /// Anonymous resident bytes: memory not backed by a file.
    pub anonymous_bytes: Option<u64>,
}

impl ProcessMemory {
    /// Reads the current values from `/proc/self/status`.
    #[cfg(target_os = "linux")]
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/self/status")
            .map_or_else(|_| Self::default(), |status| Self::parse(&status))
    }

    /// Reads the resident bytes from the system. The anonymous bytes are absent.
    #[cfg(not(target_os = "linux"))]
    pub fn now() -> Self {
        use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

        let (Ok(id), Ok(mut system)) = (sysinfo::get_current_pid(), System::new()) else {
            return Self::default();
        };
        let wanted = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[id]), false, wanted);
        Self { resident_bytes: system.process(id).map(sysinfo::Process::memory), anonymous_bytes: None }
    }

    #[cfg(any(target_os = "linux", test))]
    fn parse(status: &str) -> Self {
        let bytes = |key| bytes_of(status, key);
        Self { resident_bytes: bytes("VmRSS"), anonymous_bytes: bytes("RssAnon") }
    }
}

/// Bytes of a line `KEY: N kB`. The kernel's "kB" is 1024 bytes.
#[cfg(any(target_os = "linux", test))]
pub(crate) fn bytes_of(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_the_status_text() {
        let status = "Name:\tx\nVmRSS:\t    1948 kB\nRssAnon:\t     156 kB\nRssFile:\t    1792 kB\n";
        let memory = ProcessMemory::parse(status);
        assert_eq!(
            memory,
            ProcessMemory { resident_bytes: Some(1948 * 1024), anonymous_bytes: Some(156 * 1024) }
        );
        assert_eq!(ProcessMemory::parse("VmRSS:\tmuch\n"), ProcessMemory::default());
        assert_eq!(ProcessMemory::parse("VmRSS:\t18446744073709551615 kB\n"), ProcessMemory::default());
    }

    #[test]
    fn this_system_tells_the_resident_bytes() {
        assert!(ProcessMemory::now().resident_bytes.is_some_and(|bytes| bytes > 0));
    }
}
