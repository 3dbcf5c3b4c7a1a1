//! The writer refuses what the format does not allow, and files appear whole or not at all.

mod common;

use std::{fs, io};

use common::{sample, tensor};
use gguf_rs_lite::{
    Array, Error, Gguf, MAX_ARRAY_DEPTH, MAX_KEY_BYTES, Metadata, Reader, TensorInfo, TensorType, Value,
    Writer, write_file,
};

fn start(metadata: &Metadata, tensors: &[(&str, &[u64], TensorType)]) -> Result<Writer<Vec<u8>>, Error> {
    let tensors: Result<Vec<_>, _> =
        tensors.iter().map(|&(name, dims, tensor_type)| TensorInfo::new(name, dims, tensor_type)).collect();
    Writer::new(Vec::new(), metadata, tensors?)
}

fn two_tensors() -> Writer<Vec<u8>> {
    start(&Metadata::new(), &[("a", &[3], TensorType::F32), ("b", &[32], TensorType::Q4_0)]).expect("valid")
}

#[test]
fn chunks_of_any_size_make_the_same_file() {
    let mut whole = two_tensors();
    whole.write_tensor("a", &[1; 12]).expect("a");
    whole.write_tensor("b", &[2; 18]).expect("b");
    let whole = whole.finish().expect("complete");
    for size in [1, 5, 11] {
        let mut writer = two_tensors();
        for (byte, len) in [(1, 12), (2, 18)] {
            for chunk in vec![byte; len].chunks(size) {
                writer.write_chunk(chunk).expect("chunk");
            }
        }
        assert_eq!(writer.finish().expect("complete"), whole);
    }
    let mut copied = two_tensors();
    copied.write_chunk(&[1; 4]).expect("first bytes");
    copied.copy_from(&mut &[1; 20][..]).expect("the rest of a");
    copied.copy_from(&mut io::repeat(2)).expect("b");
    assert_eq!(copied.finish().expect("complete"), whole);
}

#[test]
fn missing_data_are_noticed() {
    let mut writer = two_tensors();
    writer.write_tensor("a", &[0; 12]).expect("a");
    writer.write_chunk(&[0; 17]).expect("most of b");
    assert_eq!(writer.remaining(), 1);
    assert!(matches!(
        writer.finish(),
        Err(Error::MissingData { name, written: 17, expected: 18 }) if name == "b"
    ));
    assert!(matches!(two_tensors().copy_from(&mut &[0; 11][..]), Err(Error::Read { .. })));
}

#[test]
fn data_of_the_wrong_size_or_order_are_refused() {
    let mut writer = two_tensors();
    assert!(matches!(writer.write_tensor("b", &[0; 18]), Err(Error::TensorOrder { .. })));
    assert!(matches!(writer.write_tensor("c", &[0; 18]), Err(Error::TensorOrder { .. })));
    assert!(matches!(writer.write_tensor("a", &[0; 11]), Err(Error::TensorSize { .. })));
    assert!(matches!(writer.write_chunk(&[0; 13]), Err(Error::TensorSize { .. })));
    writer.write_chunk(&[0; 4]).expect("a third of a");
    assert!(matches!(writer.write_tensor("a", &[0; 12]), Err(Error::TensorOrder { .. })));
    assert!(matches!(writer.write_chunk(&[0; 9]), Err(Error::TensorSize { given: 13, .. })));
    writer.write_chunk(&[0; 8]).expect("the rest of a");
    writer.write_tensor("b", &[0; 18]).expect("b");
    assert!(matches!(writer.write_chunk(&[0]), Err(Error::NoMoreTensors { bytes: 1 })));
    assert!(matches!(writer.write_tensor("b", &[0; 18]), Err(Error::TensorOrder { expected: None, .. })));
    writer.finish().expect("complete all the same");
}

