//! Memory taken while a file is opened stays in proportion to the file, however hostile its counts.
//!
//! Alone in its binary, because it counts the allocations of the whole process.

mod common;

use std::{fs, io::Cursor};

use common::{data_dir, sample};
use gguf_rs_lite::{Gguf, Header, Reader};
use ruvllm_testkit::{Random, allocator};

/// Bytes that opening any file may take: the stream's buffer and the parser's scratch space.
const CONSTANT: usize = 96 * 1024;

/// Bytes in memory per byte of the file. The densest content is a list of arrays or entries without
/// content.
const FACTOR: usize = 16;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

fn check(what: &str, file: &[u8]) {
    let limit = CONSTANT + FACTOR * file.len();
    let copy = file.to_vec();
    let peaks = [
        ("slice", allocator::peak_bytes(|| Header::parse(file)).1),
        ("stream", allocator::peak_bytes(|| Reader::new(Cursor::new(file))).1),
        ("model", allocator::peak_bytes(move || Gguf::from_owner(copy)).1),
    ];
    for (how, bytes) in peaks {
        assert!(bytes <= limit, "{what}, {how}: {bytes} bytes for a file of {}", file.len());
    }
}

/// A header with the given counts.
fn header(n_tensors: u64, n_entries: u64) -> Vec<u8> {
    [b"GGUF\x03\0\0\0", &n_tensors.to_le_bytes()[..], &n_entries.to_le_bytes()].concat()
}

/// A file whose only entry is an array of `n` elements of type `tag` that are `element` each.
fn array_file(tag: u32, n: u64, element: &[u8]) -> Vec<u8> {
    let mut file = header(0, 1);
    file.extend(b"\x01\0\0\0\0\0\0\0k\x09\0\0\0");
    file.extend(tag.to_le_bytes());
    file.extend(n.to_le_bytes());
    file.extend(element.repeat(n as usize));
    file
}

/// Content that takes the most memory for its bytes.
fn dense_files() -> Vec<(&'static str, Vec<u8>)> {
    let mut entries = header(0, 20_000);
    for i in 0..20_000u32 {
        entries.extend([4, 0, 0, 0, 0, 0, 0, 0]);
        entries.extend(format!("{i:04x}").as_bytes());
        entries.extend([0, 0, 0, 0, 9]);
    }
    let mut tensors = header(20_000, 0);
    for i in 0..20_000u32 {
        tensors.extend([4, 0, 0, 0, 0, 0, 0, 0]);
        tensors.extend(format!("{i:04x}").as_bytes());
        tensors.extend([1, 0, 0, 0]); // one dimension of 0 elements of type F32 at offset 0
        tensors.extend([0; 8 + 4 + 8]);
    }
    tensors.resize(tensors.len().next_multiple_of(32), 0);
    // Arrays down to the depth limit that each announce as many elements as could still follow.
    let mut deep = header(0, 1);
    deep.extend(b"\x01\0\0\0\0\0\0\0k\x09\0\0\0");
    for level in 0..16u64 {
        deep.extend(9u32.to_le_bytes());
        deep.extend((8_000 - 10 * level).to_le_bytes());
    }
    deep.resize(100_000, 0);
    vec![
        ("empty strings", array_file(8, 20_000, &[0; 8])),
        ("empty arrays", array_file(9, 20_000, &[0; 12])),
        ("one-byte strings", array_file(8, 20_000, b"\x01\0\0\0\0\0\0\0x")),
        ("booleans", array_file(7, 100_000, &[1])),
        ("bytes", array_file(0, 100_000, &[1])),
        ("entries", entries),
        ("tensors", tensors),
        ("deep arrays", deep),
    ]
}

#[test]
fn opening_takes_memory_in_proportion_to_the_file() {
    for (what, file) in dense_files() {
        if what != "deep arrays" {
            Header::parse(&file).expect(what);
        }
        check(what, &file);
    }
    for entry in fs::read_dir(data_dir("malformed")).expect("folder") {
        let path = entry.expect("entry").path();
        check(&path.display().to_string(), &fs::read(&path).expect("file"));
    }
    // A valid file damaged in one to eight places, often with the bytes of huge numbers.
    let file = sample();
    let mut generator = Random::new(1);
    let mut random = |n| generator.below(n);
    for round in 0..5_000 {
        let mut damaged = file.clone();
        for _ in 0..=random(8) {
            let at = random(damaged.len());
            damaged[at] = [0, 1, 0x10, 0x40, 0x7f, 0x80, 0xff, random(256) as u8][random(8)];
        }
        check(&format!("round {round}"), &damaged);
    }
}
