//! Compact files: round trips, and every kind of damage.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use ruvllm_kernels::low_rank::FactorFormat;
use ruvllm_memory::Request;

use super::header::{Header, PREFIX_BYTES};
use super::*;
use crate::error::Error;
use crate::place::BaseModel;
use crate::testing::{adapters, base, pool, shapes, write as write_file};

fn load(path: &Path, format: FactorFormat) -> crate::Result<crate::Adapter> {
    CompactFile::open(path)?.load(&base(), format, &pool(4), &Request::default())
}

/// Writes bytes with the right CRC of their header.
fn write_header(path: &Path, bytes: &mut [u8]) {
    let len = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    bytes[16..PREFIX_BYTES].fill(0);
    let crc = crc32fast::hash(&bytes[..len]);
    bytes[16..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
    fs::write(path, bytes).expect("a file");
}

#[test]
fn factors_come_back_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_file(folder.path(), "a", 1);
    let file = CompactFile::open(&path).expect("a header");
    assert_eq!((file.source(), file.added_unix(), file.base()), ("a", 7, &*base()));
    file.verify().expect("a sound file");
    for (format, expected) in SECTIONS.into_iter().zip(adapters(1, 2)) {
        let found = load(&path, format).expect("an adapter");
        assert_eq!(found.factors(), expected.factors());
        assert_eq!(found.digests(), expected.digests());
        assert_eq!(found.layout(), expected.layout());
        assert_eq!(file.bytes(format), Some(expected.bytes()));
    }
    assert_eq!(file.digest(), adapters(1, 2)[0].digest());
    assert!(matches!(load(&path, FactorFormat::F32), Err(Error::Format { .. })));
    let names: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(names.len(), 1, "nothing else is left");
}

#[test]
fn files_of_another_model_or_with_other_contents_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_file(folder.path(), "a", 1);
    let file = CompactFile::open(&path).expect("a header");
    for other in [
        BaseModel { architecture: "qwen2".to_owned(), ..(*base()).clone() },
        BaseModel { n_layers: 3, ..(*base()).clone() },
        BaseModel { interleaved_heads: false, ..(*base()).clone() },
    ] {
        assert!(matches!(file.check_base(&other), Err(Error::BaseModel { .. })));
        let loaded = file.load(&other.into(), FactorFormat::F16, &pool(4), &Request::default());
        assert!(matches!(loaded, Err(Error::BaseModel { .. })));
    }
    write_file(folder.path(), "a", 2);
    let loaded = file.load(&base(), FactorFormat::F16, &pool(4), &Request::default());
    assert!(matches!(loaded, Err(Error::Changed { .. })));
    fs::remove_file(&path).expect("it is there");
    let loaded = file.load(&base(), FactorFormat::F16, &pool(4), &Request::default());
    assert!(matches!(loaded, Err(Error::Read { .. })));
}

#[test]
fn cut_files_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_file(folder.path(), "a", 1);
    let bytes = fs::read(&path).expect("a file");
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).expect("a file");
        let refused = CompactFile::open(&path).expect_err("a cut file");
        assert!(matches!(refused, Error::NotCompact { .. } | Error::Damaged { .. }), "{len}: {refused}");
    }
    fs::write(&path, [&bytes[..], &[0]].concat()).expect("a file");
    assert!(matches!(CompactFile::open(&path), Err(Error::Damaged { .. })), "longer than it should be");
}

#[test]
fn every_changed_byte_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_file(folder.path(), "a", 1);
    let bytes = fs::read(&path).expect("a file");
    let layout = CompactFile::open(&path).expect("a header").layout().clone();
    let header = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    let padding = header + layout.bytes()..(header + layout.bytes()).next_multiple_of(64);
    for at in (0..bytes.len()).filter(|at| !padding.contains(at)) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        fs::write(&path, changed).expect("a file");
        let results = SECTIONS.map(|format| load(&path, format));
        assert!(results.iter().any(Result::is_err), "byte {at}");
        let is_clear = |result: &crate::Result<_>| match result {
            Ok(_) | Err(Error::NotCompact { .. } | Error::Damaged { .. }) => true,
            Err(_) => false,
        };
        assert!(results.iter().all(is_clear), "byte {at}");
        let is_valid = CompactFile::open(&path).and_then(|file| file.verify()).is_ok();
        assert!(!is_valid, "byte {at}");
    }
}

#[test]
fn values_that_are_not_finite_are_refused_with_a_right_checksum() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_file(folder.path(), "a", 1);
    let bytes = fs::read(&path).expect("a file");
    let layout = CompactFile::open(&path).expect("a header").layout().clone();
    let header = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    for value in [0x7e00_u16, 0x7c00, 0xfc00] {
        let mut changed = bytes.clone();
        changed[header..header + 2].copy_from_slice(&value.to_le_bytes());
        let crc = crc32fast::hash(&changed[header..header + layout.bytes()]);
        changed[PREFIX_BYTES..PREFIX_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
        write_header(&path, &mut changed);
        let error = load(&path, FactorFormat::F16).expect_err("not finite");
        assert!(error.to_string().contains("not finite"), "{error}");
        assert!(load(&path, FactorFormat::I8).is_ok(), "the other section is sound");
        assert!(CompactFile::open(&path).expect("a header").verify().is_err());
    }
}

