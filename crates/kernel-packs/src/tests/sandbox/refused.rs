//! Modules that are refused before a function of theirs runs.

use serde_json::json;

use super::{ECHO, SANDBOX, assert_serving, attack, call, entry, fault_of, load_in, pack, plain, with_entry};
use crate::sandbox::{Fault, ReturnCode, SandboxOptions};
use crate::{EngineKind, Error, sandbox};

fn import(item: &str) -> String {
    with_entry(item, "")
}

#[test]
fn imports_of_wasi_are_refused() {
    let text =
        import(r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))"#);
    let expected = Fault::Import { module: "wasi_snapshot_preview1".to_owned(), name: "fd_write".to_owned() };
    assert_eq!(attack(&text), expected);
}

#[test]
fn imports_of_wasi_nn_and_threads_are_refused() {
    for (module, name, parameters) in [
        ("wasi_ephemeral_nn", "load", "(param i32 i32 i32 i32 i32)"),
        ("wasi", "thread-spawn", "(param i32)"),
    ] {
        let text = import(&format!(r#"(import "{module}" "{name}" (func {parameters} (result i32)))"#));
        let expected = Fault::Import { module: module.to_owned(), name: name.to_owned() };
        assert_eq!(attack(&text), expected);
    }
}

#[test]
fn imports_of_any_kind_are_refused() {
    for item in [
        r#"(import "env" "abort" (func))"#,
        r#"(import "env" "g" (global i32))"#,
        r#"(import "env" "t" (table 1 funcref))"#,
        r#"(import "" "" (func))"#,
        r#"(import "kernel" "kernel_forward" (func (param i32 i32) (result i32)))"#,
    ] {
        assert!(matches!(attack(&import(item)), Fault::Import { .. }), "{item}");
    }
    let memory = r#"(module (import "env" "memory" (memory 1)) (export "memory" (memory 0))
        (func (export "kernel_forward") (param i32 i32) (result i32) (i32.const 0)))"#;
    assert!(matches!(attack(memory), Fault::Import { .. }));
}

#[test]
fn long_names_of_imports_are_cut() {
    let Fault::Import { name, .. } =
        attack(&import(&format!(r#"(import "m" "{}" (func))"#, "x".repeat(5000))))
    else {
        panic!("no import")
    };
    assert_eq!(name.len(), 80);
}

#[test]
fn modules_that_begin_with_more_memory_than_their_limit_are_refused() {
    for pages in [17, 65_536] {
        let text = ECHO.replace("\"memory\") 1)", &format!("\"memory\") {pages})"));
        assert_eq!(attack(&text), Fault::Declared { what: "pages of memory", found: pages, most: 16 });
    }
}

#[test]
fn a_large_maximum_of_memory_costs_nothing() {
    let text = ECHO.replace("\"memory\") 1)", "\"memory\") 1 65536)");
    let kernel = load_in(&SANDBOX, &plain(), &text).unwrap();
    assert_eq!(call(&kernel, &[4.0]).unwrap(), [4.0]);
}

#[test]
fn modules_that_begin_with_more_table_elements_than_their_limit_are_refused() {
    let text = with_entry("(table 10000000 funcref)", "");
    assert_eq!(attack(&text), Fault::Declared { what: "table elements", found: 10_000_000, most: 64 });
    let text = with_entry(&"(table 1 funcref)".repeat(9), "");
    assert_eq!(attack(&text), Fault::Declared { what: "tables", found: 9, most: 8 });
}

#[test]
fn features_that_are_off_are_refused() {
    for (feature, items, body) in [
        (
            "relaxed_simd",
            "",
            "(drop (f32x4.relaxed_madd (v128.const i64x2 0 0) (v128.const i64x2 0 0) (v128.const i64x2 0 0)))",
        ),
        ("threads", "", "(drop (i32.atomic.rmw.add (i32.const 0) (i32.const 1)))"),
        ("tail_call", "(func $f)", "(if (i32.eqz (local.get $n)) (then (drop (call $g))))"),
        ("multi_memory", "(memory 1)", ""),
        ("exceptions", "(tag $e)", "(throw $e)"),
        ("gc", "(type $s (struct (field i32)))", "(drop (struct.new_default $s))"),
        ("externref", "(table 1 externref)", ""),
        ("function references", "(type $t (func)) (func $h (param (ref null $t)))", ""),
        (
            "wide arithmetic",
            "",
            "(drop (drop (i64.add128 (i64.const 1) (i64.const 1) (i64.const 1) (i64.const 1))))",
        ),
    ] {
        let items = match feature {
            "tail_call" => "(func $f (result i32) (i32.const 1)) (func $g (result i32) (return_call $f))",
            _ => items,
        };
        let text = with_entry(items, body);
        // Some are invalid with any setting, which is as good.
        let Ok(module) = wat::parse_str(&text) else { panic!("{feature}: no module") };
        let fault = fault_of(SANDBOX.load(&pack(&plain(), &module), "kernel"));
        assert!(matches!(fault, Fault::Malformed { .. }), "{feature}: {fault:?}");
    }
    assert_serving();
}

#[test]
fn shared_and_64_bit_memories_are_refused() {
    for memory in ["(memory (export \"memory\") 1 2 shared)", "(memory (export \"memory\") i64 1)"] {
        let text = ECHO.replace("(memory (export \"memory\") 1)", memory);
        let Ok(module) = wat::parse_str(&text) else { panic!("no module") };
        let fault = fault_of(SANDBOX.load(&pack(&plain(), &module), "kernel"));
        assert!(matches!(fault, Fault::Malformed { .. }), "{memory}: {fault:?}");
    }
}

#[test]
fn a_module_that_is_cut_anywhere_is_refused() {
    let module = wat::parse_str(ECHO).unwrap();
    for length in 8..module.len() {
        let loaded = SANDBOX.load(&pack(&plain(), &module[..length]), "kernel");
        match loaded.map_err(|error| fault_of::<()>(Err(error))) {
            Err(Fault::Malformed { .. } | Fault::MissingExport { .. }) => {}
            // Complete but for the names of its functions, a custom section.
            Ok(_) => assert_eq!(module[length], 0, "{length}"),
            Err(fault) => panic!("{length}: {fault:?}"),
        }
    }
    assert_serving();
}

#[test]
fn functions_with_too_many_locals_are_refused() {
    let mut module = wat::parse_str(entry("")).unwrap();
    let text = entry(&"(local i64)".repeat(50_001));
    module = wat::parse_str(&text).unwrap_or(module);
    assert!(matches!(fault_of(SANDBOX.load(&pack(&plain(), &module), "kernel")), Fault::Malformed { .. }));
    assert_serving();
}

#[test]
fn absent_exports_are_named() {
    let missing = |name: &str| Fault::MissingExport { name: name.to_owned() };
    assert_eq!(attack("(module)"), missing("memory"));
    assert_eq!(attack(r#"(module (memory (export "memory") 1))"#), missing("kernel_forward"));
    let mut kernel = plain();
    kernel["entry_point"] = json!("other");
    assert_eq!(fault_of(load_in(&SANDBOX, &kernel, ECHO)), missing("other"));
}

#[test]
fn exports_of_other_types_are_refused() {
    for (name, text) in [
        (
            "memory",
            ECHO.replace(
                "(memory (export \"memory\") 1)",
                "(global (export \"memory\") i32 (i32.const 1)) (memory 1)",
            ),
        ),
        ("kernel_forward", ECHO.replace("(param $n i32)", "(param $n i32) (param i32)")),
        ("kernel_init", with_entry(r#"(func (export "kernel_init"))"#, "")),
        ("kernel_init", with_entry(r#"(global (export "kernel_init") i32 (i32.const 0))"#, "")),
        ("kernel_info", with_entry(r#"(func (export "kernel_info") (result i64) (i64.const 0))"#, "")),
        (
            "kernel_backward",
            with_entry(r#"(func (export "kernel_backward") (result i32) (i32.const 0))"#, ""),
        ),
        ("kernel_cleanup", with_entry(r#"(func (export "kernel_cleanup") (param i32))"#, "")),
        ("__heap_base", with_entry(r#"(global (export "__heap_base") (mut i32) (i32.const 0))"#, "")),
        ("__heap_base", with_entry(r#"(global (export "__heap_base") i64 (i64.const 0))"#, "")),
        ("__heap_base", with_entry(r#"(func (export "__heap_base"))"#, "")),
    ] {
        assert!(matches!(attack(&text), Fault::ExportType { name: found, .. } if found == name), "{name}");
    }
}

#[test]
fn initializations_that_fail_are_refused() {
    let init = r#"(func (export "kernel_init") (result i32) (i32.const 2))"#;
    let expected = Fault::Code { export: "kernel_init".to_owned(), code: ReturnCode::OutOfMemory };
    assert_eq!(attack(&with_entry(init, "")), expected);
}

#[test]
fn records_of_needs_outside_of_the_memory_are_refused() {
    for offset in ["65521", "-1", "0x7fffffff"] {
        let info = format!(r#"(func (export "kernel_info") (result i32) (i32.const {offset}))"#);
        let fault = attack(&with_entry(&info, ""));
        assert!(
            matches!(fault, Fault::Area { what: "kernel_info", bytes: 16, memory: 65_536, .. }),
            "{fault:?}"
        );
    }
}

#[test]
fn other_versions_of_the_interface_are_refused() {
    let info =
        r#"(func (export "kernel_info") (result i32) (i32.const 0)) (data (i32.const 0) "\02\00\00\00")"#;
    assert!(matches!(attack(&with_entry(info, "")), Fault::Argument { what, .. } if what == "kernel_info"));
}

#[test]
fn more_scratch_than_the_limit_is_refused() {
    let info = r#"(func (export "kernel_info") (result i32) (i32.const 0)) (data (i32.const 0) "\01\00\00\00\00\00\20\00")"#;
    assert!(matches!(attack(&with_entry(info, "")), Fault::Room { most: 0x10_0000, .. }));
    let info = info.replace("\\00\\00\\20\\00\"", "\\ff\\ff\\ff\\ff\"");
    assert!(matches!(attack(&with_entry(&info, "")), Fault::Room { most: 0x8000_0000, .. }));
}

#[test]
fn bases_of_the_heap_outside_of_the_memory_are_refused() {
    for base in ["-16", "-1", "0x7fffffff", "0x100000"] {
        let text = with_entry(&format!(r#"(global (export "__heap_base") i32 (i32.const {base}))"#), "");
        assert!(matches!(attack(&text), Fault::Room { most: 0x10_0000, .. }), "{base}");
    }
}

#[test]
fn the_maximum_of_the_module_counts_too() {
    let text = ECHO.replace("\"memory\") 1)", "\"memory\") 1 1)");
    assert!(matches!(attack(&text), Fault::Room { most: 0x1_0000, .. }));
}

#[test]
fn kernels_that_the_pack_lacks_are_named() {
    let pack = pack(&plain(), &wat::parse_str(ECHO).unwrap());
    assert_eq!(fault_of(SANDBOX.load(&pack, "other")), Fault::NoSuchKernel);
}

#[test]
fn kernels_for_other_engines_are_refused() {
    let (engine, other) = match SandboxOptions::default().engine {
        EngineKind::Wasmtime => ("wasmtime", "wasmi"),
        EngineKind::Wasmi => ("wasmi", "wasmtime"),
    };
    let mut cases = vec![
        (json!({other: {"min_version": "1.0.0"}}), "NoPlatform"),
        (json!({engine: {"min_version": "49.0.0"}, other: {"min_version": "1.0.0"}}), "EngineTooOld"),
    ];
    if engine == "wasmtime" {
        // Manifests list no features for wasmi.
        let needs = json!({"wasmtime": {"min_version": "48.0.0", "features": ["relaxed_simd"]}});
        cases.push((needs, "MissingFeature"));
    }
    for (platforms, name) in cases {
        let mut kernel = plain();
        kernel["platforms"] = platforms;
        let module = wat::parse_str(ECHO).unwrap();
        // Verified without an engine: the sandbox checks again.
        let error = SANDBOX.load(&unchecked(&kernel, &module), "kernel").unwrap_err();
        let found = match error {
            Error::NoPlatform { .. } => "NoPlatform",
            Error::EngineTooOld { .. } => "EngineTooOld",
            Error::MissingFeature { .. } => "MissingFeature",
            other => panic!("{other:?}"),
        };
        assert_eq!(found, name);
    }
}

/// Pack that was verified for no engine.
fn unchecked(kernel: &serde_json::Value, module: &[u8]) -> crate::Pack {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("kernel.wasm"), module).unwrap();
    let manifest = json!({
        "schema_version": 1, "name": "test", "version": "1.0.0", "description": "Test",
        "min_runtime_version": "0.1.0", "created": "2026-11-27",
        "author": {"name": "Acme", "email": "kernels@acme.example"},
        "kernels": [kernel]
    });
    std::fs::write(folder.path().join("kernels.json"), manifest.to_string()).unwrap();
    let contents = crate::Contents::build(folder.path(), Some(&super::key())).unwrap();
    super::super::verify(contents).unwrap()
}

#[test]
fn settings_that_the_machine_does_not_allow_are_an_error() {
    let options = sandbox::SandboxOptions { stack_bytes: 0, ..Default::default() };
    assert!(matches!(sandbox::Sandbox::new(options), Err(Error::Sandbox { .. })));
}
