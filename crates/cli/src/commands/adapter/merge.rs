//! `ruvllm adapter merge`: one adapter, or one model, of several adapters.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ruvllm_adapters::merge::{Dare, Input, Merge, Method, Rank, Ties};
use ruvllm_adapters::{Error as AdapterError, LoraFile};
use ruvllm_models::quantize::Recipe;
use serde::Serialize;

use super::into_base::IntoBase;
use super::result::{self, MatrixDocument};
use crate::args::{positive, recipe, whole_number};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{output, signal};

const HELP: &str = "\
Methods, on the deltas B A of each matrix:
  linear       sum of WEIGHT times delta; exact, ranks add up
  average      linear with the weights divided by their sum (model soup)
  concat       linear, truncated to the largest rank of the adapters
  slerp        spherical interpolation of two deltas at --t; exact, ranks add up
  ties         largest entries (--density), elected sign, mean of those that agree, times --lambda
  dare-linear  random entries dropped (--p, --seed), the rest rescaled, then linear
  dare-ties    dropped as in dare-linear, then ties (--density is 1 unless given)

Adapters are PEFT folders or GGUF files. A matrix that an adapter does not change has a delta of zero there. OUT ending
in .gguf is a GGUF adapter (llama.cpp's form), else a PEFT folder. GGUF files may have rows in another order: to
write one format from the other, or to merge both, add --base MODEL.

Ranks: linear, average and slerp are exact unless --rank or --error truncates them; ties and dare have deltas of full
rank, which are decomposed (randomized SVD; default rank: the sum of the adapters'). The relative error in the Frobenius
norm is printed, with --json for each matrix. --into-base writes a model instead and needs no rank: a GGUF file, or, if
MODEL is a Hugging Face folder and OUT does not end in .gguf, a folder with safetensors.

JSON: {method, inputs: [{path, weight}], output, format, type, base, relative_error, bytes, matrices: [{name, rank,
relative_error}]}; format is peft, gguf or model; of a model, relative_error is null and matrices is empty.

Examples:
  ruvllm adapter merge linear style-lora@0.7 facts-lora@0.5 -o both-lora
  ruvllm adapter merge ties a-lora b-lora c-lora --density 0.3 --rank 32 -o merged-lora
  ruvllm adapter merge slerp a-lora b-lora --t 0.4 -o between.gguf --base model.gguf
  ruvllm adapter merge linear a-lora --into-base model-F16.gguf -o model-a-Q4_K_M.gguf --type q4_k_m";

/// Merge LoRA adapters into one, or into a model
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct MergeArgs {
    /// linear, average, concat, slerp, ties, dare-linear or dare-ties
    #[arg(value_name = "METHOD", value_parser = kind)]
    method: Kind,

    /// Adapters with their weights [default: 1]
    #[arg(value_name = "PATH[@WEIGHT]", required = true, value_parser = weighted)]
    adapters: Vec<Weighted>,

    /// The GGUF file or folder to write
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,

    /// Fraction of entries that ties keeps [default: 0.5]
    #[arg(long, value_name = "D")]
    density: Option<f64>,

    /// Factor of the result of ties [default: 1]
    #[arg(long, value_name = "L", allow_negative_numbers = true)]
    lambda: Option<f64>,

    /// Probability that dare drops an entry [default: 0.5]
    #[arg(long, value_name = "P")]
    p: Option<f64>,

    /// Seed of the masks of dare [default: 0]
    #[arg(long, value_name = "N", value_parser = whole_number)]
    seed: Option<u64>,

    /// Place of slerp between the first adapter (0) and the second (1) [default: 0.5]
    #[arg(long, value_name = "T")]
    t: Option<f64>,

    /// Largest rank of a matrix
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with_all = ["error", "into_base"])]
    rank: Option<usize>,

    /// Lowest rank with at most this relative error, for each matrix
    #[arg(long, value_name = "E", value_parser = result::relative_error, conflicts_with = "into_base")]
    error: Option<f64>,

    /// Base model of the adapters, for row orders and to check them: its file, folder or name
    #[arg(long, value_name = "MODEL", conflicts_with = "into_base")]
    base: Option<PathBuf>,

    /// Add the merge to the weights of this model and write that
    #[arg(long, value_name = "MODEL")]
    into_base: Option<PathBuf>,

    /// Type of the factors: f32, f16, bf16 [default: f32]; of a model: those of `ruvllm quantize`
    /// [default: as it is]
    #[arg(long, value_name = "TYPE", value_parser = recipe)]
    r#type: Option<Recipe>,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,

    /// Number of threads [default: the number of cores]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// Method by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Linear,
    Average,
    Concat,
    Slerp,
    Ties,
    DareLinear,
    DareTies,
}