#[test]
fn wrong_digests_are_found_by_verify() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_file(folder.path(), "a", 1);
    let mut bytes = fs::read(&path).expect("a file");
    bytes[PREFIX_BYTES + 5] ^= 1;
    write_header(&path, &mut bytes);
    let error = CompactFile::open(&path).expect("a header").verify().expect_err("another digest");
    assert!(error.to_string().contains("digest"), "{error}");
}

/// A header of rank 2 with other fields.
fn header(change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let [f16, i8] = adapters(1, 2);
    let section = |adapter: &crate::Adapter| Section { crc: 0, digests: *adapter.digests() };
    let mut header = Header {
        sections: [section(&f16), section(&i8)],
        added_unix: 7,
        source: "a".to_owned(),
        base: (*base()).clone(),
        layout: f16.layout().clone(),
    };
    change(&mut header);
    header.encode().expect("a header")
}

#[test]
fn headers_that_contradict_themselves_are_refused() {
    let sound = header(|_| ());
    let decoded = Header::decode(&sound).expect("a header");
    assert_eq!(decoded.encode().expect("a header"), sound);
    // Sizes that overflow, and shapes of another model.
    for change in [
        (|header: &mut Header| header.base.model_dim = u32::MAX as usize) as fn(&mut Header),
        |header| header.base.n_layers = 1,
        |header| header.base.ffn_dim = 0,
        |header| header.base.kv_dim = 3,
    ] {
        assert!(Header::decode(&header(change)).is_err());
    }
    assert!(Header::decode(&[]).is_err() && Header::decode(&sound[..64]).is_err());
}

#[test]
fn counts_ranks_and_sites_beyond_the_header_are_refused() {
    let sound = header(|_| ());
    // Each aligned or unaligned 32-bit field in turn becomes large, small or that of a neighbour.
    for at in PREFIX_BYTES..sound.len() - 4 {
        for value in [u32::MAX, u32::MAX / 2, 0, 1, 1 << 20] {
            let mut bytes = sound.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes[16..PREFIX_BYTES].fill(0);
            let crc = crc32fast::hash(&bytes);
            bytes[16..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
            // A header that is read is as it would be written.
            if let Ok(header) = Header::decode(&bytes) {
                assert_eq!(header.encode().expect("a header"), bytes, "field at {at}");
            }
        }
    }
}

#[test]
fn duplicate_sites_and_long_texts_are_refused() {
    let mut twice = shapes(2);
    twice.insert(1, twice[0].clone());
    assert!(crate::Layout::new(FactorFormat::F16, twice).is_err());
    let [f16, i8] = adapters(1, 2);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a");
    let long = "x".repeat(MAX_TEXT_BYTES + 1);
    let refused = write(&path, [&f16, &i8], &long, 7, Existing::Keep);
    assert!(matches!(refused, Err(Error::TooManySites { .. })));
    assert!(!path.exists());
}

#[test]
fn an_existing_file_is_kept_unless_it_is_to_be_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_file(folder.path(), "a", 1);
    let before = fs::read(&path).expect("a file");
    let [f16, i8] = adapters(2, 1);
    let Err(Error::StoreWrite { source, .. }) = write(&path, [&f16, &i8], "b", 8, Existing::Keep) else {
        panic!("replaced")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).expect("a file"), before);
    write(&path, [&f16, &i8], "b", 8, Existing::Replace).expect("a file");
    assert_eq!(CompactFile::open(&path).expect("a header").digest(), f16.digest());
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no temporary file is left");
    let gone = folder.path().join("no-folder").join("a");
    assert!(matches!(write(&gone, [&f16, &i8], "b", 8, Existing::Replace), Err(Error::StoreWrite { .. })));
}

#[test]
fn folders_are_no_adapters() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(matches!(CompactFile::open(folder.path()), Err(Error::NotCompact { .. })));
    assert!(matches!(CompactFile::open(&folder.path().join("no")), Err(Error::Read { .. })));
}

proptest! {
    #[test]
    fn any_bytes_are_a_header_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        at in 0usize..400,
        use_sound in any::<bool>(),
    ) {
        let mut header = if use_sound { header(|_| ()) } else { vec![0; 448] };
        let end = (at + bytes.len()).min(header.len());
        let start = at.min(end);
        header[start..end].copy_from_slice(&bytes[..end - start]);
        header[16..PREFIX_BYTES].fill(0);
        let crc = crc32fast::hash(&header);
        header[16..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
        if let Ok(decoded) = Header::decode(&header) {
            // The prefix states version and length, which are read before.
            prop_assert_eq!(&decoded.encode().expect("a header")[PREFIX_BYTES..], &header[PREFIX_BYTES..]);
        }
    }
}
