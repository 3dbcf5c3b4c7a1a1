//! `ruvllm pack inspect`: the manifest of a pack.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_kernel_packs::manifest::{Kernel, Tensor};
use ruvllm_kernel_packs::{Contents, Digest, Manifest};
use serde::Serialize;

use crate::error::{Result, printable};
use crate::output;

const HELP: &str = "\
Reads the pack and its manifest, and verifies neither key nor signature nor hashes: whoever made the pack says what is
shown. `ruvllm pack verify` verifies.

JSON: {pack, signed, manifest_sha256, bytes, manifest}; manifest is the document of kernels.json, whose form is
docs/schema/kernel-pack.json, with defaults filled in.

Examples:
  ruvllm pack inspect norms-1.0.0.tar
  ruvllm pack inspect norms --json | jq -r '.manifest.kernels[].id'";

/// Show the manifest of a pack, without verification
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct InspectArgs {
    /// Archive or folder
    pack: PathBuf,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    pack: &'a Path,
    signed: bool,
    manifest_sha256: Digest,
    bytes: usize,
    manifest: &'a Manifest,
}

pub(crate) fn run(args: &InspectArgs, json: bool) -> Result<()> {
    let contents = Contents::open(&args.pack)?;
    let bytes = contents.files().map(|(_, bytes)| bytes.len()).sum();
    if json {
        return output::write_json(&Document {
            pack: &args.pack,
            signed: contents.is_signed(),
            manifest_sha256: contents.manifest_sha256(),
            bytes,
            manifest: contents.manifest(),
        });
    }
    output::write_text(&text(&contents, bytes)).map(|_| ())
}

fn text(contents: &Contents, bytes: usize) -> String {
    let manifest = contents.manifest();
    let author = &manifest.author;
    let signed = if contents.is_signed() { "signed, not verified" } else { "not signed" };
    let below = manifest.max_runtime_version.as_ref();
    let below = below.map(|version| format!(", before {version}")).unwrap_or_default();
    let mut text = format!(
        "{}: {}\nauthor:  {} <{}>, key {}\ncreated: {}\nruvllm:  {} or later{below}\nsize:    {}, {signed}\n",
        manifest.title(),
        printable(&manifest.description),
        printable(&author.name),
        printable(&author.email),
        author.signing_key,
        manifest.created,
        manifest.min_runtime_version,
        output::bytes(bytes as u64),
    );
    for kernel in &manifest.kernels {
        // A text in memory takes every write.
        let _ = writeln!(text, "{}", kernel_text(manifest, kernel));
    }
    text
}

/// One kernel on two lines: `rope-f32 (rope): x f32[seq, 128] -> y f32[seq, 128]`.
fn kernel_text(manifest: &Manifest, kernel: &Kernel) -> String {
    let tensors = |tensors: &[Tensor]| {
        let one = |tensor: &Tensor| {
            let dims: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
            format!("{} {}[{}]", tensor.name, tensor.dtype.name(), dims.join(", "))
        };
        tensors.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let parameters = kernel.parameters.iter().map(|parameter| {
        let default = parameter.default.map(|value| format!(" = {value}")).unwrap_or_default();
        format!(", {}: {}{default}", parameter.name, parameter.kind.name())
    });
    format!(
        "\n{} ({}): {} -> {}{}\n  {}, {}, entry point {}, fallback {}",
        kernel.id,
        kernel.category,
        tensors(&kernel.inputs),
        tensors(&kernel.outputs),
        parameters.collect::<String>(),
        kernel.path,
        output::bytes(kernel.bytes),
        kernel.entry_point,
        manifest.fallback(kernel),
    )
}
