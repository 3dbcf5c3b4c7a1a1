//! Configurations that are made to take memory and time: refused, with little of either.
//!
//! Alone in its binary, because it counts the allocations of the whole process. Mapped files are
//! not among them.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs;

use ruvllm_adapters::{Error, LoraFile};
use ruvllm_testkit::allocator::{Counting, peak_bytes};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that opening any configuration here may take.
const MOST_BYTES: usize = 32 << 20;

/// A PEFT folder with the queries of some layers, and this text as its configuration.
fn folder(config: &str, layers: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("adapter_config.json"), config).unwrap();
    let name = |layer, which| format!("model.layers.{layer}.self_attn.q_proj.lora_{which}.weight");
    let names = (0..layers).flat_map(|layer| [name(layer, "A"), name(layer, "B")]);
    let view = |name| (name, TensorView::new(Dtype::F32, vec![1, 1], &[0, 0, 128, 63]).unwrap());
    let tensors: BTreeMap<String, TensorView<'_>> = names.map(view).collect();
    let weights = safetensors::serialize(tensors, None).unwrap();
    fs::write(folder.path().join("adapter_model.safetensors"), weights).unwrap();
    folder
}

fn config(patterns: impl IntoIterator<Item = String>) -> String {
    let patterns: Map<String, Value> = patterns.into_iter().map(|key| (key, json!(1))).collect();
    json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "rank_pattern": patterns}).to_string()
}

/// The matrices that are read, or the error and its causes in one line.
#[track_caller]
fn open(config: &str, layers: usize) -> Result<usize, String> {
    let folder = folder(config, layers);
    let (opened, peak) = peak_bytes(|| LoraFile::open(folder.path()));
    assert!(peak <= MOST_BYTES, "{peak} bytes");
    opened.map(|file| file.updates().len()).map_err(|error: Error| {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    })
}

#[test]
fn configurations_take_little_memory() {
    // Some 500 MB and 7 s when each is compiled with Unicode and a limit of its own.
    let classes = config((0..60).map(|i| format!(r"x{i}@(\pL{{30}}){{5}}")));
    assert!(open(&classes, 1).unwrap_err().contains("pattern \"x0@"));
    let repeated = config((0..64).map(|i| format!("x{i}(([a-z]{{99}}){{99}}){{99}}")));
    assert!(open(&repeated, 1).unwrap_err().contains("pattern \"x0(("));
    let many = config((0..65).map(|i| format!("x{i}[ab]")));
    assert!(open(&many, 1).unwrap_err().contains("65 regular expressions; 64 are read"));
    let names = config((0..5000).map(|i| format!("x{i}")));
    assert!(open(&names, 1).unwrap_err().contains("5000 patterns; 4096 are read"));
    let long = config(["x".repeat(5000)]);
    assert!(open(&long, 1).unwrap_err().contains("5000 bytes in a pattern; 1024 are read"));
    // Expressions that are slow to match, for as many matrices as a real adapter has.
    let slow = config((0..16).map(|i| format!(".*[aeiou].{{{i}}}.*[a-z]{{9}}x(.*.*.*){{4}}")));
    assert_eq!(open(&slow, 1000), Ok(1000));
    // A list of numbers could take 36 times the memory of its text.
    for field in ["others", "init_lora_weights", "use_dora"] {
        let numbers = format!(r#"{{"{field}": [0{}]}}"#, ",0".repeat(500_000));
        assert!(open(&numbers, 1).unwrap_err().contains("peft_type is missing"));
    }
    let numbers = format!(r#"{{"rank_pattern": {{"a": [0{}]}}}}"#, ",0".repeat(500_000));
    assert!(open(&numbers, 1).unwrap_err().contains("peft_type is missing"));
    let large = format!(r#"{{"others": [0{}]}}"#, ",0".repeat(40_000_000));
    assert!(open(&large, 1).unwrap_err().contains("larger than 1048576 bytes"));
    // One rank for each matrix, as it is saved after ranks were distributed anew.
    let all = config((0..1000).map(|layer| format!("model.layers.{layer}.self_attn.q_proj")));
    assert_eq!(open(&all, 1000), Ok(1000));

    let folder = folder(&config([]), 1);
    let weights = folder.path().join("adapter_model.safetensors");
    let header = " ".repeat(5 << 20);
    fs::write(&weights, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let (opened, peak) = peak_bytes(|| LoraFile::open(folder.path()));
    assert!(opened.is_err() && peak <= MOST_BYTES, "{peak} bytes");

    #[cfg(unix)]
    {
        let config = folder.path().join("adapter_config.json");
        fs::remove_file(&config).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &config).unwrap();
        assert!(LoraFile::open(folder.path()).is_err());
    }
}
