//! Hostile archives.

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

use super::{draft, key, signed, signed_by, source, verify};
use crate::archive::set_checksum;
use crate::limits::{MAX_ARCHIVE_BYTES, MAX_KERNEL_BYTES, MAX_MANIFEST_BYTES};
use crate::{Contents, Error};

fn archive() -> Vec<u8> {
    signed("1.0.0").to_archive().unwrap()
}

/// Archive of the files of a pack, with a header that `edit` has changed for one of them.
fn edited(path: &str, edit: impl Fn(&mut Header)) -> Vec<u8> {
    let contents = signed("1.0.0");
    let files: Vec<(String, Vec<u8>)> =
        contents.files().map(|(path, bytes)| (path.to_owned(), bytes.to_vec())).collect();
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = header(&name, bytes.len() as u64);
        if name == path {
            edit(&mut header);
        }
        set_checksum(&mut header).unwrap();
        builder.append(&header, &*bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

fn header(path: &str, bytes: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_path(path).unwrap();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_device_major(0).unwrap();
    header.set_device_minor(0).unwrap();
    header.set_size(bytes);
    header
}

/// Sets the path field to bytes that the library would refuse.
fn raw_path(header: &mut Header, path: &[u8]) {
    let field = &mut header.as_old_mut().name;
    field.fill(0);
    field[..path.len()].copy_from_slice(path);
}

/// Archive of a pack with another file behind its own.
fn with_entry(header: &mut Header, bytes: &[u8]) -> Vec<u8> {
    let mut archive = archive();
    archive.truncate(archive.len() - 1024);
    set_checksum(header).unwrap();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(bytes);
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

#[test]
fn an_archive_is_read_as_it_was_written() {
    let contents = Contents::from_archive(&archive()).unwrap();
    assert_eq!(contents.to_archive().unwrap(), archive());
    assert_eq!(edited("", |_| ()), archive(), "the tests write the form of packs");
    verify(contents).unwrap();
}

/// `fuzz/corpus/kernel_pack_archive/signed` was written by GNU tar 1.34 with the flags that
/// `docs/kernel-packs.md` states.
#[test]
fn gnu_tar_writes_the_same_bytes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/kernel_pack_archive/signed");
    let archive = std::fs::read(path).unwrap();
    let contents = Contents::from_archive(&archive).unwrap();
    assert_eq!(contents.to_archive().unwrap(), archive);
    verify(contents).unwrap();
}

#[test]
fn two_builds_have_the_same_bytes() {
    let build = || signed_by(&draft("1.0.0"), &key()).to_archive().unwrap();
    let first = build();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(build(), first);
    // Files were made in another order and have other permissions.
    let folder = source(&draft("1.0.0"));
    let path = folder.path().join("rope.wasm");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "left out").unwrap();
    assert_eq!(Contents::build(folder.path(), Some(&key())).unwrap().to_archive().unwrap(), first);
}

#[test]
fn an_archive_that_is_cut_anywhere_is_refused() {
    let archive = archive();
    for length in 0..archive.len() {
        assert!(Contents::from_archive(&archive[..length]).is_err(), "{length}");
    }
}

#[test]
fn data_behind_the_end_is_refused() {
    for more in [&b"\0"[..], b"x", &[0; 512], &[0; 9216], &archive()] {
        let long = [&archive()[..], more].concat();
        assert!(matches!(Contents::from_archive(&long), Err(Error::NotCanonical)), "{}", more.len());
    }
}

#[test]
fn links_devices_and_folders_are_refused() {
    for kind in [
        EntryType::Link,
        EntryType::Symlink,
        EntryType::Char,
        EntryType::Block,
        EntryType::Directory,
        EntryType::Fifo,
        EntryType::Continuous,
        EntryType::GNUSparse,
    ] {
        let mut header = header("link.wasm", 0);
        header.set_entry_type(kind);
        header.set_link_name("/etc/passwd").unwrap();
        let refused = Contents::from_archive(&with_entry(&mut header, b""));
        assert!(matches!(refused, Err(Error::EntryType { .. })), "{kind:?}");
        let refused = Contents::from_archive(&edited("rope.wasm", |header| header.set_entry_type(kind)));
        assert!(matches!(refused, Err(Error::EntryType { .. })), "{kind:?}");
    }
}

#[test]
fn extensions_that_rename_entries_are_refused() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::XGlobalHeader]
    {
        let mut header = header("x", 30);
        header.set_entry_type(kind);
        let refused =
            Contents::from_archive(&with_entry(&mut header, b"30 path=../../../etc/passwd\n\0\0\0"));
        assert!(matches!(refused, Err(Error::EntryType { .. })), "{kind:?}");
    }
}

#[test]
fn paths_that_lead_out_are_refused() {
    for path in
        ["../x", "/etc/passwd", "a/../../x", "./x", "a\\..\\x", "c:/x", "", "kernels/", "KERNELS.JSON"]
    {
        let mut header = header("x", 0);
        raw_path(&mut header, path.as_bytes());
        let refused = Contents::from_archive(&with_entry(&mut header, b""));
        assert!(matches!(refused, Err(Error::Path { .. })), "{path}");
    }
}

