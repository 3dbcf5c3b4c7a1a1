//! Writes final hidden states of texts, for the example `continual` of `ruvllm-sona`.
//!
//! ```text
//! final_hidden MODEL.gguf FOLDER [NAME=TRAIN.txt:TEST.txt]... [--train 12000] [--test 6000]
//! ```
//!
//! Into the folder: `head.f32`, the output projection, `[vocabulary, width]`; of each domain
//! `NAME-train.f32` and `NAME-test.f32`, states behind the final norm, `[tokens, width]`, and
//! `NAME-train.u32` and `NAME-test.u32`, the token that follows each. Values are little-endian; a
//! text is read from its start in windows of 512 tokens.

use std::path::Path;

use gguf_rs_lite::Gguf;
use ruvllm::{Engine, EngineOptions, KvPolicy};
use ruvllm_models::Model;
use ruvllm_text::tokenizer::EncodeOptions;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Tokens of a window.
const WINDOW: usize = 512;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let (Some(model), Some(folder)) = (words.next(), words.next()) else {
        return Err("usage: final_hidden MODEL.gguf FOLDER [NAME=TRAIN.txt:TEST.txt]...".into());
    };
    let (folder, mut domains) = (Path::new(&folder), Vec::new());
    let mut limits = [12_000, 6_000];
    while let Some(word) = words.next() {
        match ["--train", "--test"].iter().position(|name| *name == word) {
            Some(index) => {
                let value = words.next().ok_or_else(|| format!("{word} without a value"))?;
                limits[index] = value.parse().map_err(|_| format!("{word} {value}: no number"))?;
            }
            None => domains.push(word),
        }
    }
    std::fs::create_dir_all(folder)?;
    write_head(&model, folder)?;
    let options = EngineOptions::default().with_kv("f32".parse::<KvPolicy>()?);
    let engine = Engine::open_with(Path::new(&model), &options)?;
    for domain in &domains {
        let (name, files) = domain.split_once('=').ok_or_else(|| format!("{domain}: no NAME="))?;
        let (train, test) = files.split_once(':').ok_or_else(|| format!("{files}: no TRAIN:TEST"))?;
        for ((split, file), limit) in [("train", train), ("test", test)].into_iter().zip(limits) {
            write_states(&engine, file, limit, &folder.join(format!("{name}-{split}")))?;
        }
    }
    Ok(())
}

/// The output projection in F32.
fn write_head(model: &str, folder: &Path) -> Result<()> {
    let model = Model::load(&Gguf::open(model)?, &mut |_| ())?;
    let weights = model.weights();
    let head = weights.output.as_ref().map_or(&weights.embedding, |linear| &linear.weights);
    let (width, mut bytes) = (model.config().model_dim, Vec::new());
    let mut row = vec![0.0_f32; width];
    for index in 0..model.config().vocab_size {
        head.dequantize_row(index, &mut row);
        bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(std::fs::write(folder.join("head.f32"), bytes)?)
}

/// States of at most `limit` tokens of a text, and the tokens that follow them.
fn write_states(engine: &Engine, file: &str, limit: usize, out: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let tokens =
        engine.tokenizer().encode(&text, EncodeOptions { add_special: false, parse_special: true })?;
    let n = tokens.len().saturating_sub(1).min(limit);
    let (mut states, mut targets) = (Vec::new(), Vec::new());
    for start in (0..n).step_by(WINDOW) {
        let window = &tokens[start..=n.min(start + WINDOW)];
        // One candidate, the fewest: only states and targets are written.
        for position in engine.observe(window, 1..window.len(), 1)?.iter() {
            states.extend(position.hidden.iter().flat_map(|value| value.to_le_bytes()));
            targets.extend(position.target.to_le_bytes());
        }
    }
    println!("{}: {n} tokens", out.display());
    std::fs::write(out.with_extension("f32"), states)?;
    Ok(std::fs::write(out.with_extension("u32"), targets)?)
}
