//! Memory of sequences under KV-cache policies, as counted by the store.

use std::fmt::Write as _;

use ruvllm_kv_cache::{KvPolicy, KvShape, KvStore};
use ruvllm_memory::{PagePool, PoolConfig};

use super::section;
use crate::gen_model::Shape;
use xtask::Workspace;

use crate::{Error, Result};

const PAGE: &str = "docs/kv-cache.md";
const SECTION: &str = "kv-bytes";

/// Lengths of the sequences in tokens.
const LENGTHS: [usize; 3] = [4096, 32_768, 131_072];

/// Baseline policy.
const BASELINE: &str = "f16";

const POLICIES: [&str; 9] = [
    BASELINE,
    "q8",
    "q4",
    "tiered",
    "kivi4",
    "k4v2",
    "kivi2",
    "tiered:warm=kivi2,cold=off",
    "tiered:warm=kivi4,warm_tokens=2048,cold=kivi2",
];

/// KV shape of the built-in model (`models/README.md`).
const BUILT_IN: KvShape = KvShape::new(8, 4, 64);

/// Bytes of sequences of [`LENGTHS`] tokens.
type Sizes = [usize; LENGTHS.len()];

/// Writes the section of `docs/kv-cache.md`, unless told not to.
///
/// # Errors
/// If the page cannot be written.
pub(super) fn kv_bytes(workspace: &Workspace, no_record: bool) -> Result<()> {
    let shapes = [("built-in model", BUILT_IN), ("llama-1b", Shape::Llama1b.kv_shape())];
    let mut text = format!(
        "```text\n{}\n```\n\nMiB of keys and values of one sequence, with scales, minima, hot tokens and the block in \
         progress; in brackets {BASELINE} : this. Models with grouped queries, blocks of 32 tokens.\n",
        section::this_command()
    );
    for (name, shape) in shapes {
        text.push_str(&table(name, shape)?);
    }
    println!("{text}");
    if no_record { Ok(()) } else { section::record(workspace, PAGE, SECTION, &text) }
}

fn table(name: &str, shape: KvShape) -> Result<String> {
    let heads: String = LENGTHS.iter().map(|tokens| format!(" {tokens} tokens |")).collect();
    let mut text = format!("\n| {name} |{heads}\n|---|{}\n", "---|".repeat(LENGTHS.len()));
    let baseline = sizes(shape, BASELINE)?;
    for policy in POLICIES {
        let cell = |(bytes, baseline): (usize, usize)| {
            format!(" {:.2} ({:.2}) |", bytes as f64 / f64::from(1 << 20), baseline as f64 / bytes as f64)
        };
        let cells: String = sizes(shape, policy)?.into_iter().zip(baseline).map(cell).collect();
        let _ = writeln!(text, "| `{policy}` |{cells}");
    }
    Ok(text)
}

/// Bytes of sequences under a policy, computed by its store without allocating them.
fn sizes(shape: KvShape, policy: &str) -> Result<Sizes> {
    let failed = |source| Error::KvCache { policy: policy.to_owned(), source };
    let parsed: KvPolicy = policy.parse().map_err(failed)?;
    let pool = PagePool::new(PoolConfig::new(64 << 20)).map_err(Error::Pool)?;
    let store = KvStore::new(shape, &parsed.for_model(true), &pool).map_err(failed)?;
    Ok(LENGTHS.map(|tokens| store.sequence_bytes(tokens)))
}

#[cfg(test)]
mod tests {
    use gguf_rs_lite::Gguf;
    use ruvllm_models::ModelConfig;

    use super::*;

    #[test]
    fn the_built_in_model_has_this_shape() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/base-q8_0.gguf");
        let gguf = Gguf::open(path).expect("the model is there");
        assert_eq!(ModelConfig::from_checkpoint(&gguf).expect("a config").kv_shape(), BUILT_IN);
    }

    #[test]
    fn half_precision_takes_two_bytes_per_value() {
        // 16 layers, 8 heads of 64, keys and values.
        let per_token = 16 * 8 * 64 * 2 * 2;
        let expected = LENGTHS.map(|tokens| tokens * per_token);
        assert_eq!(sizes(Shape::Llama1b.kv_shape(), BASELINE).expect("sizes"), expected);
        let text = table("llama-1b", Shape::Llama1b.kv_shape()).expect("a table");
        assert!(text.contains("| `f16` | 128.00 (1.00) | 1024.00 (1.00) | 4096.00 (1.00) |"), "{text}");
        assert_eq!(text.matches("| `").count(), POLICIES.len(), "{text}");
    }
}
