//! The core pack in the engine: text, perplexity, swaps while requests run, faulty kernels.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use ruvllm::kernel_packs::{PackKernels, PackKernelsOptions};
use ruvllm::{
    Engine, EngineOptions, GenerateRequest, ModelSource, Recipe, RowKernelCounts, RowKernelReport,
    RowKernels, SamplingParams,
};
use ruvllm_kernel_packs::manager::{Manager, ManagerOptions};
use ruvllm_kernel_packs::manifest::Category;
use ruvllm_kernel_packs::sandbox::{Sandbox, SandboxOptions};
use ruvllm_kernel_packs::{Contents, Host, Pack, Policy, PrivateKey, TrustedKey, TrustedKeys, Version};
use ruvllm_testkit::builtin_model;

/// Prompts of several kinds for the built-in model.
const PROMPTS: [&str; 5] = [
    "Once upon a time, in a small village by the sea,",
    "The capital of France is",
    "Ben had two apples. His sister gave him three more. Now he has",
    "One day, a turtle named Tom wanted to fly. He asked the birds",
    "\"Where are you going?\" asked the fox. The rabbit",
];

/// The core pack with another version, signed with a key of the test.
fn core_pack(version: &str) -> Pack {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-packs/core/pack");
    let manifest = fs::read_to_string(source.join("kernels.json")).expect("the draft");
    let changed = manifest.replacen("\"version\": \"1.0.0\"", &format!("\"version\": \"{version}\""), 1);
    signed(&changed, &fs::read(source.join("core.wasm")).expect("a module"))
}

/// `SwiGLU` that traps for multiples of 512 values, which no golden vector has and each call of the
/// built-in model.
fn trapping_pack(version: &str) -> Pack {
    let text = include_str!("../../kernel-packs/src/tests/sandbox/wat/swiglu.wat");
    let trap =
        "(if (i32.eqz (i32.and (i32.load offset=4 (local.get $d)) (i32.const 2047))) (then unreachable))
        (loop $request";
    assert_eq!(text.matches("(loop $request").count(), 1);
    let module = wat::parse_str(text.replace("(loop $request", trap)).expect("a module");
    let manifest = format!(
        r#"{{"schema_version": 1, "name": "ruvllm-core", "version": "{version}", "description": "Test",
        "min_runtime_version": "0.1.0", "created": "2026-11-27",
        "author": {{"name": "Test", "email": "kernels@test.example"}},
        "kernels": [{{"id": "swiglu-f32", "name": "SwiGLU", "category": "swiglu", "path": "core.wasm",
        "inputs": [{{"name": "gate", "dtype": "f32", "shape": ["n"]}},
                   {{"name": "up", "dtype": "f32", "shape": ["n"]}}],
        "outputs": [{{"name": "y", "dtype": "f32", "shape": ["n"]}}],
        "platforms": {{"wasmtime": {{"min_version": "48.0.0", "features": ["simd128"]}}}}}}]}}"#
    );
    signed(&manifest, &module)
}

/// Verified pack of a manifest and its module, `core.wasm`.
fn signed(manifest: &str, module: &[u8]) -> Pack {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("kernels.json"), manifest).expect("a manifest");
    fs::write(folder.path().join("core.wasm"), module).expect("a module");
    let key = PrivateKey::from_bytes(&[7; 32]);
    let keys = TrustedKeys::new(vec![TrustedKey::new("test", key.public_key())], None).expect("a key");
    let host = Host { engine: Some(Sandbox::engine()), ..Host::new(Version::new(0, 1, 0)) };
    let contents = Contents::build(folder.path(), Some(&key)).expect("a pack");
    contents.verify(Policy { keys: &keys, host: &host, now: None }).expect("a trusted pack")
}

fn manager() -> Manager {
    let manager = manager_with(ManagerOptions::default());
    manager.upgrade(&core_pack("1.0.0")).expect("a healthy pack");
    manager
}

/// Manager without an active pack.
fn manager_with(options: ManagerOptions) -> Manager {
    let sandbox = Sandbox::new(SandboxOptions::default()).expect("a sandbox");
    Manager::new(Arc::new(sandbox), "ruvllm-core", options)
}

