//! The command line: commands, the flags that several of them share, and the checks of their values.
//!
//! Each command's own flags live in its module under [`crate::commands`]. A value that fails a check here is a usage
//! error (exit code 2).

mod adapters;
mod generation;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use ruvllm::{EngineOptions, Isa, KvCalibration, KvPolicy, PressurePolicy};
use ruvllm_models::quantize::Recipe;

use crate::commands::{
    bench, calibrate_kv, chat, convert, detokenize, doctor, embed, eval, generate, inspect, quantize, store,
    template, tokenize,
};
use crate::error::one_line;

pub(crate) use adapters::{AdapterArgs, NamedAdapter, named_adapter, scaled};
pub(crate) use generation::GenerationArgs;

const HELP: &str = "\
Without --model every command uses the small English model inside the program, offline.

Examples:
  ruvllm generate --chat \"Tell me a story about a turtle.\"
  ruvllm chat
  ruvllm inspect model.gguf
  ruvllm pull hf://org/repo-GGUF/Q4_K_M --as small
  ruvllm doctor

Exit codes: 0 success, 1 failure, 2 usage error, 130 stopped by Ctrl-C.";

/// Run language models on the hardware you have
#[derive(Debug, Parser)]
#[command(name = "ruvllm", version, after_help = HELP, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Print one JSON document on standard output instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do. The texts of the help are those of the argument structs.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub(crate) enum Command {
    Generate(Box<generate::GenerateArgs>),
    Chat(Box<chat::ChatArgs>),
    Inspect(inspect::InspectArgs),
    Tokenize(tokenize::TokenizeArgs),
    Detokenize(detokenize::DetokenizeArgs),
    Template(template::TemplateArgs),
    Embed(Box<embed::EmbedArgs>),
    #[command(subcommand)]
    Eval(eval::EvalCommand),
    Bench(bench::BenchArgs),
    Convert(convert::ConvertArgs),
    Quantize(quantize::QuantizeArgs),
    CalibrateKv(calibrate_kv::CalibrateKvArgs),
    Pull(store::pull::PullArgs),
    List(store::list::ListArgs),
    Info(store::info::InfoArgs),
    Rm(store::rm::RmArgs),
    Doctor(doctor::DoctorArgs),
}

/// The model of a command.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[arg(
        long,
        short,
        value_name = "MODEL",
        help = "GGUF file, HF folder or pulled model [default: RUVLLM_MODEL, or the built-in one]"
    )]
    pub(crate) model: Option<PathBuf>,
}

/// How the engine computes.
#[derive(Debug, Args)]
pub(crate) struct ComputeArgs {
    /// Threads to compute with [default: one for each core]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,

    /// Instruction set by name; `ruvllm doctor` lists those of this machine [default: the best]
    #[arg(long, value_name = "ISA", value_parser = isa)]
    pub(crate) isa: Option<Isa>,

    #[command(flatten)]
    pub(crate) loading: LoadingArgs,

    /// Memory for keys and values, e.g. 512MiB [default: 4 contexts, as memory allows]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) kv_budget: Option<usize>,

    /// Memory pressure policy: lower-precision, evict-prefixes, spill, reject or drop-oldest
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub(crate) pressure: PressurePolicy,

    #[command(flatten)]
    pub(crate) calibration: CalibrationArgs,
}

impl ComputeArgs {
    /// Engine options of these flags.
    pub(crate) fn options(&self, kv: Option<KvPolicy>) -> EngineOptions {
        let Self { threads, isa, loading: LoadingArgs { quantize }, kv_budget, pressure, ref calibration } =
            *self;
        let kv_calibration = calibration.kv_calibration.clone();
        EngineOptions { threads, isa, quantize, kv, kv_calibration, kv_budget, pressure, ..EngineOptions::default() }
    }
}

/// What becomes of the weights while they are loaded.
#[derive(Debug, Args)]
pub(crate) struct LoadingArgs {
    /// Quantize the weights while loading; TYPE as for `ruvllm quantize` [default: as they are]
    #[arg(long, value_name = "TYPE", value_parser = quantize::recipe)]
    pub(crate) quantize: Option<Recipe>,
}

