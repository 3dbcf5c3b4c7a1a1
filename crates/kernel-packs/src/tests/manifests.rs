//! Manifests with faults.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{complete, draft, source};
use crate::limits::{MAX_KERNELS, MAX_MANIFEST_BYTES};
use crate::manifest::{Category, DType, Fallback, ParameterType, WasmFeature};
use crate::{Contents, Error, Manifest};

fn parse(value: &Value) -> Result<Manifest, Error> {
    Manifest::parse(value.to_string().as_bytes())
}

/// Complete manifest with a value at a JSON pointer.
fn with(pointer: &str, value: Value) -> Value {
    let mut manifest = complete();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match manifest.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[name.parse::<usize>().unwrap()] = value,
        parent => parent[name] = value,
    }
    manifest
}

/// Text of the error of a manifest with a value at a JSON pointer.
#[track_caller]
fn fault(pointer: &str, value: Value) -> String {
    let error = parse(&with(pointer, value)).unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    format!("{error} {source}")
}

#[test]
fn a_manifest_with_every_field_is_read() {
    let manifest = parse(&complete()).unwrap();
    assert_eq!(manifest.title(), "core 1.0.0");
    let kernel = manifest.kernel("rms-norm-f32").unwrap();
    assert_eq!((kernel.category, kernel.entry_point.as_str()), (Category::RmsNorm, "rms_norm"));
    assert_eq!(kernel.limits.memory_pages, 64);
    let rope = manifest.kernel("rope-f32").unwrap();
    assert_eq!((rope.entry_point.as_str(), rope.limits.epoch_ticks), ("kernel_forward", 1000));
    assert!(manifest.kernel("none").is_none());
    let again = Manifest::parse(&manifest.to_bytes().unwrap()).unwrap();
    assert_eq!(again, manifest);
}

#[test]
fn names_in_documents_are_those_of_the_types() {
    let text = |value: Value| value.as_str().unwrap().to_owned();
    let all = [
        Category::ALL.map(|x| (text(json!(x)), x.name())).to_vec(),
        DType::ALL.map(|x| (text(json!(x)), x.name())).to_vec(),
        ParameterType::ALL.map(|x| (text(json!(x)), x.name())).to_vec(),
        WasmFeature::ALL.map(|x| (text(json!(x)), x.name())).to_vec(),
    ];
    all.concat().iter().for_each(|(document, name)| assert_eq!(document, name));
}

#[test]
fn unknown_fields_are_refused_at_every_level() {
    for pointer in [
        "/more",
        "/author/more",
        "/kernels/0/more",
        "/kernels/0/inputs/0/more",
        "/kernels/0/parameters/0/more",
        "/kernels/0/limits/more",
        "/kernels/0/platforms/more",
        "/kernels/0/platforms/wasmtime/more",
        "/kernels/0/platforms/wasmi/more",
        "/kernels/0/benchmarks/0/more",
        "/fallbacks/0/more",
    ] {
        assert!(fault(pointer, json!(1)).contains("unknown field `more`"), "{pointer}");
    }
}

