//! Round trips: written files read back the same, and damaged files never do more than fail.

mod common;

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use common::{build, config, metadata, sample, tensors};
use gguf_rs_lite::{Error, Gguf, Header, Reader};
use proptest::{collection::vec, prelude::*};

/// A stream that gives few bytes at a time.
struct Dribble<R>(R);

impl<R: Read> Read for Dribble<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = out.len().min(3);
        self.0.read(&mut out[..n])
    }
}

impl<R: Seek> Seek for Dribble<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Parses a file both ways; the readers must agree.
fn parse_both(file: &[u8]) -> Result<Header, Error> {
    let parsed = Header::parse(file);
    let streamed = Header::read(&mut Cursor::new(file));
    match (&parsed, &streamed) {
        (Ok(a), Ok(b)) => assert_eq!(format!("{a:?}"), format!("{b:?}")),
        (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
        (a, b) => panic!("readers disagree: {a:?}, {b:?}"),
    }
    parsed
}

/// Parses a file that may be damaged, and touches all of it that is offered.
fn survive(file: &[u8]) {
    if parse_both(file).is_err() {
        return;
    }
    let mut reader = Reader::new(Cursor::new(file)).expect("parsed before");
    // A damaged file may say that it is one part of several.
    if let Ok(model) = Gguf::from_owner(file.to_vec()) {
        let mut streamed = Vec::new();
        for tensor in model.tensors() {
            reader.read(tensor, &mut streamed).expect("data of a listed tensor");
            assert_eq!(model.data(tensor).expect("data of a listed tensor").as_ref(), streamed);
        }
    }
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn what_is_written_reads_back(metadata in metadata(), tensors in tensors()) {
        let file = build(&metadata, &tensors);
        let model = Gguf::from_owner(file.clone()).expect("a written file opens");
        let mut reader = Reader::new(Dribble(Cursor::new(&file))).expect("a written file opens");

        prop_assert_eq!(model.version(), 3);
        prop_assert_eq!(model.header(), reader.header());
        prop_assert_eq!(model.metadata(), &metadata);
        prop_assert_eq!(model.tensors().count(), tensors.len());
        let mut streamed = Vec::new();
        for (read, (written, data)) in model.tensors().zip(&tensors) {
            prop_assert_eq!(&read.name, &written.name);
            prop_assert_eq!(&read.dims, &written.dims);
            prop_assert_eq!(read.tensor_type, written.tensor_type);
            prop_assert_eq!(read.bytes(), data.len() as u64);
            let mapped = model.data(read).expect("data");
            prop_assert_eq!(mapped.as_bytes(), data);
            reader.read(read, &mut streamed).expect("data");
            prop_assert_eq!(&streamed, data);
        }
    }

    #[test]
    fn mutations_never_panic(
        metadata in metadata(),
        tensors in tensors(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut file = build(&metadata, &tensors);
        for (at, byte) in edits {
            let at = at.index(file.len());
            file[at] = byte;
        }
        survive(&file);
    }

    #[test]
    fn any_bytes_after_the_magic_never_panic(version in 2u32..4, rest in vec(any::<u8>(), 0..300)) {
        let mut file = b"GGUF".to_vec();
        file.extend(version.to_le_bytes());
        file.extend(rest);
        survive(&file);
    }
}

#[test]
fn every_single_byte_can_be_damaged() {
    let file = sample();
    let header_len = Header::parse(&file).expect("valid").data_offset as usize;
    for at in 0..header_len {
        for byte in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut damaged = file.clone();
            damaged[at] = byte;
            survive(&damaged);
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let file = sample();
    let header = Header::parse(&file).expect("valid");
    let end = |t: &gguf_rs_lite::TensorInfo| header.data_offset + t.offset + t.bytes();
    let needed = header.tensors.iter().map(end).max().expect("tensors") as usize;
    for len in 0..needed {
        let error = parse_both(&file[..len]).expect_err("a cut file");
        let shows_cut = matches!(
            error,
            Error::Truncated { .. }
                | Error::CountTooLarge { .. }
                | Error::StringTooLong { .. }
                | Error::TensorOutOfFile { .. }
        );
        assert!(shows_cut, "cut at {len}: {error:?}");
    }
    for len in needed..=file.len() {
        parse_both(&file[..len]).expect("only padding is missing");
    }
}

#[test]
fn version_2_reads_like_version_3() {
    let mut file = sample();
    let v3 = parse_both(&file).expect("valid");
    file[4] = 2;
    let v2 = parse_both(&file).expect("valid");
    assert_eq!(v2.version, 2);
    assert_eq!((v2.metadata, v2.tensors, v2.data_offset), (v3.metadata, v3.tensors, v3.data_offset));
}

/// A stream that breaks after some bytes.
struct Broken<'a> {
    file: Cursor<&'a [u8]>,
    good: u64,
}

impl Read for Broken<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.good.saturating_sub(self.file.position());
        if left == 0 {
            return Err(io::Error::other("the disk is on fire"));
        }
        let n = out.len().min(left as usize);
        self.file.read(&mut out[..n])
    }
}

impl Seek for Broken<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn a_failing_stream_is_reported_with_its_place() {
    let file = sample();
    for good in [0, 5, 100, 300] {
        let error =
            Header::read(&mut Broken { file: Cursor::new(&file), good }).expect_err("a broken stream");
        assert!(matches!(error, Error::Read { .. }), "{error:?}");
        assert!(error.place().and_then(|place| place.offset).expect("offset") <= good);
    }
}

/// A stream that claims more bytes than it has, like a file that is being shortened.
#[test]
fn a_stream_that_ends_early_is_truncated() {
    struct Shrunk<'a>(Cursor<&'a [u8]>);
    impl Read for Shrunk<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.0.read(out)
        }
    }
    impl Seek for Shrunk<'_> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            Ok(self.0.seek(to)? + if matches!(to, SeekFrom::End(_)) { 1 << 40 } else { 0 })
        }
    }
    let file = sample();
    let error = Header::read(&mut Shrunk(Cursor::new(&file[..200]))).expect_err("a cut stream");
    assert!(matches!(error, Error::Truncated { .. }), "{error:?}");

    // A length within a huge "file" must not be believed as far as an allocation goes.
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend(0u64.to_le_bytes());
    header.extend(1u64.to_le_bytes());
    header.extend(1u64.to_le_bytes());
    header.extend(b"k\x09\0\0\0\0\0\0\0");
    header.extend((1u64 << 36).to_le_bytes());
    let error = Header::read(&mut Shrunk(Cursor::new(&header))).expect_err("an array of 64 GiB");
    assert!(matches!(error, Error::CountTooLarge { .. }), "{error:?}");
}

/// Quadratic work on names or offsets would not come to an end here.
#[test]
fn many_tensors_and_keys_are_no_burden() {
    let metadata = (0..50_000u32).map(|i| (format!("key.{i}"), i)).collect();
    let tensors: Vec<_> =
        (0..50_000).map(|i| common::tensor(&format!("t{i}"), &[1], gguf_rs_lite::TensorType::I8)).collect();
    let model = Gguf::from_owner(build(&metadata, &tensors)).expect("valid");
    assert_eq!(model.metadata().get_u64("key.49999").expect("integer"), Some(49_999));
    assert_eq!(model.data("t49999").expect("data").as_ref(), &tensors[49_999].1);
}