/// What was learned of the model's keys and values.
#[derive(Debug, Args)]
pub(crate) struct CalibrationArgs {
    /// File of `ruvllm calibrate-kv`, for a --kv with nuq3
    #[arg(long, value_name = "FILE", value_parser = kv_calibration)]
    pub(crate) kv_calibration: Option<Arc<KvCalibration>>,
}

/// A count of at least one.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number of at least 1".to_owned()),
        Ok(n) => Ok(n),
    }
}

/// A count that may be zero.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number, 0 or more".to_owned())
}

/// A finite number.
pub(crate) fn finite(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() => Ok(x),
        _ => Err("expected a finite number".to_owned()),
    }
}

/// A finite number of at least zero.
pub(crate) fn non_negative(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|x| *x >= 0.0).ok_or_else(|| "expected a number of at least 0".to_owned())
}

/// A finite number above zero.
pub(crate) fn above_zero(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|x| *x > 0.0).ok_or_else(|| "expected a number above 0".to_owned())
}

/// A number in [0, 1].
pub(crate) fn fraction(text: &str) -> Result<f32, String> {
    finite(text)
        .ok()
        .filter(|x| (0.0..=1.0).contains(x))
        .ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// `ID=VALUE` of a logit bias.
pub(crate) fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, value)| Some((id.trim().parse().ok()?, value.trim().parse().ok()?)));
    match parsed {
        Some((id, value)) if f32::is_finite(value) || value == f32::NEG_INFINITY => Ok((id, value)),
        _ => Err("expected ID=VALUE with a token id and a number, e.g. 42=-1.5 (-inf forbids the token)"
            .to_owned()),
    }
}

/// A number of bytes, alone or with a unit.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" => Some(1usize),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let number = number.parse::<usize>().ok();
    let bytes = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "expected bytes like 1048576, 512MiB or 2GiB".to_owned())
}

/// What `--kv` says about itself.
pub(crate) const KV_HELP: &str = "Keys and values: f32, f16, bf16, q8, q4, kivi4, nuq3, kivi2, k4v2, tiered";

/// How keys and values are stored.
pub(crate) fn kv_policy(text: &str) -> Result<KvPolicy, String> {
    text.parse().map_err(|error: ruvllm_kv_cache::Error| error.to_string())
}

/// A file of `ruvllm calibrate-kv`. Whether it is of the right model is found when the engine starts.
fn kv_calibration(path: &str) -> Result<Arc<KvCalibration>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read it: {error}"))?;
    KvCalibration::from_bytes(&bytes).map(Arc::new).map_err(|error| one_line(&error))
}

/// An instruction set by name. Whether this machine has it is found when the engine starts.
pub(crate) fn isa(text: &str) -> Result<Isa, String> {
    text.parse().map_err(|error: ruvllm_kernels::Error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn values_outside_their_range_are_refused() {
        for (text, ok) in
            [("0", false), ("1", true), ("-1", false), ("x", false), ("1.5", false), ("", false)]
        {
            assert_eq!(positive(text).is_ok(), ok, "{text:?}");
        }
        for (text, ok) in
            [("0", true), ("1", true), ("1.01", false), ("-0.1", false), ("nan", false), ("inf", false)]
        {
            assert_eq!(fraction(text).is_ok(), ok, "{text:?}");
        }
        assert!(above_zero("0").is_err() && above_zero("1e-3").is_ok());
        assert!(non_negative("-1").is_err() && non_negative("0").is_ok());
        assert!(finite("nan").is_err() && finite("-2").is_ok());
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("1000"), Ok(1000));
        assert_eq!(bytes("3KiB"), Ok(3 << 10));
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        for text in ["", "0", "0MiB", "MiB", "-1", "1.5GiB", "1MB", "99999999999GiB"] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn logit_biases_are_read() {
        assert_eq!(logit_bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(logit_bias("0=-inf"), Ok((0, f32::NEG_INFINITY)));
        for text in ["42", "=1", "a=1", "1=", "1=nan", "1=inf", "-1=2"] {
            assert!(logit_bias(text).is_err(), "{text:?}");
        }
    }
}