#[test]
fn tensors_without_elements_need_no_data() {
    let tensors = [
        ("first", &[0][..], TensorType::F32),
        ("real", &[1], TensorType::F32),
        ("last", &[256, 0], TensorType::Q6_K),
    ];
    let mut writer = start(&Metadata::new(), &tensors).expect("valid");
    writer.write_tensor("last", &[]).expect("at any time");
    writer.write_tensor("first", &[]).expect("at any time");
    assert!(matches!(writer.write_tensor("first", &[1]), Err(Error::TensorSize { .. })));
    writer.write_tensor("real", &[1, 2, 3, 4]).expect("data");
    let model = Gguf::from_owner(writer.finish().expect("complete")).expect("valid");
    assert!(model.data("last").expect("present").is_empty());
    assert_eq!(model.data("real").expect("present").as_ref(), [1, 2, 3, 4]);
}

#[test]
fn bad_declarations_are_refused() {
    let none = Metadata::new();
    let refuse = |tensors: &[(&str, &[u64], TensorType)]| start(&none, tensors).expect_err("refused");
    assert!(matches!(refuse(&[("", &[1], TensorType::F32)]), Error::EmptyName { .. }));
    assert!(matches!(refuse(&[(&"n".repeat(65), &[1], TensorType::F32)]), Error::StringTooLong { .. }));
    assert!(matches!(refuse(&[("t", &[1; 5], TensorType::F32)]), Error::TooManyDims { n_dims: 5, .. }));
    assert!(matches!(refuse(&[("t", &[1 << 40, 1 << 40], TensorType::F32)]), Error::ShapeOverflow { .. }));
    assert!(matches!(refuse(&[("t", &[1 << 61, 2], TensorType::F32)]), Error::ShapeOverflow { .. }));
    assert!(matches!(
        refuse(&[("t", &[255, 256], TensorType::Q4_K)]),
        Error::BlockMisfit { row_len: 255, block_len: 256, .. }
    ));
    assert!(matches!(refuse(&[("t", &[], TensorType::Q8_0)]), Error::BlockMisfit { row_len: 1, .. }));
    let twice = [("t", &[1][..], TensorType::F32), ("t", &[2], TensorType::F16)];
    assert!(matches!(refuse(&twice), Error::DuplicateTensor { .. }));
    let vast = [("a", &[1 << 62][..], TensorType::I8), ("b", &[1 << 62], TensorType::I8)];
    assert!(matches!(refuse(&vast), Error::ShapeOverflow { .. }));
    // The public fields can be changed after the checks of `new`.
    let mut changed = TensorInfo::new("t", [32], TensorType::Q8_0).expect("valid");
    changed.dims[0] = 31;
    assert!(matches!(Writer::new(Vec::new(), &none, [changed]), Err(Error::BlockMisfit { .. })));
}

#[test]
fn bad_metadata_are_refused() {
    let refuse = |key: &str, value: Value| {
        let metadata = [(key, value)].into_iter().collect();
        start(&metadata, &[]).expect_err("refused")
    };
    assert!(matches!(refuse("", 1u8.into()), Error::EmptyName { .. }));
    let long = "k".repeat(MAX_KEY_BYTES as usize + 1);
    assert!(matches!(refuse(&long, 1u8.into()), Error::StringTooLong { .. }));
    for bad in [Value::U32(0), Value::U32(4), Value::U32(24), Value::U64(32), Value::from("32")] {
        assert!(matches!(refuse("general.alignment", bad), Error::BadAlignment { .. }));
    }
    let nest = |depth| (1..depth).fold(Array::U8(vec![1]), |inner, _| Array::Array(vec![inner]));
    assert!(matches!(refuse("k", nest(MAX_ARRAY_DEPTH + 1).into()), Error::ArrayTooDeep { .. }));

    let deepest = [("k", nest(MAX_ARRAY_DEPTH))].into_iter().collect();
    let file = start(&deepest, &[]).and_then(Writer::finish).expect("allowed");
    assert_eq!(Gguf::from_owner(file).expect("readable").metadata(), &deepest);
}

#[test]
fn a_full_sink_is_reported() {
    let mut space = [0u8; 100];
    let tensors = [TensorInfo::new("t", [64], TensorType::F32).expect("valid")];
    let mut writer = Writer::new(&mut space[..], &Metadata::new(), tensors).expect("the header fits");
    assert!(matches!(writer.write_tensor("t", &[0; 256]), Err(Error::Write { .. })));
    assert!(matches!(Writer::new(&mut [0u8; 10][..], &Metadata::new(), []), Err(Error::Write { .. })));
}

