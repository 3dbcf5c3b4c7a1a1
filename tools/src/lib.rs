//! Tools of the ruvllm workspace that need its libraries: measurements, comparisons with other
//! implementations, synthetic models. `cargo xtask` runs them.
//!
//! Separate from `xtask`, so that checks need not compile the libraries first. A library only for
//! its integration tests.

#![forbid(unsafe_code)]

mod adapters;
pub mod bench;
mod error;
mod family_goldens;
pub mod gen_model;
pub mod plots;
mod template_goldens;
mod tokenizer_goldens;

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use xtask::Workspace;

use adapters::{AdapterQualityArgs, TrainAdapterArgs};
use bench::{BenchArgs, EmbeddingSpeedArgs, KvQualityArgs, QuantizeTableArgs};
pub use error::{Error, Result};
use family_goldens::FAMILIES;
use gen_model::{Shape, TypeMix};

/// Measures the ruvllm workspace and compares it with other implementations
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs Criterion suites, or whole models beside another engine
    ///
    /// `cargo xtask bench matmul` runs one suite, `batch-curve` draws rates over batch sizes,
    /// `prefix-traces` counts hits of the prefix tree. `cargo xtask bench --peer llama-bench=PATH
    /// --model FILE` runs this engine and llama.cpp's llama-bench in turn (with and without
    /// repacking and flash attention), writes the samples to target/bench/ and the table to its
    /// section of this machine's page in docs/performance.
    Bench(BenchArgs),
    /// Measures what policies of the KV cache cost: perplexity of a text, retrieval from it, and
    /// bytes
    ///
    /// Writes the tables and the figure to docs/kv-cache.md, the samples to target/bench/.
    KvQuality(KvQualityArgs),
    /// Measures what the types of `ruvllm quantize` cost, beside llama.cpp's quantizer
    ///
    /// Quantizes a model with both programs, measures perplexity of both files with this engine,
    /// and of a shorter piece with llama.cpp, which must read the files written here. Writes the
    /// table to docs/models.md, the samples to target/bench/.
    QuantizeTable(QuantizeTableArgs),
    /// Measures embeddings of an encoder beside sentence-transformers and llama.cpp
    ///
    /// The programs take turns. Writes the table to docs/performance, the samples to
    /// target/bench/.
    EmbeddingSpeed(EmbeddingSpeedArgs),
    /// Draws the figures in docs/plots from the tables of the pages beside them
    Plots,
    /// Compares the tokenizers of real vocabularies with the ids that their models' own tokenizers
    /// give
    ///
    /// Prints a table. A folder in the manner of llama.cpp's `models`: `NAME.gguf`, the texts
    /// `NAME.gguf.inp`, their ids `NAME.gguf.out`. Not part of `ci`: the files are too large to be
    /// committed.
    TokenizerGoldens {
        /// The folder
        folder: PathBuf,
    },
    /// Renders conversations with chat templates of published models, here and by Python's Jinja2,
    /// and compares
    ///
    /// Prints a table. Not part of `ci`: it needs a Python with the package `jinja2`, and the
    /// templates.
    TemplateGoldens {
        /// The folder with the templates, `NAME.jinja`
        folder: PathBuf,
        /// The Python
        #[arg(long, value_name = "PROGRAM", default_value = "python3")]
        python: PathBuf,
    },
    /// Computes models with drawn configurations and random weights here and by transformers, and
    /// compares
    ///
    /// Prints a table. Not part of `ci`: it needs a Python with the packages `torch` and
    /// `transformers`. The models stay in target/family-goldens until the next run.
    FamilyGoldens {
        /// Family to draw, repeatable (default: all); its models are the same as among those of all
        #[arg(long = "family", value_name = "NAME", value_parser = PossibleValuesParser::new(FAMILIES))]
        families: Vec<String>,
        /// Models of each family
        #[arg(long, default_value_t = 8)]
        models: usize,
        /// Same seed and version of transformers, same models
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// The Python
        #[arg(long, value_name = "PROGRAM", default_value = "python3")]
        python: PathBuf,
    },
    /// Trains a LoRA adapter of the built-in model on a text, with PEFT
    ///
    /// OUT gets the adapter, and `training.json` with loss and perplexity. Not part of `ci`: it
    /// needs a Python with the packages `torch`, `transformers`, `gguf` and `peft`, and takes
    /// minutes.
    TrainAdapter(TrainAdapterArgs),
    /// Measures what adapters and their merges do to the perplexity of held-out texts
    ///
    /// Each text alone with each adapter, all texts in one batch with their own adapters, and with
    /// one adapter merged by each method. Writes the table to docs/adapters.md.
    AdapterQuality(AdapterQualityArgs),
    /// Writes a model of a real shape with random weights, for speed and memory work
    GenModel {
        /// Sizes of the model
        #[arg(long, value_enum)]
        shape: Shape,
        /// Type of the matrices, such as `q8_0`, `q4_k` or `q4_k_m`; norms are always f32
        #[arg(long = "type", value_name = "TYPE")]
        types: TypeMix,
        /// The GGUF file to write
        out: PathBuf,
        /// Same seed, same file
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Number of layers instead of the shape's
        #[arg(long)]
        layers: Option<usize>,
        /// Worker threads (default: all cores)
        #[arg(long)]
        threads: Option<usize>,
    },
}

