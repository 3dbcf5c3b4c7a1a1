//! Memory of a sequence outside of the page pool follows its length, not its capacity.
//!
//! Alone in its binary, because it counts the allocations of the whole process. On Linux alone:
//! others take a budget of a terabyte out of what they can commit.
#![cfg(target_os = "linux")]

use ruvllm_kernels::Kernels;
use ruvllm_kv_cache::{KvShape, KvStore};
use ruvllm_memory::{PagePool, PoolConfig};
use ruvllm_testkit::allocator::{Counting, live_bytes};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn tables_grow_with_the_sequence_and_are_counted() {
    let kernels = Kernels::detect().expect("kernels");
    let pool = PagePool::new(PoolConfig::new(1 << 40)).expect("a pool");
    let shape = KvShape::new(32, 1, 32);
    let store = KvStore::new(shape, &"f16".parse().expect("a policy"), &pool).expect("a store");
    // The slab's own tables are there after this.
    store.sequence(32).step(&kernels, 32).expect("room").commit();
    let before = live_bytes();
    let mut sequence = store.sequence(1_000_000);
    sequence.step(&kernels, 4).expect("room").commit();
    let of_one_block = live_bytes() - before;
    assert!(of_one_block < 256 << 10, "{of_one_block} bytes for 4 tokens");
    let counted = sequence.table_bytes();
    assert!(counted <= of_one_block && counted > of_one_block / 2, "{counted} of {of_one_block}");
    for _ in 0..100 {
        sequence.step(&kernels, 32).expect("room").commit();
    }
    let blocks = sequence.len().div_ceil(store.block_tokens());
    let of_block = sequence.table_bytes() / blocks;
    assert!(of_block < 8 << 10, "{of_block} bytes for each of {blocks} blocks");
}