/// The built-in model with weights in f16; `share` is that of the kernels of a pack.
///
/// Its own weights are in 8 bits, for which activations are rounded to 8 bits too: the last bit of
/// a norm then moves a whole step, and no two orders of sums give the same texts.
fn engine(pack: Option<(&Manager, f64)>) -> Engine {
    let kernels = pack.map(|(manager, share)| {
        Arc::new(PackKernels::new(manager.clone(), PackKernelsOptions { share })) as Arc<dyn RowKernels>
    });
    let recipe = Recipe::from_name("F16");
    let options = EngineOptions::default().with_threads(2).with_quantize(recipe).with_row_kernels(kernels);
    let source = ModelSource::Path(builtin_model());
    Engine::load(&source, &options, &mut |_| ()).expect("the model loads")
}

fn text(engine: &Engine, prompt: &str, tokens: usize) -> String {
    let request = GenerateRequest::new(prompt).with_max_tokens(tokens);
    engine.generate(request.with_sampling(SamplingParams::greedy())).expect("a text").text
}

/// Calls of the kernel of a category since its pack was loaded, and how many of them failed.
fn calls(manager: &Manager, category: Category) -> (u64, u64) {
    let mut reader = manager.reader();
    let pack = reader.get().expect("an active pack");
    let kernels = pack.kernels().iter().filter(|loaded| loaded.kernel.manifest().category == category);
    kernels.fold((0, 0), |(calls, failed), loaded| {
        let counts = loaded.kernel.counts();
        (calls + counts.calls, failed + counts.failed)
    })
}

const REPLACED: [Category; 3] = [Category::RmsNorm, Category::Swiglu, Category::Rope];

#[test]
fn the_core_pack_gives_the_native_texts() {
    let (native, manager) = (engine(None), manager());
    let packed = engine(Some((&manager, f64::INFINITY)));
    let before = REPLACED.map(|category| calls(&manager, category).0);
    for prompt in PROMPTS {
        assert_eq!(text(&packed, prompt, 48), text(&native, prompt, 48), "{prompt}");
    }
    for (category, before) in REPLACED.into_iter().zip(before) {
        let (calls, failed) = calls(&manager, category);
        assert!(calls > before + 1_000 && failed == 0, "{category}: {before} {calls} {failed}");
    }
}

#[test]
fn perplexity_with_the_core_pack_is_within_a_ten_thousandth() {
    let (native, manager) = (engine(None), manager());
    let packed = engine(Some((&manager, f64::INFINITY)));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/validation-prefix.txt");
    let story = fs::read_to_string(path).expect("a text");
    let mut tokens = native.encode_prompt(&story.as_str().into()).expect("tokens");
    tokens.truncate(2_048);
    let of = |engine: &Engine| {
        let measured = engine.perplexity(&tokens, 256, None, &mut |_, _| ControlFlow::Continue(()));
        measured.expect("a perplexity").perplexity
    };
    let (expected, found) = (of(&native), of(&packed));
    println!("perplexity {found} beside {expected}");
    assert!((found / expected - 1.0).abs() < 1e-4, "{found} beside {expected}");
}

#[test]
fn short_operations_are_native() {
    let manager = manager();
    let before = REPLACED.map(|category| calls(&manager, category).0);
    let packed = engine(Some((&manager, 0.1)));
    let prompt = "Once";
    let native = text(&engine(None), prompt, 16);
    assert_eq!(text(&packed, prompt, 16), native);
    assert_eq!(before[0], calls(&manager, Category::RmsNorm).0, "rows of one token");
    // A prompt of many rows is worth calls.
    text(&packed, &PROMPTS.concat(), 1);
    assert!(calls(&manager, Category::Swiglu).0 > before[1]);
}

