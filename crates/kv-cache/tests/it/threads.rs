//! Readers and a migrating writer on the same blocks. The thread sanitizer runs this.

use std::sync::atomic::{AtomicBool, Ordering};

use ruvllm_kernels::ThreadPool;

use crate::oracle::{Checked, kernels, pool, store};

#[test]
fn readers_never_see_half_of_a_migration() {
    let pool = pool(16);
    let store = store("tiered:hot=32,sink=0,warm=q8,warm_tokens=32,cold=kivi2", &pool);
    for round in 0..8 {
        let mut first = Checked::new(&store, 1000);
        let ids: Vec<u32> = (round * 1000..).take(256).collect();
        first.append(&ids).expect("room");
        let mut readers: Vec<Checked> = (0..3).map(|_| first.fork()).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (index, reader) in readers.iter_mut().enumerate() {
                let done = &done;
                scope.spawn(move || {
                    let mut id = index as u32;
                    while !done.load(Ordering::Relaxed) {
                        reader.append(&[id]).expect("room");
                        reader.check_pinned();
                        id += 1;
                        if reader.tokens.len() > 300 {
                            reader.truncate(260);
                        }
                    }
                });
            }
            let threads = ThreadPool::single();
            while first.sequence.migrate(&kernels(), &threads, 1).blocks > 0 {}
            done.store(true, Ordering::Relaxed);
        });
        first.check();
        readers.iter_mut().for_each(Checked::check);
    }
    drop(store);
}