#[test]
fn repeated_json_keys_are_refused() {
    let text = complete().to_string();
    for (key, twice) in [
        ("\"name\":\"core\"", "\"name\":\"core\",\"name\":\"other\""),
        ("\"schema_version\":1", "\"schema_version\":1,\"schema_version\":1"),
        ("\"dtype\":\"f32\"", "\"dtype\":\"f32\",\"dtype\":\"f16\""),
        ("\"memory_pages\":64", "\"memory_pages\":64,\"memory_pages\":65"),
        ("\"fallback\":\"rms-norm-plain\"", "\"fallback\":\"none\",\"fallback\":\"rms-norm-plain\""),
    ] {
        assert!(text.contains(key), "{key}");
        match Manifest::parse(text.replacen(key, twice, 1).as_bytes()) {
            Err(Error::Json { source, .. }) => assert!(source.to_string().contains("duplicate field")),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn lists_objects_and_texts_are_not_exchanged() {
    let author = json!(["Acme", "kernels@acme.example", complete()["author"]["signing_key"]]);
    for (pointer, value, place) in [
        ("/author", author, "kernels.json.author"),
        ("/kernels/0/limits", json!([]), "kernels.json.kernels[0].limits"),
        ("/kernels/0/inputs/1", json!(["weight", "f32", ["dim"]]), "kernels[0].inputs[1]"),
        ("/fallbacks/0", json!(["rms_norm", "native"]), "kernels.json.fallbacks[0]"),
        ("/kernels/0/category", json!({"rms_norm": null}), "kernels.json.kernels[0].category"),
        ("/kernels/0/inputs/0/dtype", json!({"f32": null}), "kernels[0].inputs[0].dtype"),
    ] {
        let fault = fault(pointer, value);
        assert!(fault.contains(place) && fault.contains("of another kind"), "{fault}");
    }
}

#[test]
fn null_is_no_value() {
    for pointer in ["/$schema", "/max_runtime_version", "/kernels/0/fallback", "/kernels/0/platforms/wasmi"] {
        fault(pointer, Value::Null);
    }
}

#[test]
fn other_versions_of_the_format_are_named() {
    let mut newer = complete();
    newer["schema_version"] = json!(2);
    newer["field_of_version_2"] = json!(true);
    assert!(matches!(parse(&newer), Err(Error::SchemaVersion { found: 2, known: 1, .. })));
}

#[test]
fn ids_are_plain_and_unique() {
    for id in ["", "A", "a b", "../a", "a/b", "a\\b", ".a", "-a", "a.", "con", "lpt1", "é", "a\u{1b}[31m"] {
        assert!(fault("/kernels/0/id", json!(id)).contains("kernels[0].id: "), "{id:?}");
        fault("/name", json!(id));
    }
    for id in ["native", "none"] {
        assert!(fault("/kernels/0/id", json!(id)).contains("are fallbacks"), "{id}");
    }
    let twice = with("/kernels/2/id", json!("rms-norm-plain"));
    assert!(matches!(parse(&twice), Err(Error::Duplicate { id, .. }) if id == "rms-norm-plain"));
    fault("/kernels/0/id", json!("a".repeat(65)));
}

#[test]
fn paths_that_lead_out_of_the_pack_are_refused() {
    for path in ["../x.wasm", "/x.wasm", "a/../../x", "a\\x", "c:x", "kernels//x", "./x", "X.wasm", "a/nul"] {
        let refused = parse(&with("/kernels/2/path", json!(path)));
        assert!(matches!(refused, Err(Error::Path { .. })), "{path}");
    }
}

#[test]
fn paths_of_manifest_and_signature_are_reserved() {
    for path in ["kernels.json", "kernels.json.sig", "kernels.json/x"] {
        let refused = parse(&with("/kernels/2/path", json!(path)));
        assert!(matches!(refused, Err(Error::Path { .. })), "{path}");
    }
}

#[test]
fn no_file_is_the_folder_of_another() {
    let refused = parse(&with("/kernels/2/path", json!("kernels")));
    assert!(matches!(refused, Err(Error::Path { why, .. }) if why.contains("a folder of another path")));
}

#[test]
fn kernels_of_one_file_agree_about_it() {
    assert!(fault("/kernels/1/bytes", json!(5)).contains("differ from those of rms-norm-f32"));
}

#[test]
fn texts_are_one_visible_line() {
    for text in ["", " ", "a\nb", "a\u{1b}[2J", "a\u{0}", "a\u{202e}b", "a\u{2066}b", &"a".repeat(2049)] {
        for pointer in ["/description", "/author/name", "/author/email", "/kernels/0/name"] {
            fault(pointer, json!(text));
        }
    }
}

#[test]
fn values_out_of_range_name_their_place() {
    for (pointer, value, expected) in [
        ("/version", json!("1.0"), "unexpected end"),
        ("/version", json!("1.0.0+build"), "no build metadata"),
        ("/version", json!(format!("1.0.0-{}", "a".repeat(50))), "at most 40 bytes"),
        ("/max_runtime_version", json!("0.1.0"), "must be above min_runtime_version"),
        ("/created", json!("yesterday"), "UTC time"),
        ("/kernels", json!([]), "at least one kernel"),
        ("/kernels/0/inputs", json!([]), "at least one input"),
        ("/kernels/0/outputs", json!([]), "at least one input and one output"),
        ("/kernels/0/inputs/0/shape", json!([]), "at least one dimension"),
        ("/kernels/0/inputs/0/shape", json!([0]), "at least 1"),
        ("/kernels/0/inputs/0/shape", json!([1u64 << 40]), "2147483648 is the most"),
        ("/kernels/0/inputs/0/shape", json!([1, 1, 1, 1, 1, 1, 1, 1, 1]), "8 is the most"),
        ("/kernels/0/inputs/0/shape", json!([-1]), "a size or a symbol"),
        ("/kernels/0/inputs/0/shape", json!(["Rows"]), "lower-case letters"),
        ("/kernels/0/inputs/0/dtype", json!("f8"), "unknown variant"),
        ("/kernels/0/inputs/1/name", json!("x"), "there twice"),
        ("/kernels/0/outputs/0/shape", json!(["cols"]), "how large cols is"),
        ("/kernels/0/outputs/0/shape", json!(["eps"]), "how large eps is"),
        ("/kernels/0/category", json!("matmul"), "unknown variant"),
        ("/kernels/0/entry_point", json!("1x"), "no digit first"),
        ("/kernels/0/entry_point", json!("a.b"), "no digit first"),
        ("/kernels/0/limits/memory_pages", json!(0), "at least 1"),
        ("/kernels/0/limits/memory_pages", json!(65_536), "16384 is the most"),
        ("/kernels/0/limits/epoch_ticks", json!(1_000_000), "6000 is the most"),
        ("/kernels/0/limits/table_elements", json!(u32::MAX), "65536 is the most"),
        ("/kernels/0/platforms", json!({}), "at least one of wasmtime and wasmi"),
        ("/kernels/0/platforms/wasmtime/features", json!(["simd128", "simd128"]), "there twice"),
        ("/kernels/0/platforms/wasmtime/features", json!(["threads"]), "unknown variant"),
        ("/kernels/0/benchmarks/0/median_us", json!(0), "above 0"),
        ("/kernels/0/sha256", json!("AB"), "64 lower-case hexadecimal digits"),
        ("/kernels/0/bytes", json!(9 << 20), "8388608 is the most"),
        ("/author/signing_key", json!("0"), "16 lower-case hexadecimal digits"),
    ] {
        let fault = fault(pointer, value);
        assert!(fault.contains(expected), "{pointer}: {fault}");
    }
}

#[test]
fn defaults_of_parameters_have_their_type() {
    for (kind, good, bad) in [
        ("bool", json!(true), json!(1)),
        ("i32", json!(-5), json!(1i64 << 31)),
        ("u32", json!(u32::MAX), json!(-1)),
        ("i64", json!(i64::MIN), json!(1.5)),
        ("i64", json!(i64::MAX), json!(u64::MAX)),
        ("f32", json!(1), json!(1e39)),
        ("f64", json!(1e39), json!(false)),
        ("f64", json!(0.5), json!("0.5")),
    ] {
        let parameter = |default| json!({"name": "p", "type": kind, "default": default});
        assert!(parse(&with("/kernels/0/parameters/0", parameter(good))).is_ok(), "{kind}");
        fault("/kernels/0/parameters/0", parameter(bad));
    }
    let huge = complete().to_string().replace("1e-6", "1e999");
    assert!(matches!(Manifest::parse(huge.as_bytes()), Err(Error::Json { .. })));
    let twice = json!([{"name": "p", "type": "f32"}, {"name": "p", "type": "f32"}]);
    assert!(fault("/kernels/0/parameters", twice).contains("there twice"));
}

#[test]
fn integer_parameters_can_be_sizes() {
    let mut manifest = with("/kernels/2/outputs/0/shape", json!(["position"]));
    assert!(parse(&manifest).is_ok());
    manifest["kernels"][2]["parameters"][0]["type"] = json!("f32");
    assert!(parse(&manifest).is_err());
}

#[test]
fn fallbacks_exist_and_end() {
    let manifest = parse(&complete()).unwrap();
    let fallback = |id: &str| manifest.fallback(manifest.kernel(id).unwrap()).to_string();
    assert_eq!(fallback("rms-norm-f32"), "rms-norm-plain");
    assert_eq!((fallback("rms-norm-plain"), fallback("rope-f32")), ("native".into(), "native".into()));
    for (pointer, value, expected) in [
        ("/kernels/0/fallback", "absent", "id of a kernel of the pack"),
        ("/kernels/0/fallback", "rope-f32", "of the category rope, not rms_norm"),
        ("/kernels/0/fallback", "rms-norm-f32", "in a circle"),
        ("/kernels/1/fallback", "rms-norm-f32", "in a circle"),
        ("/fallbacks/0/fallback", "rope-f32", "of the category rope"),
        ("/fallbacks/0/fallback", "rms-norm-f32", "in a circle"),
    ] {
        assert!(fault(pointer, json!(value)).contains(expected), "{pointer} {value}");
    }
    // The category's fallback is not its own.
    let manifest = parse(&with("/fallbacks/0/fallback", json!("rms-norm-plain"))).unwrap();
    assert_eq!(manifest.fallback(manifest.kernel("rms-norm-plain").unwrap()), Fallback::Native);
    let twice = json!([{"category": "rope", "fallback": "none"}, {"category": "rope", "fallback": "none"}]);
    assert!(fault("/fallbacks", twice).contains("there twice"));
}

#[test]
fn other_operations_have_no_native_kernel() {
    let manifest = parse(&with("/kernels/2/category", json!("other"))).unwrap();
    assert_eq!(manifest.fallback(manifest.kernel("rope-f32").unwrap()), Fallback::None);
    let mut native = with("/kernels/2/category", json!("other"));
    native["kernels"][2]["fallback"] = json!("native");
    assert!(matches!(parse(&native), Err(Error::Field { why, .. }) if why.contains("no native kernel")));
}

#[test]
fn a_huge_manifest_is_refused_before_it_is_parsed() {
    let mut bytes = complete().to_string().into_bytes();
    bytes.resize(MAX_MANIFEST_BYTES as usize, b' ');
    assert!(Manifest::parse(&bytes).is_ok());
    bytes.push(b' ');
    assert!(matches!(Manifest::parse(&bytes), Err(Error::Limit { .. })));
}

#[test]
fn too_many_kernels_are_refused() {
    let mut manifest = complete();
    let kernel = manifest["kernels"][2].clone();
    let kernels = (0..=MAX_KERNELS).map(|n| {
        let mut kernel = kernel.clone();
        kernel["id"] = json!(format!("k{n}"));
        kernel
    });
    let kernels: Vec<Value> = kernels.collect();
    manifest["fallbacks"] = json!([]);
    manifest["kernels"] = json!(kernels[..MAX_KERNELS]);
    assert!(parse(&manifest).is_ok());
    manifest["kernels"] = json!(kernels);
    assert!(matches!(parse(&manifest), Err(Error::Limit { found: 257, most: 256, .. })));
}

#[test]
fn all_files_together_have_a_limit() {
    let mut manifest = complete();
    let kernel = manifest["kernels"][2].clone();
    let kernels = (0..9).map(|n| {
        let mut kernel = kernel.clone();
        (kernel["id"], kernel["path"]) = (json!(format!("k{n}")), json!(format!("k{n}.wasm")));
        kernel["bytes"] = json!(8 << 20);
        kernel
    });
    let kernels: Vec<Value> = kernels.collect();
    manifest["fallbacks"] = json!([]);
    manifest["kernels"] = json!(kernels[..8]);
    assert!(parse(&manifest).is_ok());
    manifest["kernels"] = json!(kernels);
    assert!(matches!(parse(&manifest), Err(Error::Limit { what, .. }) if what.contains("all kernel files")));
}

#[test]
fn deep_documents_are_refused() {
    let deep = "[".repeat(1 << 17);
    assert!(matches!(Manifest::parse(deep.as_bytes()), Err(Error::Json { .. })));
    let inside = complete().to_string().replace("[\"dim\"]", &deep);
    assert!(matches!(Manifest::parse(inside.as_bytes()), Err(Error::Json { .. })));
}

#[test]
fn data_behind_the_document_is_refused() {
    for more in ["x", "{}", "\0", "\u{feff}"] {
        let text = complete().to_string() + more;
        assert!(matches!(Manifest::parse(text.as_bytes()), Err(Error::Json { .. })), "{more:?}");
    }
}

#[test]
fn text_that_is_not_utf_8_is_refused() {
    let mut bytes = complete().to_string().into_bytes();
    let at = bytes.windows(4).position(|text| text == b"Acme").unwrap();
    bytes[at] = 0xff;
    assert!(matches!(Manifest::parse(&bytes), Err(Error::Json { .. })));
}

#[test]
fn drafts_may_lack_what_building_adds() {
    let text = draft("1.0.0").to_string();
    assert!(Manifest::parse_draft(text.as_bytes()).is_ok());
    assert!(
        matches!(Manifest::parse(text.as_bytes()), Err(Error::Field { why, .. }) if why.contains("Contents::build"))
    );
    let unsigned = Contents::build(source(&draft("1.0.0")).path(), None);
    assert!(matches!(unsigned, Err(Error::Field { place, .. }) if place == "author.signing_key"));
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in r#"[{}\[\]",:a-z0-9.\\ ]{0,200}"#) {
        let _ = Manifest::parse(text.as_bytes());
    }

    #[test]
    fn a_changed_manifest_is_read_or_refused(at in 0usize..4000, byte: u8) {
        let mut bytes = complete().to_string().into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(manifest) = Manifest::parse(&bytes) {
            prop_assert_eq!(Manifest::parse(&manifest.to_bytes().unwrap()).unwrap(), manifest);
        }
    }
}
