//! Rust code and descriptors of the `.proto` file.

use std::path::{Path, PathBuf};

use prost::Message as _;

/// Variable that has the files written anew: `cargo xtask grpc --update`.
const UPDATE: &str = "RUVLLM_GRPC_UPDATE";

/// Messages of requests, whose parameters are in the witness log.
const RECORDED: [&str; 7] =
    ["GenerateRequest", "Adapter", "Chat", "ChatMessage", "ToolCall", "TokenIds", "EmbedRequest"];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Generates both files into a folder.
fn generate(folder: &Path) -> [PathBuf; 2] {
    let proto = package().join("proto");
    let mut set = protox::compile(["ruvllm/v1/inference.proto"], [proto]).unwrap();
    let mut builder = tonic_prost_build::configure()
        .build_transport(false)
        .client_mod_attribute(".", "#[cfg(feature = \"grpc-tests\")]")
        .btree_map("logit_bias")
        .out_dir(folder);
    for message in RECORDED {
        builder = builder.type_attribute(message, "#[derive(serde::Serialize)]");
    }
    builder
        .type_attribute("GenerateRequest.prompt", "#[derive(serde::Serialize)] #[serde(untagged)]")
        .type_attribute(
            "GenerateRequest.constraint",
            "#[derive(serde::Serialize)] #[serde(rename_all = \"snake_case\")]",
        )
        .field_attribute("GenerateRequest.constraint", "#[serde(flatten)]")
        .compile_fds(set.clone())
        .unwrap();
    // Comments and places are for compilers.
    set.file.iter_mut().for_each(|file| file.source_code_info = None);
    let descriptor = folder.join("descriptor.bin");
    std::fs::write(&descriptor, set.encode_to_vec()).unwrap();
    [folder.join("ruvllm.v1.rs"), descriptor]
}

#[test]
fn committed_files_are_those_of_the_proto_file() {
    let folder = tempfile::tempdir().unwrap();
    for file in generate(folder.path()) {
        let committed = package().join("src/grpc/generated").join(file.file_name().unwrap());
        if std::env::var_os(UPDATE).is_some() {
            std::fs::copy(&file, &committed).unwrap();
        }
        let same = std::fs::read(&file).unwrap() == std::fs::read(&committed).unwrap_or_default();
        assert!(same, "{} differs: run `cargo xtask grpc --update`", committed.display());
    }
}
