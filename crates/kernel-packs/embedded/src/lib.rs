//! Common parts of the measured programs.

use std::fs;

/// Prints the peak of the heap, and that of resident memory where the system has it.
pub fn report(name: &str, heap: usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or(" ?").trim();
    println!("{name}: peak heap {heap} bytes, peak resident {resident}");
}
