//! Facts about this machine: from `/proc` and `/sys` on Linux, else from system calls.
//!
//! Every value is optional: one that the system does not report is absent, never guessed.

use std::collections::HashSet;
use std::fs;

/// Model name of the CPU.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    field(&info, "model name").map(str::to_owned)
}

/// Model name of the CPU.
#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu_model() -> Option<String> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    let name = system.cpus().first()?.brand().trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Features of the CPU in the kernel's names (`flags` on x86, `Features` on Arm).
pub(crate) fn cpu_flags() -> Option<HashSet<String>> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let flags = field(&info, "flags").or_else(|| field(&info, "Features"))?;
    Some(flags.split_whitespace().map(str::to_owned).collect())
}

/// Mode of transparent huge pages (2 MiB): `always`, `madvise` or `never`.
pub(crate) fn transparent_huge_pages() -> Option<String> {
    let modes = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    selected(&modes).map(str::to_owned)
}

/// True if this process was started with `signal` ignored.
#[cfg(unix)]
pub(crate) fn is_ignored(signal: i32) -> Option<bool> {
    is_in_set(&fs::read_to_string("/proc/self/status").ok()?, "SigIgn", signal)
}

/// True if `signal` is in a signal mask of `/proc/self/status`: hexadecimal, signal 1 in bit 0.
#[cfg(any(unix, test))]
fn is_in_set(status: &str, set: &str, signal: i32) -> Option<bool> {
    let mask = u64::from_str_radix(field(status, set)?, 16).ok()?;
    Some(mask >> u32::try_from(signal - 1).ok()? & 1 == 1)
}

/// Value of a `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Word in square brackets of a kernel setting such as `always [madvise] never`.
fn selected(modes: &str) -> Option<&str> {
    let (_, rest) = modes.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts_are_understood() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\n";
        assert_eq!(field(text, "model name"), Some("Some CPU"));
        assert_eq!(field(text, "flags"), None);
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(is_in_set(status, "SigIgn", 1), Some(true));
        assert_eq!(is_in_set(status, "SigIgn", 2), Some(false));
        assert_eq!(is_in_set(status, "SigIgn", 13), Some(true));
        assert_eq!(is_in_set(status, "SigCgt", 1), None);
        assert_eq!(selected("always [madvise] never"), Some("madvise"));
        assert_eq!(selected("always"), None);
    }
}
