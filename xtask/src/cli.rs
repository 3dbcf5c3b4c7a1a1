//! The command line of `cargo xtask`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::adr::Depth;
use crate::bench::{BenchArgs, KvQualityArgs, QuantizeTableArgs};
use crate::gen_model::{Shape, TypeMix};
use crate::sanitize::Sanitizer;
use crate::{
    Result, Workspace, adr, bench, ci, cross_test, family_goldens, fixtures, gen_model, sanitize,
    second_opinion, setup, template_goldens, tokenizer_goldens, workspace,
};

/// Builds, checks and measures the ruvllm workspace
///
/// Run it from anywhere inside the workspace. Before a change is proposed, `cargo xtask ci` must pass.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs every check that a change must pass, each with its time; stops at the first failure
    ///
    /// Format, committed test data, clippy with warnings denied, tests (unit, integration, doc, and the
    /// numeric crates once more with scalar kernels), docs with warnings denied, decision records.
    Ci,
    /// Runs the tests: the workspace, then the numeric crates with `RUVLLM_ISA=scalar`
    Test,
    /// Runs the tests of the kernels for `AArch64` on emulated CPUs, one for each level of NEON
    ///
    /// Needs a compiler with the standard library of that target, its linker and an emulator; `cargo xtask setup
    /// --cross` installs them. `ci` runs this where they are present. Emulation shows that results are right, not
    /// how fast they are.
    CrossTest,
    /// Runs the tests of the kernels under a sanitizer, or the thread pool's model under loom
    ///
    /// Not part of `ci`: each builds anew and takes minutes.
    Sanitize {
        /// What to look for
        #[arg(value_enum)]
        sanitizer: Sanitizer,
    },
    /// Compares the engine's logits and texts with those of candle's code for the same models
    ///
    /// Not part of `ci`: builds candle, which takes minutes. Fails unless the comparison ran and passed.
    SecondOpinion,
    /// Compares committed test data and models with their checksums
    Fixtures {
        /// Writes the list of checksums anew
        #[arg(long)]
        update: bool,
    },
    /// Installs what a fresh Debian machine lacks; does nothing when all is there
    Setup {
        /// Only says what is missing and what would install it
        #[arg(long)]
        dry_run: bool,
        /// Also what `cross-test` needs
        #[arg(long)]
        cross: bool,
    },
    /// Runs Criterion suites, or whole models beside another engine
    ///
    /// `cargo xtask bench matmul` runs one suite, `batch-curve` draws rates over batch sizes,
    /// `prefix-traces` counts hits of the prefix tree. `cargo xtask bench
    /// --peer llama-bench=PATH --model FILE` runs this engine and llama.cpp's llama-bench in turn (with and without
    /// repacking and flash attention), writes the samples to target/bench/ and the table to its section of
    /// docs/performance.md.
    Bench(BenchArgs),
    /// Measures what policies of the KV cache cost: perplexity of a text, retrieval from it, and bytes
    ///
    /// Writes the tables and the figure to docs/kv-cache.md, the samples to target/bench/.
    KvQuality(KvQualityArgs),
    /// Measures what the types of `ruvllm quantize` cost, beside llama.cpp's quantizer
    ///
    /// Quantizes a model with both programs, measures perplexity of both files with this engine, and of a shorter piece with
    /// llama.cpp, which must read the files written here. Writes the table to docs/models.md, the samples to target/bench/.
    QuantizeTable(QuantizeTableArgs),
    /// Lists, starts and checks the architecture decision records in docs/adr
    Adr {
        #[command(subcommand)]
        command: AdrCommand,
    },
    /// Compares the tokenizers of real vocabularies with the ids that their models' own tokenizers give
    ///
    /// Prints a table. A folder in the manner of llama.cpp's `models`: `NAME.gguf`, the texts `NAME.gguf.inp`, their ids
    /// `NAME.gguf.out`. Not part of `ci`: the files are too large to be committed.
    TokenizerGoldens {
        /// The folder
        folder: PathBuf,
    },
    /// Renders conversations with chat templates of published models, here and by Python's Jinja2, and compares
    ///
    /// Prints a table. Not part of `ci`: it needs a Python with the package `jinja2`, and the templates.
    TemplateGoldens {
        /// The folder with the templates, `NAME.jinja`
        folder: PathBuf,
        /// The Python
        #[arg(long, value_name = "PROGRAM", default_value = "python3")]
        python: PathBuf,
    },
    /// Computes models with drawn configurations and random weights here and by transformers, and compares
    ///
    /// Prints a table. Not part of `ci`: it needs a Python with the packages `torch` and `transformers`. The models stay in
    /// target/family-goldens until the next run.
    FamilyGoldens {
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

#[derive(Debug, Subcommand)]
enum AdrCommand {
    /// Prints number, status and title of each record
    List {
        /// Also rewrites the index in docs/adr/README.md
        #[arg(long)]
        update: bool,
    },
    /// Starts a record from the template under the next number
    New {
        /// The decision in a few words
        title: String,
    },
    /// Runs the Conformance section of every accepted record; one line per check
    Check {
        /// Also runs the tests that the records name
        #[arg(long)]
        full: bool,
    },
}

/// Parses the command line and does what it says.
///
/// # Errors
/// Whatever the command reports; usage errors end the process with status 2, as clap does.
pub fn run() -> Result<()> {
    let cli = Cli::parse();
    let workspace = Workspace::find()?;
    match cli.command {
        Command::Ci => ci::ci(&workspace),
        Command::Test => ci::test(&workspace),
        Command::CrossTest => cross_test::cross_test(&workspace),
        Command::Sanitize { sanitizer } => sanitize::sanitize(&workspace, sanitizer),
        Command::SecondOpinion => second_opinion::second_opinion(&workspace),
        Command::Fixtures { update: true } => fixtures::update(&workspace),
        Command::Fixtures { update: false } => fixtures::check(&workspace),
        Command::Setup { dry_run, cross } => setup::setup(&workspace, dry_run, cross),
        Command::Bench(args) => bench::bench(&workspace, &args),
        Command::KvQuality(args) => bench::kv_quality(&workspace, &args),
        Command::QuantizeTable(args) => bench::quantize_table(&workspace, &args),
        Command::TokenizerGoldens { folder } => tokenizer_goldens::tokenizer_goldens(&folder),
        Command::FamilyGoldens { models, seed, python } => {
            family_goldens::family_goldens(&workspace, &python, models, seed)
        }
        Command::TemplateGoldens { folder, python } => {
            template_goldens::template_goldens(&workspace, &folder, &python)
        }
        Command::Adr { command } => run_adr(&workspace, &command),
        Command::GenModel { shape, types, out, seed, layers, threads } => {
            let options = gen_model::Options { shape, types, seed, layers, threads };
            gen_model::gen_model(&options, &out)
        }
    }
}

fn run_adr(workspace: &Workspace, command: &AdrCommand) -> Result<()> {
    match command {
        AdrCommand::List { update } => adr::list(workspace, *update),
        AdrCommand::New { title } => {
            println!("{}", adr::new(workspace, title, &workspace::today())?);
            Ok(())
        }
        AdrCommand::Check { full: true } => adr::check(workspace, Depth::Full),
        AdrCommand::Check { full: false } => adr::check(workspace, Depth::Fast),
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
            "ci",
            "test",
            "cross-test",
            "sanitize address",
            "sanitize thread",
            "sanitize loom",
            "second-opinion",
            "fixtures --update",
            "setup --dry-run --cross",
            "bench",
            "bench matmul",
            "bench batch-curve",
            "bench prefix-traces --no-record",
            "kv-quality",
            "kv-quality --file a.txt --model b.gguf --limit 49152 --kv q8 --program ruvllm",
            "kv-quality --only passkey,bytes --trials 2",
            "quantize-table --llama bin --model a.gguf --file b.txt --type Q4_0,Q2_K --limit 8192 --no-record",
            "bench --peer llama-bench=x --model a.gguf --model b.gguf -p 512 -n 64 -t 1,2 --rounds 3",
            "bench --peer lbench=x --peer json=y --model a.gguf -d 0,4096 --kv f16,q8,q4 --section deep --drop-slow",
            "tokenizer-goldens models",
            "template-goldens templates --python venv/bin/python",
            "adr list",
            "adr new A-title",
            "adr check --full",
            "gen-model --shape llama-1b --type q4_k_m out.gguf",
            "gen-model --shape llama-7b --type iq4_xs out.gguf",
        ] {
            let words = std::iter::once("xtask").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