const KINDS: [(&str, Kind); 7] = [
    ("linear", Kind::Linear),
    ("average", Kind::Average),
    ("concat", Kind::Concat),
    ("slerp", Kind::Slerp),
    ("ties", Kind::Ties),
    ("dare-linear", Kind::DareLinear),
    ("dare-ties", Kind::DareTies),
];

fn kind(name: &str) -> Result<Kind, String> {
    let found = KINDS.iter().find(|(known, _)| *known == name);
    found.map(|&(_, kind)| kind).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|&(name, _)| name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// An adapter's path and its weight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Weighted {
    pub(super) path: PathBuf,
    pub(super) weight: f64,
}

/// Parses `PATH[@WEIGHT]`. An `@` that no number follows is part of the path.
fn weighted(text: &str) -> Result<Weighted, String> {
    let (path, weight) =
        match text.rsplit_once('@').map(|(path, weight)| (path, weight.parse::<f64>(), weight)) {
            Some((path, Ok(weight), _)) if !path.is_empty() => (path, weight),
            Some((path, Err(_), weight)) if !Path::new(text).exists() && Path::new(path).exists() => {
                return Err(format!("the weight {weight} of {path} is not a number"));
            }
            _ => (text, 1.0),
        };
    if !weight.is_finite() {
        return Err(format!("the weight {weight}: expected a finite number"));
    }
    Ok(Weighted { path: PathBuf::from(path), weight })
}

/// The JSON document.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    pub(super) method: &'static str,
    pub(super) inputs: &'a [Weighted],
    pub(super) output: &'a Path,
    pub(super) format: String,
    pub(super) r#type: &'static str,
    pub(super) base: Option<&'a Path>,
    pub(super) relative_error: Option<f64>,
    pub(super) bytes: u64,
    pub(super) matrices: Vec<MatrixDocument>,
}

impl MergeArgs {
    fn name(&self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self.method).map_or("", |&(name, _)| name)
    }

    /// The method with its parameters.
    ///
    /// # Errors
    /// A flag that the method does not use.
    fn method(&self) -> Result<Method> {
        let (trims, drops) = (
            matches!(self.method, Kind::Ties | Kind::DareTies),
            matches!(self.method, Kind::DareLinear | Kind::DareTies),
        );
        let slerp = self.method == Kind::Slerp;
        for (flag, given, used, users) in [
            ("--density", self.density.is_some(), trims, "ties and dare-ties"),
            ("--lambda", self.lambda.is_some(), trims, "ties and dare-ties"),
            ("--p", self.p.is_some(), drops, "dare-linear and dare-ties"),
            ("--seed", self.seed.is_some(), drops, "dare-linear and dare-ties"),
            ("--t", self.t.is_some(), slerp, "slerp"),
        ] {
            if given && !used {
                let reason = format!("{} does not use it; {users} do", self.name());
                return Err(Error::Conflict { flag, reason: reason.replace("slerp do", "slerp does") });
            }
        }
        if slerp && self.adapters.iter().any(|adapter| adapter.weight != 1.0) {
            let reason = "slerp has no weights; --t is the place between its two adapters".to_owned();
            return Err(Error::Conflict { flag: "@WEIGHT", reason });
        }
        let density = self.density.unwrap_or(if drops { 1.0 } else { 0.5 });
        let ties = Ties { density, lambda: self.lambda.unwrap_or(1.0) };
        let dare = Dare { p: self.p.unwrap_or(0.5), seed: self.seed.unwrap_or(0) };
        Ok(match self.method {
            Kind::Linear | Kind::Concat => Method::Linear,
            Kind::Average => Method::Average,
            Kind::Slerp => Method::Slerp { t: self.t.unwrap_or(0.5) },
            Kind::Ties => Method::Ties(ties),
            Kind::DareLinear => Method::DareLinear(dare),
            Kind::DareTies => Method::DareTies(dare, ties),
        })
    }

    /// The rank of each matrix.
    fn rank(&self, merge: &Merge<'_>) -> Rank {
        result::rank(self.rank, self.error).unwrap_or(match self.method {
            Kind::Linear | Kind::Average | Kind::Slerp => Rank::Exact,
            Kind::Concat => Rank::AtMost(merge.largest_rank()),
            Kind::Ties | Kind::DareLinear | Kind::DareTies => Rank::AtMost(merge.summed_rank()),
        })
    }
}

