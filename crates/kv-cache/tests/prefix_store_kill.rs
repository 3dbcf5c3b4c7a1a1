//! A process that is killed while it writes to the prefix store loses at most the entry that it was
//! writing.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use ruvllm_kv_cache::prefix::{PrefixKey, PrefixStore, Scope};

const FOLDER: &str = "PREFIX_STORE_KILL_FOLDER";
const BLOCK: usize = 4;
const PAYLOAD: usize = 8 << 20;

fn key() -> PrefixKey {
    PrefixKey {
        model: [3; 32],
        adapter: None,
        kv_format: "f16".into(),
        rope_scaling: "none".into(),
        scope: Scope::Shared,
    }
}

/// The first `n` tokens of the one prefix that is written.
fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

/// Work of the killed process: writes block after block, and reports when each is safe.
fn write_until_killed(folder: PathBuf) -> ! {
    let store = PrefixStore::open(folder, BLOCK, u64::MAX).expect("a store");
    let present = store.find(&key(), &tokens(BLOCK * 1000), 0).chain.len();
    for n in present + 1.. {
        let payload = vec![n as u8; PAYLOAD];
        store.put(&key(), &tokens(n * BLOCK), &[&payload]).expect("a stored block");
        println!("\nsafe {n}");
    }
    unreachable!("killed before")
}

/// Files of writes that are going on, or were interrupted.
fn temporary_files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("a listing").flatten().map(|file| file.path());
    files.filter(|path| path.extension().is_some_and(|found| found == "tmp")).collect()
}

/// The last block that the writer said is safe.
fn last_safe(said: &str) -> Option<usize> {
    let numbers = said.lines().filter_map(|line| line.strip_prefix("safe "));
    numbers.map(|n| n.parse().expect("a number")).next_back()
}

#[test]
fn a_killed_writer_loses_at_most_the_entry_in_work() {
    if let Some(folder) = env::var_os(FOLDER) {
        write_until_killed(folder.into());
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut n_interrupted = 0;
    for round in 0.. {
        assert!(round < 50, "no write was caught in the middle");
        let mut writer = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "a_killed_writer_loses_at_most_the_entry_in_work", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut output = BufReader::new(writer.stdout.take().expect("its output"));
        let mut said = String::new();
        // Once it is at work, it is killed as soon as it begins another file.
        while last_safe(&said).is_none() {
            assert!(output.read_line(&mut said).expect("its output") > 0, "the writer ended by itself");
        }
        let before = temporary_files(folder.path());
        while temporary_files(folder.path()).iter().all(|path| before.contains(path)) {
            assert!(writer.try_wait().expect("its state").is_none(), "the writer ended by itself");
        }
        writer.kill().expect("a process to kill");
        writer.wait().expect("its end");
        output.read_to_string(&mut said).expect("its output");
        let safe = last_safe(&said).expect("at least one block is safe");
        let is_new = |path: &PathBuf| !before.contains(path);
        n_interrupted += usize::from(temporary_files(folder.path()).iter().any(is_new));

        let store = PrefixStore::open(folder.path(), BLOCK, u64::MAX).expect("a store");
        let found = store.find(&key(), &tokens(BLOCK * 1000), 0);
        assert!(found.warnings.is_empty(), "round {round}: {:?}", found.warnings);
        // The one in work may have been finished before the writer could say so.
        assert!([safe, safe + 1].contains(&found.chain.len()), "{safe} safe, {} found", found.chain.len());
        for (i, entry) in found.chain.iter().enumerate() {
            let mut payload = vec![0; PAYLOAD];
            store.load(entry, &mut [&mut payload]).expect("a whole payload");
            assert!(payload.iter().all(|&byte| byte == i as u8 + 1));
        }
        if n_interrupted == 2 {
            break;
        }
    }
}