/// Parses the command line and runs the command.
///
/// # Errors
/// Errors of the command; usage errors end the process with status 2 (clap).
pub fn run() -> Result<()> {
    let cli = Cli::parse();
    // Models can be made anywhere.
    let workspace = Workspace::find;
    match cli.command {
        Command::Bench(args) => bench::bench(&workspace()?, &args),
        Command::KvQuality(args) => bench::kv_quality(&workspace()?, &args),
        Command::QuantizeTable(args) => bench::quantize_table(&workspace()?, &args),
        Command::EmbeddingSpeed(args) => bench::embedding_speed(&workspace()?, &args),
        Command::Plots => plots::plots(&workspace()?),
        Command::TokenizerGoldens { folder } => tokenizer_goldens::tokenizer_goldens(&folder),
        Command::FamilyGoldens { families, models, seed, python } => {
            family_goldens::family_goldens(&workspace()?, &python, &families, (models, seed))
        }
        Command::TemplateGoldens { folder, python } => {
            template_goldens::template_goldens(&workspace()?, &folder, &python)
        }
        Command::TrainAdapter(args) => adapters::train_adapter(&workspace()?, &args),
        Command::AdapterQuality(args) => adapters::adapter_quality(&workspace()?, &args),
        Command::GenModel { shape, types, out, seed, layers, threads } => {
            let options = gen_model::Options { shape, types, seed, layers, threads };
            gen_model::gen_model(&options, &out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_commands_of_the_documents_parse() {
        for line in [
            "bench",
            "bench matmul",
            "bench batch-curve",
            "bench prefix-traces --no-record",
            "bench sona --domain law=train.txt:test.txt --part instant --no-record",
            "kv-quality",
            "kv-quality --file a.txt --model b.gguf --limit 49152 --kv q8 --program ruvllm",
            "kv-quality --only passkey,bytes --trials 2",
            "kv-quality --only perplexity --kv q8 --add",
            "quantize-table --llama bin --model a.gguf --file b.txt --type Q4_0,Q2_K --limit 8192 --no-record",
            "plots",
            "bench --peer llama-bench=x --model a.gguf --model b.gguf -p 512 -n 64 -t 1,2 --rounds 3",
            "bench --peer lbench=x --peer json=y --model a.gguf -d 0,4096 --kv f16,q8,q4 --section deep --drop-slow",
            "tokenizer-goldens models",
            "template-goldens templates --python venv/bin/python",
            "train-adapter train.txt test.txt out --python venv/bin/python",
            "adapter-quality a=a.txt b=b.txt --model c.gguf --limit 4096 --no-record",
            "gen-model --shape llama-1b --type q4_k_m out.gguf",
            "gen-model --shape llama-7b --type iq4_xs out.gguf",
            "family-goldens --models 24 --seed 1 --family nemotron --family lfm2",
        ] {
            let words = std::iter::once("xtask").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn unknown_families_are_named_beside_the_known_ones() {
        let words = ["xtask", "family-goldens", "--family", "lfm2", "--family", "lfm3"];
        let error = Cli::try_parse_from(words).expect_err("no such family").to_string();
        for part in ["invalid value 'lfm3' for '--family <NAME>'", "possible values: llama, mistral", "lfm2"]
        {
            assert!(error.contains(part), "{error}");
        }
    }
}
