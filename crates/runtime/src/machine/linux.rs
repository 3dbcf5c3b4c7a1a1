//! Memory, processors and cores from `/proc` and `/sys` on Linux.

use std::collections::BTreeSet;

use super::Machine;
use crate::memory::bytes_of;

/// Parses the system's text files, read through `file`.
pub(super) fn read(file: &dyn Fn(&str) -> Option<String>, cpus: usize) -> Machine {
    let meminfo = file("/proc/meminfo").unwrap_or_default();
    let total_bytes = bytes_of(&meminfo, "MemTotal");
    let group = GroupMemory::read(file);
    let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
    Machine {
        total_bytes,
        available_bytes: least(bytes_of(&meminfo, "MemAvailable"), group.free),
        // Without a limit, cgroup v1 reports a number beyond any machine.
        limit_bytes: group.limit.filter(|&limit| total_bytes.is_none_or(|total| limit < total)),
        cpus,
        cores: physical_cores(file),
    }
}

/// Memory limit and free memory of the process's cgroups, in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct GroupMemory {
    limit: Option<u64>,
    free: Option<u64>,
}

impl GroupMemory {
    /// Tightest limit of the process's cgroup and its parents, versions 1 and 2.
    fn read(file: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut found = Self::default();
        for line in file("/proc/self/cgroup").unwrap_or_default().lines() {
            // hierarchy:controllers:path
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(mut path)) = (fields.next(), fields.next()) else { continue };
            let (root, limit, used, cache) = if controllers.is_empty() {
                ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
            } else if controllers.split(',').any(|name| name == "memory") {
                let (limit, used) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
                ("/sys/fs/cgroup/memory", limit, used, "total_inactive_file")
            } else {
                continue;
            };
            loop {
                path = path.trim_end_matches('/');
                let number = |name| file(&format!("{root}{path}/{name}"))?.trim().parse::<u64>().ok();
                if let Some(limit) = number(limit) {
                    // The kernel reclaims inactive page cache on demand.
                    let statistics = file(&format!("{root}{path}/memory.stat")).unwrap_or_default();
                    let cached = statistics.lines().find_map(|line| {
                        line.strip_prefix(cache)?.strip_prefix(' ')?.trim().parse::<u64>().ok()
                    });
                    let used = number(used).map(|used| used.saturating_sub(cached.unwrap_or(0)));
                    found.add(limit, used.map(|used| limit.saturating_sub(used)));
                }
                // In a container the path may be the host's; the cgroup at the root is the
                // container's own.
                let Some(parent) = path.rfind('/') else { break };
                path = &path[..parent];
            }
        }
        found
    }

    fn add(&mut self, limit: u64, free: Option<u64>) {
        self.limit = Some(self.limit.map_or(limit, |least| least.min(limit)));
        self.free = self.free.into_iter().chain(free).min();
    }
}

/// Physical cores of the processors that the process may run on. Processors of one core have the
/// same list of siblings.
fn physical_cores(file: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
    let status = file("/proc/self/status")?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = BTreeSet::new();
    for cpu in numbers(allowed)? {
        let siblings = file(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))?;
        cores.insert(numbers(&siblings)?.first().copied()?);
    }
    Some(cores.len()).filter(|&n| n > 0)
}

/// Numbers of a CPU list such as `0-3,8`; `None` for numbers of 65536 or more.
fn numbers(list: &str) -> Option<Vec<usize>> {
    const MOST: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n";

    fn machine(files: &[(&str, &str)]) -> Machine {
        let file =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        read(&file, 8)
    }

    #[test]
    fn a_machine_without_these_files_tells_nothing() {
        let empty =
            Machine { total_bytes: None, available_bytes: None, limit_bytes: None, cpus: 8, cores: None };
        assert_eq!(machine(&[]), empty);
        assert_eq!(machine(&[("/proc/meminfo", "nonsense"), ("/proc/self/cgroup", ":::\n\n0")]), empty);
    }

    #[test]
    fn the_tightest_group_of_version_2_limits() {
        let machine = machine(&[
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "409600\n"),
            ("/sys/fs/cgroup/a/memory.current", "300000\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 7\ninactive_file 100000\n"),
            ("/sys/fs/cgroup/memory.max", "512000\n"),
        ]);
        assert_eq!(machine.limit_bytes, Some(409_600));
        assert_eq!(machine.available_bytes, Some(209_600));
        assert_eq!(machine.memory_bytes(), Some(409_600));
    }

    #[test]
    fn version_1_and_groups_seen_from_inside_are_read() {
        let machine = machine(&[
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "4:cpu,memory:/outside/name\n1:cpu:/x\n0::/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500000"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "400000"),
        ]);
        assert_eq!((machine.limit_bytes, machine.available_bytes), (Some(500_000), Some(100_000)));
    }

    #[test]
    fn a_limit_beyond_the_machine_is_none() {
        let machine = machine(&[
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "4:memory:/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ]);
        assert_eq!(machine.limit_bytes, None);
        assert_eq!(machine.memory_bytes(), Some(1_024_000));
        assert_eq!(machine.available_bytes, Some(819_200));
    }

    #[test]
    fn processors_of_one_core_count_once_and_others_not_at_all() {
        let siblings = |cpu: usize| format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let paths: Vec<String> = (0..4).map(siblings).collect();
        let files = |allowed| {
            machine(&[
                ("/proc/self/status", allowed),
                (&paths[0], "0,2\n"),
                (&paths[1], "1,3\n"),
                (&paths[2], "0,2\n"),
                (&paths[3], "1,3\n"),
            ])
        };
        assert_eq!(files("Cpus_allowed_list:\t0-3\n").cores, Some(2));
        assert_eq!(files("Cpus_allowed_list:\t1,3\n").cores, Some(1));
        assert_eq!(files("Cpus_allowed_list:\t0-4\n").cores, None, "one that tells nothing");
        assert_eq!(files("Cpus_allowed_list:\t0-99999999999\n").cores, None);
    }
}
