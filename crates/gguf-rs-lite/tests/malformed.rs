//! Malformed files give the results of their manifest, with the mapped and the streaming reader.

mod common;

use std::{fs, io::Cursor};

use common::data_dir;
use gguf_rs_lite::{Error, Gguf, Header, Reader};

/// One line of the manifest.
struct Case {
    file: String,
    bytes: Vec<u8>,
    verdict: String,
    kind: Option<String>,
}

fn cases() -> Vec<Case> {
    let dir = data_dir("malformed");
    let manifest = fs::read(dir.join("manifest.json")).expect("manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let text = |v: &serde_json::Value| v.as_str().map(str::to_owned);
    let case = |v: &serde_json::Value| {
        let file = text(&v["file"]).expect("file");
        let bytes = fs::read(dir.join(&file)).expect("a listed file");
        assert_eq!(Some(bytes.len() as u64), v["bytes"].as_u64(), "{file}: length");
        Case { file, bytes, verdict: text(&v["verdict"]).expect("verdict"), kind: text(&v["error_kind"]) }
    };
    manifest["cases"].as_array().expect("cases").iter().map(case).collect()
}

/// Opens a case in all ways, checks that they agree, and answers their common result.
fn open(case: &Case) -> Result<Header, Error> {
    let parsed = Header::parse(&case.bytes);
    let streamed = Reader::new(Cursor::new(&case.bytes)).map(|reader| reader.header().clone());
    let mapped = Gguf::open(data_dir("malformed").join(&case.file)).map(|model| model.header().clone());
    let owned = Gguf::from_owner(case.bytes.clone()).map(|model| model.header().clone());
    for other in [streamed, mapped, owned] {
        match (&parsed, &other) {
            // By text, because NaN does not equal itself.
            (Ok(a), Ok(b)) => assert_eq!(format!("{a:?}"), format!("{b:?}"), "{}", case.file),
            (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string(), "{}", case.file),
            (a, b) => panic!("{}: readers disagree: {a:?}, {b:?}", case.file),
        }
    }
    parsed
}

/// True if an error is of the kind that the manifest names.
fn is_kind(error: &Error, kind: &str) -> bool {
    match kind {
        "bad_magic" => matches!(error, Error::BadMagic { .. }),
        "unsupported_version" => matches!(error, Error::UnsupportedVersion { .. } | Error::BigEndian { .. }),
        "count_too_large" | "array_too_large" => matches!(error, Error::CountTooLarge { .. }),
        // A count that the rest of the file cannot hold is how most cuts show.
        "truncated" => matches!(
            error,
            Error::Truncated { .. }
                | Error::CountTooLarge { .. }
                | Error::StringTooLong { .. }
                | Error::TensorOutOfFile { .. }
        ),
        // In a tiny file the count of what should hold the string is refused first.
        "string_too_long" => matches!(error, Error::StringTooLong { .. } | Error::CountTooLarge { .. }),
        "bad_utf8" => matches!(error, Error::InvalidUtf8 { .. }),
        "duplicate_key" => matches!(error, Error::DuplicateKey { .. }),
        "bad_value_type" => matches!(error, Error::UnknownValueType { .. }),
        "bad_value" => matches!(error, Error::BadBool { .. }),
        "nested_array" => matches!(error, Error::ArrayTooDeep { .. }),
        // An enormous alignment is allowed in itself; it shows in where the data would have to
        // start.
        "bad_alignment" => matches!(
            error,
            Error::BadAlignment { .. } | Error::TensorOutOfFile { .. } | Error::MisalignedTensor { .. }
        ),
        "unknown_tensor_type" => {
            matches!(error, Error::UnknownTensorType { .. } | Error::RemovedTensorType { .. })
        }
        "duplicate_tensor" => matches!(error, Error::DuplicateTensor { .. }),
        "overlap" => matches!(error, Error::TensorOverlap { .. }),
        "bad_offset" => matches!(error, Error::MisalignedTensor { .. }),
        "tensor_out_of_file" => matches!(error, Error::TensorOutOfFile { .. }),
        "shape_overflow" => matches!(error, Error::ShapeOverflow { .. }),
        "too_many_dims" => matches!(error, Error::TooManyDims { .. }),
        "block_misfit" => matches!(error, Error::BlockMisfit { .. }),
        "bad_name" => matches!(error, Error::EmptyName { .. }),
        "parse_error" => true,
        other => panic!("the manifest has a new kind {other}"),
    }
}

#[test]
fn verdicts_agree_with_the_manifest() {
    let cases = cases();
    assert!(cases.len() >= 100, "only {} cases", cases.len());
    for case in &cases {
        match (open(case), case.verdict.as_str()) {
            (Ok(_), "accept" | "either") => {}
            (Err(error), "reject" | "either") => {
                // One key too many shifts everything after it; what then fails first depends on the
                // reader.
                let shifted = case.file == "count_kv_one_more.gguf";
                if let Some(kind) = case.kind.as_ref().filter(|_| !shifted) {
                    assert!(is_kind(&error, kind), "{}: {kind} meant, got {error:?}", case.file);
                }
            }
            (result, verdict) => panic!("{}: {verdict} meant, got {result:?}", case.file),
        }
    }
}

#[test]
fn every_file_is_in_the_manifest() {
    let listed: Vec<String> = cases().into_iter().map(|case| case.file).collect();
    for entry in fs::read_dir(data_dir("malformed")).expect("folder") {
        let name = entry.expect("entry").file_name().into_string().expect("a plain name");
        assert!(!name.ends_with(".gguf") || listed.contains(&name), "{name} is not listed");
    }
}

/// The files that the manifest leaves open are refused as the crate documentation says.
#[test]
fn open_questions_keep_their_answers() {
    let refused: Vec<String> = cases()
        .into_iter()
        .filter(|case| case.verdict == "either" && open(case).is_err())
        .map(|case| case.file)
        .collect();
    let expected = [
        "key_empty.gguf",
        "value_invalid_utf8.gguf",
        "key_too_long.gguf",
        "bool_2.gguf",
        "alignment_1.gguf",
        "alignment_4.gguf",
        "tensor_name_empty.gguf",
        "tensor_name_invalid_utf8.gguf",
    ];
    assert_eq!(refused, expected);
}

#[test]
fn errors_name_a_byte_inside_the_file_and_a_field() {
    for case in cases() {
        let Err(error) = open(&case) else { continue };
        let Some(place) = error.place() else {
            assert!(
                matches!(
                    error,
                    Error::BadMagic { .. } | Error::UnsupportedVersion { .. } | Error::BigEndian { .. }
                ),
                "{}: no place in {error:?}",
                case.file
            );
            continue;
        };
        let offset = place.offset.expect("an offset");
        assert!(offset <= case.bytes.len() as u64, "{}: byte {offset}", case.file);
        assert!(!place.field.is_empty());
        let text = error.to_string();
        assert!(text.contains(&format!("byte {offset}")) && !text.contains('\n'), "{}: {text}", case.file);
    }
}

/// The tensors of accepted files can all be read, and both readers give the same bytes.
#[test]
fn accepted_data_are_the_same_in_both_readers() {
    for case in cases() {
        let Ok(mut reader) = Reader::new(Cursor::new(&case.bytes)) else { continue };
        let model = Gguf::from_owner(case.bytes.clone()).expect("the readers agree");
        let mut streamed = Vec::new();
        for tensor in model.tensors() {
            reader.read(tensor, &mut streamed).expect("data");
            assert_eq!(
                model.data(tensor).expect("data").as_ref(),
                streamed,
                "{}: {}",
                case.file,
                tensor.name
            );
        }
    }
}
