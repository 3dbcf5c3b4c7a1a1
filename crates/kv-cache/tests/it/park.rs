//! Sequences that wait in a file.

use ruvllm_kernels::ThreadPool;
use ruvllm_kv_cache::Error;

use crate::oracle::{Checked, kernels, pool, store};

fn ids(n: usize, first: u32) -> Vec<u32> {
    (first..).take(n).collect()
}

#[test]
fn a_parked_sequence_comes_back_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = pool(8);
    let store = store("tiered:hot=32,sink=4,warm=kivi4", &pool);
    let mut first = Checked::new(&store, 1000);
    first.append(&ids(96, 0)).expect("room");
    let mut second = first.fork();
    second.append(&ids(70, 500)).expect("room");
    second.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    second.check();
    let blocks = |store: &ruvllm_kv_cache::KvStore| store.tiers().map(|tier| tier.blocks).sum::<usize>();
    let before = blocks(&store);
    let Checked { sequence, tokens } = second;
    let path = folder.path().join("parked");
    let parked = sequence.park(&path).map_err(|(_, error)| error).expect("a file");
    assert_eq!(parked.len(), 166);
    assert_eq!(blocks(&store), before - 3, "three blocks are its own, three shared");
    assert_eq!(std::fs::metadata(&path).expect("the file").len(), parked.file_bytes() as u64);
    first.check();
    let sequence = parked.resume().map_err(|(_, error)| error).expect("room");
    assert!(!path.exists(), "the file is gone");
    let mut second = Checked { sequence, tokens };
    second.check();
    second.append(&ids(40, 900)).expect("room");
    second.check();
    first.check();
}

#[test]
fn what_goes_wrong_gives_the_sequence_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = pool(8);
    let store = store("f16", &pool);
    let mut checked = Checked::new(&store, 100);
    checked.append(&ids(50, 0)).expect("room");
    let Checked { sequence, tokens } = checked;
    let (sequence, error) = sequence.park(&folder.path().join("absent/file")).expect_err("no such folder");
    assert!(matches!(error, Error::Spill { .. }), "{error}");
    let mut checked = Checked { sequence, tokens };
    checked.check();

    let path = folder.path().join("file");
    let Checked { sequence, tokens } = checked;
    let parked = sequence.park(&path).map_err(|(_, error)| error).expect("a file");
    let file = std::fs::read(&path).expect("the file");
    std::fs::write(&path, &file[..file.len() - 1]).expect("a shorter file");
    let (parked, error) = parked.resume().expect_err("a byte is missing");
    assert!(matches!(error, Error::Spill { .. }), "{error}");
    std::fs::write(&path, &file).expect("the whole file");
    let sequence = parked.resume().map_err(|(_, error)| error).expect("room");
    Checked { sequence, tokens }.check();
}