#[test]
fn a_prefix_field_does_not_hide_a_path() {
    let refused = Contents::from_archive(&edited("rope.wasm", |header| {
        header.as_ustar_mut().unwrap().prefix[..2].copy_from_slice(b"..");
    }));
    assert!(matches!(refused, Err(Error::Path { .. })));
}

#[test]
fn names_that_are_not_utf_8_are_refused() {
    let mut header = header("x", 0);
    raw_path(&mut header, b"\xff\xfe.wasm");
    let refused = Contents::from_archive(&with_entry(&mut header, b""));
    assert!(matches!(refused, Err(Error::Path { why: "it is not UTF-8", .. })));
}

#[test]
fn files_that_the_manifest_lacks_are_refused() {
    let refused = Contents::from_archive(&with_entry(&mut header("extra.wasm", 3), b"abc"));
    assert!(matches!(refused, Err(Error::UnlistedFile { path }) if path == "extra.wasm"));
}

#[test]
fn files_that_are_there_twice_are_refused() {
    for path in ["kernels.json", "kernels.json.sig", "rope.wasm"] {
        let refused = Contents::from_archive(&with_entry(&mut header(path, 0), b""));
        assert!(matches!(refused, Err(Error::Duplicate { id, .. }) if id == path));
    }
}

#[test]
fn archives_without_a_listed_file_are_refused() {
    let mut contents = signed("1.0.0");
    contents.kernels.remove("rope.wasm");
    let refused = Contents::from_archive(&contents.to_archive().unwrap());
    assert!(matches!(refused, Err(Error::MissingFile { path }) if path == "rope.wasm"));
}

#[test]
fn the_manifest_comes_first() {
    let contents = signed("1.0.0");
    let mut files: Vec<_> = contents.files().collect();
    files.rotate_left(1);
    let refused = Contents::from_archive(&crate::archive::write(files.into_iter()).unwrap());
    assert!(matches!(refused, Err(Error::MissingFile { path }) if path == "kernels.json"));
    let mut files: Vec<_> = contents.files().collect();
    files.swap(2, 3);
    let refused = Contents::from_archive(&crate::archive::write(files.into_iter()).unwrap());
    assert!(matches!(refused, Err(Error::NotCanonical)));
    assert!(matches!(Contents::from_archive(&[0; 1024]), Err(Error::MissingFile { .. })));
}

#[test]
fn sizes_are_limited_before_they_are_read() {
    // A header that announces gigabytes, with nothing behind it: a bomb is refused by its header.
    for (path, most) in [("kernels.json", MAX_MANIFEST_BYTES), ("kernels.json.sig", 129)] {
        for size in [most + 1, 1 << 32, (1 << 33) - 1] {
            let refused = Contents::from_archive(&edited(path, |header| header.set_size(size)));
            assert!(matches!(refused, Err(Error::Limit { .. })), "{path} {size}: {refused:?}");
        }
    }
    for size in [0, 1, MAX_KERNEL_BYTES, 1 << 32] {
        let refused = Contents::from_archive(&edited("rope.wasm", |header| header.set_size(size)));
        assert!(matches!(refused, Err(Error::Length { .. })), "{size}");
    }
}

#[test]
fn sizes_that_are_no_numbers_are_refused() {
    for size in [&b"-0000000001\0"[..], b"zzzzzzzzzzz\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
    {
        let refused = Contents::from_archive(&edited("rope.wasm", |header| {
            header.as_old_mut().size.copy_from_slice(size);
        }));
        assert!(refused.is_err(), "{size:?}");
    }
}

#[test]
fn a_large_archive_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.tar");
    std::fs::File::create(&path).unwrap().set_len(MAX_ARCHIVE_BYTES + 1).unwrap();
    assert!(matches!(Contents::open(&path), Err(Error::Limit { .. })));
}

#[test]
fn compressed_files_are_no_archives() {
    for magic in [&b"PK\x03\x04"[..], b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"BZh9"] {
        let mut bytes = magic.to_vec();
        bytes.resize(2048, 1);
        assert!(Contents::from_archive(&bytes).is_err());
    }
}

#[test]
fn other_times_owners_and_modes_are_not_the_form_of_packs() {
    type Edit = fn(&mut Header);
    let edits: [Edit; 5] = [
        |header| header.set_mtime(1),
        |header| header.set_uid(1000),
        |header| header.set_mode(0o4755),
        |header| header.as_ustar_mut().unwrap().uname[0] = b'a',
        |header| header.as_old_mut().linkname[0] = b'a',
    ];
    for edit in edits {
        assert!(matches!(Contents::from_archive(&edited("rope.wasm", edit)), Err(Error::NotCanonical)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_altered_byte_of_an_archive_is_found(at: prop::sample::Index, mask in 1u8..) {
        let mut bytes = archive();
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        prop_assert!(Contents::from_archive(&bytes).and_then(verify).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert!(Contents::from_archive(&bytes).is_err());
    }
}
