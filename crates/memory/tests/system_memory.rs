//! Physical memory is taken on first write and returned when free.
#![cfg(target_os = "linux")]

use ruvllm_memory::{PagePool, PoolConfig, Request};

/// Resident KiB of the mapping that contains an address.
fn resident_kib(bytes: &[u8]) -> usize {
    let address = bytes.as_ptr().addr();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let holds = |line: &str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        range.is_some_and(|(start, end)| match (number(start), number(end)) {
            (Some(start), Some(end)) => (start..end).contains(&address),
            _ => false,
        })
    };
    let facts = maps.lines().skip_while(|line| !holds(line));
    let resident = facts.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
    resident.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

#[test]
fn memory_is_taken_when_written_and_returned_when_free() {
    // More than the machine's memory: only addresses are reserved.
    let pool = PagePool::new(PoolConfig { reserve_bytes: 64 << 20, ..PoolConfig::new(1 << 40) }).unwrap();
    let request = Request::default();
    let probe = pool.allocate(1, &request).unwrap();
    let mut pages = pool.allocate(100, &request).unwrap();
    let mut single = pool.allocate(1, &request).unwrap();
    assert_eq!(resident_kib(probe.bytes()), 0, "nothing is written yet");
    pages.bytes_mut().fill(1);
    single.bytes_mut().fill(1);
    assert_eq!(resident_kib(probe.bytes()), 101 * 2048);
    drop(pages);
    assert_eq!(resident_kib(probe.bytes()), 2048, "more than the reserve is not kept");
    drop(single);
    assert_eq!(pool.stats().resident_pages, 2, "the reserve is kept");
    pool.trim();
    assert_eq!(resident_kib(probe.bytes()), 0);
    assert_eq!((pool.stats().resident_pages, pool.stats().returned_pages), (1, 101));
    let again = pool.allocate(101, &request).unwrap();
    assert!(again.bytes().iter().all(|&byte| byte == 0), "what comes back from the system is zero");
}

#[test]
fn free_memory_at_other_addresses_makes_room_in_the_budget() {
    let capacity = 16;
    let config = PoolConfig { reserve_bytes: usize::MAX, ..PoolConfig::new(capacity << 21) };
    let pool = PagePool::new(config).unwrap();
    let request = Request::default();
    let singles: Vec<_> = (0..capacity).map(|_| pool.allocate(1, &request).unwrap()).collect();
    let kept: Vec<_> = singles.into_iter().step_by(2).collect();
    assert_eq!(pool.stats().resident_pages, capacity, "the reserve keeps all that is free");
    // The free half is scattered: the range gets new addresses, and memory at the old ones is
    // returned.
    let pages = pool.allocate(capacity / 2, &request).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.used_pages, stats.resident_pages, stats.cached_pages), (capacity, capacity, 0));
    assert_eq!(stats.returned_pages, capacity as u64 / 2);
    drop((pages, kept));
}
