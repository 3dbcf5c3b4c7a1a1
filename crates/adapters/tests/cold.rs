//! Cost of cold adapters. Alone in its binary, because it counts the allocations of the process.

mod common;

use std::fs;

use ruvllm_adapters::{AdapterStore, Precision, Registry, Residency, ResidencyConfig};
use ruvllm_memory::Tenant;
use ruvllm_testkit::allocator::{Counting, live_bytes};

use common::{add, base, peft, pool};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Ten thousand cold adapters: memory of each, and no open file.
#[test]
fn cold_adapters_take_less_than_a_kibibyte_and_no_file() {
    let (root, source) = (tempfile::tempdir().unwrap(), peft(1));
    let store = AdapterStore::new(root.path());
    add(&store, "poet", source.path(), false).unwrap();
    let path = store.get("poet").unwrap().file.path().to_owned();
    let pool = pool();
    let registry = Registry::new(Residency::new(base(true), pool.clone(), ResidencyConfig::default()));
    let open_files = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let tenants: Vec<Tenant> = (0..10).map(|i| pool.tenant(&format!("org/team-{i}")).unwrap()).collect();
    let (files, bytes) = (open_files(), live_bytes());
    for i in 0..10_000 {
        let name = format!("adapter-of-user-{i}");
        registry.register(&tenants[i % 10], &name, &path, Precision::Tiered).unwrap();
    }
    let each = (live_bytes() - bytes) / 10_000;
    assert!(each > 0 && each < 1024, "{each} bytes each");
    assert_eq!(open_files(), files);
    assert_eq!(pool.stats().used_pages, 0);
}
