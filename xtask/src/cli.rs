//! Command line of `cargo xtask`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::adr::Depth;
use crate::ci::Full;
use crate::clients::ClientsArgs;
use crate::deployment::DeploymentArgs;
use crate::dynamo::DynamoArgs;
use crate::process::CommandLine;
use crate::sanitize::Sanitizer;
use crate::{
    Result, Workspace, adr, ci, clients, core_pack, cross_test, dependencies, deployment, dynamo, fixtures,
    fuzz, gpu_bundle, gpu_web, grpc, kernel_sandbox, object_store, platforms, sanitize, second_opinion,
    setup, tidy, web, workspace,
};

/// Builds, checks and measures the ruvllm workspace
///
/// Run it from anywhere inside the workspace. Before a change is proposed, `cargo xtask ci` must
/// pass.
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
    /// Format, committed test data, form of the tree, clippy with warnings denied, tests (unit,
    /// integration, doc, and the numeric crates once more with scalar kernels), loom, emulated ARM
    /// CPUs where the tools are, docs with warnings denied, decision records.
    Ci {
        /// Only lints and tests of what the change touches
        #[arg(long, conflicts_with = "full")]
        quick: bool,
        /// Also sanitizers, fuzzing, many generated cases, other platforms and implementations;
        /// goes on after failures
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        peers: Full,
    },
    /// Runs the tests: the workspace, then the numeric crates with `RUVLLM_ISA=scalar`
    Test,
    /// Runs the tests of the kernels for `AArch64` on emulated CPUs, one for each level of NEON
    ///
    /// Needs a compiler with the standard library of that target, its linker and an emulator;
    /// `cargo xtask setup --cross` installs them. `ci` runs this where they are present. Emulation
    /// shows that results are right, not how fast they are.
    CrossTest,
    /// Type-checks the engine for macOS and the GPU kernels for browsers; builds tests and program
    /// for Windows and runs them under wine
    ///
    /// Not part of `ci`, but of `ci --full`; `cargo xtask setup --platforms` installs the tools.
    Platforms,
    /// Runs the tests of the kernels under a sanitizer, or the thread pool's model under loom
    ///
    /// Not part of `ci`: each builds anew and takes minutes.
    Sanitize {
        /// Kind of fault to look for
        #[arg(value_enum)]
        sanitizer: Sanitizer,
        /// After the tests, repeats those of panicking jobs of the thread pool for so long
        #[arg(long, default_value_t = 0)]
        seconds: u64,
    },
    /// Runs the fuzz targets under the address sanitizer
    ///
    /// Not part of `ci`, but of `ci --full`. Needs a C++ compiler.
    Fuzz {
        /// One target instead of all
        target: Option<String>,
        /// Seconds for each
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Compares the engine's logits and texts with those of candle's code for the same models
    ///
    /// Not part of `ci`: builds candle, which takes minutes. Fails unless the comparison ran and
    /// passed.
    SecondOpinion,
    /// Lints and tests gRPC, the server's feature `grpc`
    ///
    /// Not part of `ci`, but of `ci --full`.
    Grpc {
        /// First generates the Rust code and the descriptors of the `.proto` file anew
        #[arg(long)]
        update: bool,
    },
    /// Lints and tests stored prefixes in an object store, against an S3-compatible server
    ///
    /// Not part of `ci`, but of `ci --full`. Needs Python and its registry.
    ObjectStore,
    /// Lints and tests the sandbox of kernel packs, and the core pack in the engine
    ///
    /// Not part of `ci`, but of `ci --full`.
    KernelSandbox,
    /// Builds the kernels of the core pack for WebAssembly and replaces the committed module
    ///
    /// `cargo xtask setup --core-pack` installs the compiler.
    CorePack {
        /// Builds it in another folder instead and compares the bytes; `ci --full` does
        #[arg(long)]
        check: bool,
    },
    /// Checks each GPU kernel against float64 and a tiny model end to end, on any adapter
    ///
    /// Software Vulkan is enough; skipped without a Vulkan loader. Not part of `ci`, but of `ci
    /// --full`, with a thousand random shapes and all tests of backend and program.
    Gpu,
    /// Runs the GPU kernels in Chromium's WebGPU and compares results with software Vulkan
    ///
    /// Needs Node.js and Chromium (`setup --web`) and a Vulkan driver. Part of `ci --full` where
    /// these are.
    GpuWeb,
    /// Packs programs and a script that check and measure a GPU of another machine
    ///
    /// Builds the program with GPU support, the checks of kernels, the load generator and the model
    /// generator for release. One run of the script checks every kernel and measures kernels, a
    /// model and a server; the archive runs on Linux of the same processor without a toolchain and
    /// the internet.
    GpuBundle {
        /// Folder for `ruvllm-gpu.tar.xz`, which is created
        folder: PathBuf,
        /// Folder with llama.cpp's `llama-bench` and its libraries, which the script runs in turn
        #[arg(long, value_name = "DIR")]
        peer: Option<PathBuf>,
    },
    /// Runs client libraries of others against the server: one table of features and clients
    ///
    /// Not part of `ci`: needs Python, node and the registries of both. Fails if a check does.
    Clients(ClientsArgs),
    /// Checks front end, router and workers of NVIDIA Dynamo before servers on loopback
    ///
    /// Not part of `ci`: needs Python and its registry. One line for each check; skipped where the
    /// packages cannot be installed.
    Dynamo(DynamoArgs),
    /// Checks the server's built-in web page in Chromium, and takes screenshots
    ///
    /// `cargo xtask web --url http://127.0.0.1:8080/ -- ruvllm serve --port 8080` starts the server
    /// too. Not part of `ci`; `cargo xtask setup --web` installs the tools.
    Web(web::Options),
    /// Checks compose and Kubernetes manifests: schemas, agreement with the program, servers that
    /// run
    ///
    /// Not part of `ci`, but of `ci --full`. Needs Python with its registry, and bubblewrap.
    Deployment(DeploymentArgs),
    /// Compares committed test data and models with their checksums
    Fixtures {
        /// Writes the list of checksums anew
        #[arg(long)]
        update: bool,
    },
    /// Checks the form of the tree: lengths of files and functions, widths of prose, openings of
    /// comments, READMEs, cycles of files
    Tidy {
        /// Prints files, lines and import cycles of each crate instead
        #[arg(long, conflicts_with = "fix")]
        graph: bool,
        /// Wraps wide comments and pages instead
        #[arg(long)]
        fix: bool,
    },
    /// Writes the table of packages that each crate brings along, in ARCHITECTURE.md
    Dependencies {
        /// Only compares it
        #[arg(long)]
        check: bool,
    },
    /// Writes the manual pages of the program into a folder
    Man {
        /// The folder, which is created
        folder: PathBuf,
    },
    /// Installs what a fresh Debian machine lacks; does nothing when all is there
    Setup {
        /// Only says what is missing and what would install it
        #[arg(long)]
        dry_run: bool,
        /// Also what `cross-test` needs
        #[arg(long)]
        cross: bool,
        /// Also what `platforms` needs
        #[arg(long)]
        platforms: bool,
        /// Also what `web` needs
        #[arg(long)]
        web: bool,
        /// Also what `gpu` and the steps of the GPU in `ci --full` need
        #[arg(long)]
        gpu: bool,
        /// Also what `core-pack` needs
        #[arg(long)]
        core_pack: bool,
    },
    /// Runs Criterion suites, or whole models beside another engine
    #[command(disable_help_flag = true)]
    Bench(Forwarded),
    /// Measures the cost of KV-cache policies: perplexity, retrieval and bytes
    #[command(disable_help_flag = true)]
    KvQuality(Forwarded),
    /// Measures the cost of the types of `ruvllm quantize`, beside llama.cpp's quantizer
    #[command(disable_help_flag = true)]
    QuantizeTable(Forwarded),
    /// Compares tokenizers with the ids of the models' own tokenizers
    #[command(disable_help_flag = true)]
    TokenizerGoldens(Forwarded),
    /// Compares chat templates of published models with Python's Jinja2
    #[command(disable_help_flag = true)]
    TemplateGoldens(Forwarded),
    /// Compares models of drawn configurations with transformers
    #[command(disable_help_flag = true)]
    FamilyGoldens(Forwarded),
    /// Draws the figures in docs/plots from the tables of the pages beside them
    #[command(disable_help_flag = true)]
    Plots(Forwarded),
    /// Measures embeddings of an encoder beside sentence-transformers and llama.cpp
    #[command(disable_help_flag = true)]
    EmbeddingSpeed(Forwarded),
    /// Trains a LoRA adapter of the built-in model on a text, with PEFT
    #[command(disable_help_flag = true)]
    TrainAdapter(Forwarded),
    /// Measures what adapters and their merges do to perplexity
    #[command(disable_help_flag = true)]
    AdapterQuality(Forwarded),
    /// Writes a model of a real shape with random weights
    #[command(disable_help_flag = true)]
    GenModel(Forwarded),
    /// Lists, starts and checks the architecture decision records in docs/adr
    Adr {
        #[command(subcommand)]
        command: AdrCommand,
    },
}

