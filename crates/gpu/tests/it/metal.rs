//! MSL of every kernel, as naga writes it for Metal, against the type checker of clang.
//!
//! Naga translates more than Metal's compiler accepts, and its texts are compiled on a device only.
//! Clang does not know MSL. Its C++ for `OpenCL` has the same address spaces and vectors, and
//! `metal_stdlib` beside this file declares the functions and types of the standard library of
//! Metal that occur, so that clang checks names, types and address spaces.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use naga::back::msl;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::ModuleInfo;
use ruvllm_gpu::{Kernel, Target};

use crate::generated::{all, validated};

/// Kernels per process of clang, so that it reads the header once for all of them.
const BATCH: usize = 64;

/// C++ for `OpenCL` without its library and extensions other than `half`. Attributes of Metal cause
/// warnings only.
const FLAGS: [&str; 10] = [
    "-x",
    "cl",
    "-cl-std=clc++",
    "-cl-no-stdinc",
    "-Xclang",
    "-cl-ext=-all,+cl_khr_fp16",
    "-fsyntax-only",
    "-w",
    "-ferror-limit=3",
    "-fshow-overloads=best",
];

/// Translation with the options that wgpu chooses on Apple Silicon with macOS 12.
fn translate(name: &str, module: &naga::Module, info: &ModuleInfo) -> String {
    let mut resources = msl::EntryPointResources::default();
    let bindings = module.global_variables.iter().filter_map(|(_, variable)| variable.binding);
    for binding in bindings {
        let buffer = Some(resources.resources.len() as u8);
        let target = msl::BindTarget { buffer, mutable: true, ..Default::default() };
        resources.resources.insert(binding, target);
    }
    resources.sizes_buffer = Some(resources.resources.len() as u8);
    let checked = BoundsCheckPolicy::Restrict;
    let options = msl::Options {
        lang_version: (2, 4),
        per_entry_point_map: [("main".to_owned(), resources)].into(),
        bounds_check_policies: BoundsCheckPolicies { index: checked, buffer: checked, ..Default::default() },
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: Some((naga::ShaderStage::Compute, "main".to_owned())),
        ..Default::default()
    };
    let (text, translated) =
        msl::write_string(module, info, &options, &pipeline).unwrap_or_else(|e| panic!("{name}: {e}"));
    for entry in translated.entry_point_names {
        entry.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    text
}

/// Names and WGSL of all kernels for targets that Metal can have, without repetitions.
fn sources() -> Vec<(String, String)> {
    let mut seen = HashSet::new();
    // Metal's matrices have 8 rows.
    let kernels = all().filter(|(_, target)| target.cooperative != Some(16));
    let named = |(kernel, target): (Kernel, Target)| {
        (format!("{} for {target:?}", kernel.name()), kernel.source(target))
    };
    kernels.map(named).filter(|(_, source)| seen.insert(source.clone())).collect()
}

fn text((name, source): &(String, String)) -> String {
    let (module, info) = validated(name, source);
    format!("// {name}\n{}", translate(name, &module, &info))
}

/// Writes the header and an empty one of vector types, which kernels include.
fn write_headers(folder: &Path) {
    fs::write(folder.join("metal_stdlib"), include_str!("metal_stdlib")).expect("a header");
    fs::create_dir(folder.join("simd")).expect("a folder");
    fs::write(folder.join("simd/simd.h"), "").expect("a header");
}

/// Messages of clang on texts, each of which is in a namespace of its own.
fn messages(folder: &Path, number: usize, texts: &[String]) -> Option<String> {
    let mut batch = "#include <metal_stdlib>\n".to_owned();
    for (at, text) in texts.iter().enumerate() {
        let name = format!("{number}-{at}.metal");
        fs::write(folder.join(&name), text).expect("a file of a kernel");
        writeln!(batch, "namespace kernel_{at} {{\n#include \"{name}\"\n}}").expect("text");
    }
    let file = folder.join(format!("{number}.cl"));
    fs::write(&file, batch).expect("a file of a batch");
    let clang = Command::new("clang").args(FLAGS).arg("-isystem").arg(folder).arg(&file).output();
    let output = clang.expect("clang: apt-get install clang");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success() || !text.is_empty()).then_some(text)
}

#[test]
#[ignore = "needs clang"]
fn msl_of_every_kernel_has_the_types_of_metal() {
    let folder = tempfile::tempdir().expect("a folder");
    write_headers(folder.path());
    let sources = sources();
    let (next, products) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let check = || {
        let mut found = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(batch) = sources.chunks(BATCH).nth(number) else { return found };
            let texts: Vec<_> = batch.iter().map(text).collect();
            let with_matrices = texts.iter().filter(|text| text.contains("simdgroup_multiply_accumulate"));
            products.fetch_add(with_matrices.count(), Ordering::Relaxed);
            found.extend(messages(folder.path(), number, &texts));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let found: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(check)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    let (kernels, products) = (sources.len(), products.into_inner());
    assert!(found.is_empty(), "{} of {} batches:\n{}", found.len(), kernels.div_ceil(BATCH), found[0]);
    assert!(kernels > 3000 && products > 200, "{kernels} kernels, {products} with matrices");
}

/// The forms of faults that naga has written or could, in a kernel with matrices.
#[test]
#[ignore = "needs clang"]
fn faults_in_msl_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    write_headers(folder.path());
    let sources = sources();
    let source = sources.iter().find(|(name, _)| name.starts_with("cooperative_q8_0")).expect("a kernel");
    let sound = text(source);
    assert_eq!(messages(folder.path(), 0, std::slice::from_ref(&sound)), None);
    let faults = [
        // Values of a tile that are no scalars; a space that the tile is not in; squares of 16.
        ("half inner[", "metal::half4 inner["),
        ("const threadgroup half* ptr", "const device half* ptr"),
        ("simdgroup_half8x8", "simdgroup_half16x16"),
        ("return d;", "return d + c;"),
        ("metal::min(", "metal::minimum("),
        ("metal::half4(", "metal::half4(1.0, "),
        ("threadgroup_position_in_grid]]\n", "threadgroup_position_in_grid]]\n, texture t"),
    ];
    for (number, (part, fault)) in faults.into_iter().enumerate() {
        let text = sound.replace(part, fault);
        assert_ne!(text, sound, "{part}");
        let found = messages(folder.path(), number + 1, &[text]);
        assert!(found.is_some_and(|found| found.contains("error: ")), "{part} as {fault}");
    }
}
