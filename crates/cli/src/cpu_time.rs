//! The CPU time of this process: one system call.
//!
//! Wall time on a busy machine depends on other processes; CPU time hardly does.

#![allow(unsafe_code)]

use std::time::Duration;

/// CPU time of all threads of this process so far; `None` if the system does not report it.
#[cfg(unix)]
pub(crate) fn process_cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, exclusively borrowed `timespec` for the length of the call, and
    // the call writes nothing else. An unknown clock makes it return -1 and leave `time` alone.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    if status != 0 {
        return None;
    }
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

/// CPU time of all threads of this process so far, in whole milliseconds. `None` if the system does
/// not report it.
#[cfg(not(unix))]
pub(crate) fn process_cpu_time() -> Option<Duration> {
    use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

    let id = sysinfo::get_current_pid().ok()?;
    let mut system = System::new().ok()?;
    let wanted = ProcessRefreshKind::nothing().with_cpu();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[id]), false, wanted);
    Some(Duration::from_millis(system.process(id)?.accumulated_cpu_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work() {
        let before = process_cpu_time().unwrap();
        let mut x = 1u64;
        while process_cpu_time().unwrap() == before {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        assert!(process_cpu_time().unwrap() > before);
    }
}