/// Arguments of a command of the package `ruvllm-tools`, which checks them.
#[derive(clap::Args, Debug)]
struct Forwarded {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<OsString>,
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

/// Parses the command line and runs the command.
///
/// # Errors
/// Errors of the command; usage errors end the process with status 2 (clap).
pub fn run() -> Result<()> {
    let cli = Cli::parse();
    let workspace = Workspace::find()?;
    match cli.command {
        Command::Ci { quick: true, .. } => ci::quick(&workspace),
        Command::Ci { full: true, peers, .. } => ci::full(&workspace, &peers),
        Command::Ci { .. } => ci::ci(&workspace),
        Command::Test => ci::test(&workspace),
        Command::CrossTest => cross_test::cross_test(&workspace),
        Command::Platforms => platforms::platforms(&workspace),
        Command::Sanitize { sanitizer, seconds } => {
            sanitize::sanitize(&workspace, sanitizer, Duration::from_secs(seconds))
        }
        Command::Fuzz { target, seconds } => {
            println!("{}", fuzz::fuzz(&workspace, target.as_deref(), seconds)?);
            Ok(())
        }
        Command::Grpc { update } => grpc::grpc(&workspace, update),
        Command::Gpu => ci::gpu(&workspace),
        Command::GpuWeb => gpu_web::check(&workspace),
        Command::GpuBundle { folder, peer } => gpu_bundle::gpu_bundle(&workspace, &folder, peer.as_deref()),
        Command::ObjectStore => object_store::object_store(&workspace),
        Command::KernelSandbox => kernel_sandbox::kernel_sandbox(&workspace),
        Command::CorePack { check: false } => core_pack::update(&workspace),
        Command::CorePack { check: true } => {
            println!("{}", core_pack::check(&workspace)?);
            Ok(())
        }
        Command::Clients(args) => clients::clients(&workspace, &args),
        Command::Dynamo(args) => dynamo::dynamo(&workspace, &args),
        Command::Deployment(args) => deployment::deployment(&workspace, &args),
        Command::SecondOpinion => second_opinion::second_opinion(&workspace),
        Command::Web(options) => web::web(&workspace, &options),
        Command::Fixtures { update: true } => fixtures::update(&workspace),
        Command::Fixtures { update: false } => fixtures::check(&workspace),
        Command::Tidy { graph: true, .. } => tidy::print_graph(&workspace),
        Command::Tidy { fix: true, .. } => tidy::fix(&workspace),
        Command::Tidy { graph: false, fix: false } => tidy::check(&workspace),
        Command::Dependencies { check: true } => dependencies::check(&workspace).map(|_| ()),
        Command::Dependencies { check: false } => dependencies::update(&workspace),
        Command::Man { folder } => man(&workspace, &folder),
        Command::Setup { dry_run, cross, platforms, web, gpu, core_pack } => {
            setup::setup(&workspace, dry_run, setup::Extras { cross, platforms, web, gpu, core_pack })
        }
        Command::Adr { command } => run_adr(&workspace, &command),
        Command::Bench(_)
        | Command::KvQuality(_)
        | Command::QuantizeTable(_)
        | Command::TokenizerGoldens(_)
        | Command::TemplateGoldens(_)
        | Command::FamilyGoldens(_)
        | Command::Plots(_)
        | Command::EmbeddingSpeed(_)
        | Command::TrainAdapter(_)
        | Command::AdapterQuality(_)
        | Command::GenModel(_) => tools(&workspace),
    }
}

/// Runs this command line in `ruvllm-tools`, a separate package because it needs the project's
/// libraries.
fn tools(workspace: &Workspace) -> Result<()> {
    CommandLine::cargo(workspace)
        .args(["run", "--quiet", "--package", "ruvllm-tools", "--"])
        .args(std::env::args_os().skip(1))
        .run()
}

/// Writes manual pages through the program's hidden command `man`, so that xtask does not depend on
/// it.
fn man(workspace: &Workspace, folder: &Path) -> Result<()> {
    CommandLine::cargo(workspace)
        .args(["run", "--quiet", "--package", "ruvllm-cli", "--", "man"])
        .args([folder])
        .run()
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
            "ci --quick",
            "ci --full --python venv/bin/python --templates a --vocabularies b",
            "fuzz gguf_open --seconds 5",
            "test",
            "cross-test",
            "sanitize address",
            "sanitize thread",
            "sanitize thread --seconds 600",
            "core-pack --check",
            "sanitize loom",
            "second-opinion",
            "clients",
            "clients --server target/release/ruvllm --only curl --feature chat",
            "clients --url http://127.0.0.1:8080 --key a --limited-key b --model c --gauge d --counter e",
            "clients --write",
            "clients schemathesis --minutes 10 --server a",
            "clients lm-eval",
            "deployment --server target/debug/ruvllm",
            "deployment --dynamo venv/bin/python --model folder --failures",
            "fixtures --update",
            "tidy --graph",
            "tidy --fix",
            "dependencies --check",
            "man target/man",
            "setup --dry-run --cross --platforms --web",
            "platforms",
            "web --shots target/web",
            "web --url http://127.0.0.1:8080/ -- ruvllm serve --port 8080",
            "adr list",
            "adr new A-title",
            "adr check --full",
            "bench --peer llama-bench=x --model a.gguf -p 512",
            "embedding-speed --model a --python b",
            "plots",
            "gpu",
            "gpu-web",
            "gpu-bundle target/bundle",
            "gpu-bundle target/bundle --peer llama.cpp/build/bin",
            "gen-model --help",
        ] {
            let words = std::iter::once("xtask").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