/// Names in a folder.
fn listing(dir: &std::path::Path) -> Vec<String> {
    let name =
        |entry: io::Result<fs::DirEntry>| entry.expect("entry").file_name().into_string().expect("name");
    fs::read_dir(dir).expect("folder").map(name).collect()
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("model.gguf");
    let metadata = [("general.name", "one")].into_iter().collect();
    let (info, data) = tensor("t", &[4], TensorType::F32);
    write_file(&path, &metadata, [info.clone()], |writer| writer.write_tensor("t", &data)).expect("written");
    assert_eq!(Gguf::open(&path).expect("valid").data("t").expect("data").as_ref(), data);

    // A failure leaves the old file and nothing else.
    let incomplete = write_file(&path, &Metadata::new(), [info.clone()], |_| Ok::<_, Error>(()));
    assert!(matches!(incomplete, Err(Error::MissingData { .. })));
    let mine =
        write_file(&path, &Metadata::new(), [info], |_| Err(Box::<dyn std::error::Error>::from("stop")));
    assert_eq!(mine.expect_err("refused").to_string(), "stop");
    assert_eq!(Gguf::open(&path).expect("valid").metadata(), &metadata);
    assert_eq!(listing(dir.path()), ["model.gguf"]);

    // A success replaces it, and a model opened before keeps its data. Windows replaces no file
    // that is mapped: an error, and the old file stays.
    let old = Gguf::open(&path).expect("valid");
    let replaced = write_file(&path, &Metadata::new(), [], |_| Ok::<_, Error>(()));
    assert_eq!(replaced.is_ok(), cfg!(unix), "{replaced:?}");
    assert_eq!(Gguf::open(&path).expect("valid").tensors().count(), usize::from(!cfg!(unix)));
    assert_eq!(old.data("t").expect("data").as_ref(), data);
    assert_eq!(listing(dir.path()), ["model.gguf"]);
}

#[test]
fn paths_that_cannot_be_files_are_reported() {
    let dir = tempfile::tempdir().expect("folder");
    let write = |path: &std::path::Path| {
        write_file(path, &Metadata::new(), [], |_| Ok::<_, Error>(())).expect_err("refused")
    };
    assert!(matches!(write(&dir.path().join("missing/model.gguf")), Error::File { action: "create", .. }));
    assert!(matches!(write(std::path::Path::new("/")), Error::File { action: "create", .. }));
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).expect("folder");
    assert!(matches!(write(&folder), Error::File { action: "create", .. }));
    assert_eq!(listing(dir.path()), ["folder"]);

    assert!(matches!(Gguf::open(&folder), Err(Error::NotAFile { .. })));
    assert!(matches!(Gguf::open(dir.path().join("missing")), Err(Error::File { action: "open", .. })));
    let empty = dir.path().join("empty");
    fs::write(&empty, []).expect("written");
    assert!(matches!(Gguf::open(&empty), Err(Error::Truncated { needed: 4, available: 0, .. })));
}

#[test]
fn the_reader_reads_parts_of_a_tensor() {
    let mut reader = Reader::new(io::Cursor::new(sample())).expect("valid");
    let mut all = Vec::new();
    reader.read("token_embd.weight", &mut all).expect("data");
    let mut some = [0; 10];
    reader.read_at("token_embd.weight", 92, &mut some).expect("the last ten bytes");
    assert_eq!(some, all[92..]);
    assert!(matches!(
        reader.read_at("token_embd.weight", 93, &mut some),
        Err(Error::BeyondTensor { start: 93, end: 103, bytes: 102, .. })
    ));
    assert!(matches!(
        reader.read_at("token_embd.weight", u64::MAX, &mut some),
        Err(Error::BeyondTensor { .. })
    ));
    assert!(matches!(reader.read("nothing", &mut all), Err(Error::NoTensor { .. })));
    assert_eq!(reader.tensor("scalar").expect("present").rows_cols(), (1, 1));
    assert_eq!(reader.header().alignment, 64);
    assert_eq!(reader.into_inner().into_inner(), sample());
}