pub(crate) fn run(args: &MergeArgs, json: bool) -> Result<ExitCode> {
    let method = args.method()?;
    let opened: Vec<LoraFile> =
        args.adapters.iter().map(|adapter| LoraFile::open(&adapter.path)).collect::<Result<_, _>>()?;
    let inputs: Vec<Input<'_>> = opened
        .iter()
        .zip(&args.adapters)
        .map(|(file, adapter)| Input { file, weight: adapter.weight })
        .collect();
    if let Some(base) = &args.into_base {
        let job = IntoBase {
            base,
            output: &args.output,
            recipe: args.r#type,
            force: args.force,
            threads: args.threads,
        };
        let Some((kind, bytes, changed)) = job.run(&inputs, method)? else { return Ok(signal::exit_code()) };
        let document = Document {
            method: args.name(),
            inputs: &args.adapters,
            output: &args.output,
            format: "model".to_owned(),
            r#type: kind,
            base: Some(base),
            relative_error: None,
            bytes,
            matrices: Vec::new(),
        };
        return report(
            args,
            &document,
            json,
            &format!("{changed} matrices changed, {}", output::bytes(bytes)),
        );
    }
    adapter(args, &inputs, method, json)
}

/// Writes the merge as an adapter.
fn adapter(args: &MergeArgs, inputs: &[Input<'_>], method: Method, json: bool) -> Result<ExitCode> {
    let (format, factors) = (result::format_of(&args.output), result::factor_type(args.r#type)?);
    format.check_output(&args.output, args.force)?;
    let base = args.base.as_deref().map(result::base_model).transpose()?;
    let merge = Merge::new(inputs, method, base.as_ref(), format)?;
    let pool = result::pool(args.threads)?;
    let cancel = signal::cancel_on_interrupt();
    let mut progress = Progress::steps(format!("merging {}", args.output.display()));
    let made = merge.adapter(args.rank(&merge), factors, &pool, &mut |done, total| {
        progress.update(done as u64, total as u64);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(progress);
    let made = match made {
        Err(AdapterError::Cancelled) => return Ok(signal::exit_code()),
        made => made?,
    };
    made.adapter.write(&args.output, args.force)?;
    let document = Document {
        method: args.name(),
        inputs: &args.adapters,
        output: &args.output,
        format: format.to_string().to_lowercase(),
        r#type: factors.name(),
        base: args.base.as_deref(),
        relative_error: Some(made.relative_error()),
        bytes: made.adapter.bytes() as u64,
        matrices: result::matrices(&made),
    };
    report(args, &document, json, &result::summary(&made))
}

fn report(args: &MergeArgs, document: &Document<'_>, json: bool, summary: &str) -> Result<ExitCode> {
    if json {
        output::write_json(document)?;
    } else {
        let adapters = output::counted(args.adapters.len(), "adapter");
        let text = format!("{}: {} of {adapters}, {summary}\n", args.output.display(), args.name());
        output::write_text(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_paths_and_weights() {
        let read = |text: &str| weighted(text).map(|read| (read.path.display().to_string(), read.weight));
        let adapter = |path: &str, weight| Ok((path.to_owned(), weight));
        assert_eq!(read("a/b"), adapter("a/b", 1.0));
        assert_eq!(read("a/b@0.7"), adapter("a/b", 0.7));
        assert_eq!(read("a/b@-2"), adapter("a/b", -2.0));
        assert_eq!(read("me@home/b"), adapter("me@home/b", 1.0));
        assert_eq!(read("@1"), adapter("@1", 1.0));
        assert!(weighted("a@inf").is_err() && weighted("a@nan").is_err());
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let error = weighted(&format!("{file}@abc")).unwrap_err();
        assert_eq!(error, format!("the weight abc of {file} is not a number"));
    }

    #[test]
    fn every_method_has_a_name_and_is_described() {
        for (name, of_name) in KINDS {
            assert_eq!(kind(name), Ok(of_name));
            assert!(HELP.contains(&format!("\n  {name} ")), "{name}");
        }
        assert!(kind("soup").unwrap_err().contains("linear, average"));
    }
}