#[test]
fn packs_are_swapped_while_requests_run() {
    let manager = manager();
    let packed = engine(Some((&manager, f64::INFINITY)));
    let expected = text(&packed, PROMPTS[0], 32);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut texts = 0;
                    while !is_done.load(Relaxed) || texts == 0 {
                        assert_eq!(text(&packed, PROMPTS[0], 32), expected);
                        texts += 1;
                    }
                    texts
                })
            })
            .collect();
        for version in 1..=6 {
            manager.upgrade(&core_pack(&format!("1.{version}.0"))).expect("a healthy pack");
            if version % 3 == 0 {
                manager.rollback().expect("a previous pack");
            }
        }
        is_done.store(true, Relaxed);
        assert!(threads.into_iter().all(|thread| thread.join().expect("no panic") > 0));
    });
    assert!(REPLACED.iter().all(|category| calls(&manager, *category).1 == 0));
}

/// Counters of the `SwiGLU` kernel in a report, with its traps of `unreachable`.
fn swiglu(report: &RowKernelReport) -> (&RowKernelCounts, u64) {
    let kernel = report.kernels.iter().find(|kernel| kernel.id == "swiglu-f32").expect("a kernel");
    let traps = kernel.traps.iter().find(|(kind, _)| *kind == "unreachable").expect("a kind");
    (kernel, traps.1)
}

#[test]
fn traps_are_reported_after_the_rollback_that_they_cause() {
    let (native, manager) = (engine(None), manager());
    let packed = engine(Some((&manager, f64::INFINITY)));
    let report = || packed.row_kernel_report().expect("a report");
    let before = report();
    assert_eq!((before.name.as_str(), before.version.as_deref()), ("ruvllm-core", Some("1.0.0")));
    let ids: Vec<_> = before.kernels.iter().map(|kernel| (kernel.id.as_str(), kernel.calls)).collect();
    assert_eq!(ids, [("rms-norm-f32", 0), ("rope-f32", 0), ("swiglu-f32", 0)], "those that are replaced");
    manager.upgrade(&trapping_pack("1.1.0")).expect("golden vectors pass");
    assert_eq!(text(&packed, PROMPTS[0], 8), text(&native, PROMPTS[0], 8));
    let after = report();
    assert_eq!((after.version.as_deref(), after.swaps), (Some("1.0.0"), 2));
    assert_eq!(after.rollbacks, [("requested", 0), ("quarantine", 1)]);
    let (kernel, traps) = swiglu(&after);
    assert!(traps >= 3 && kernel.failed == traps && kernel.fallbacks >= traps, "{kernel:?}");
    assert!(kernel.calls > kernel.failed && !kernel.is_quarantined, "the core pack goes on: {kernel:?}");
}

#[test]
fn a_quarantine_after_probation_is_reported_and_native_code_computes() {
    let native = engine(None);
    let manager = manager_with(ManagerOptions { probation: Duration::ZERO, ..ManagerOptions::default() });
    manager.upgrade(&trapping_pack("1.0.0")).expect("golden vectors pass");
    let packed = engine(Some((&manager, f64::INFINITY)));
    assert_eq!(text(&packed, PROMPTS[0], 8), text(&native, PROMPTS[0], 8));
    let report = packed.row_kernel_report().expect("a report");
    let (kernel, traps) = swiglu(&report);
    assert!(kernel.is_quarantined && traps >= 3 && kernel.fallbacks > traps, "{kernel:?}");
    assert_eq!((report.version.as_deref(), report.rollbacks[1].1), (Some("1.0.0"), 0));
    assert_eq!(native.row_kernel_report(), None);
}

#[test]
fn a_first_pack_that_traps_is_unloaded_and_native_code_computes() {
    let (native, manager) = (engine(None), manager_with(ManagerOptions::default()));
    manager.upgrade(&trapping_pack("1.0.0")).expect("golden vectors pass");
    let packed = engine(Some((&manager, f64::INFINITY)));
    assert_eq!(text(&packed, PROMPTS[0], 8), text(&native, PROMPTS[0], 8));
    let report = packed.row_kernel_report().expect("a report");
    assert_eq!((report.version.as_deref(), report.rollbacks[1].1), (None, 1));
    let (kernel, traps) = swiglu(&report);
    assert!(traps >= 3 && !kernel.is_quarantined, "{kernel:?}");
}
