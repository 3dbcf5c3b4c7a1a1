//! `ruvllm eval kl`: divergence between two runs over the same text.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm::{KlDivergence, KvPolicy};
use ruvllm_kernels::attention::KvFormat;
use serde::Serialize;

use super::engine::EngineArgs;
use super::text::{TextArgs, measured};
use crate::args::{ModelArgs, kv_policy};
use crate::commands::load;
use crate::commands::setup::{EngineSetup, RunSetup};
use crate::device::Loaded;
use crate::error::Result;
use crate::{output, signal};

const HELP: &str = "\
Two runs score the same text, in the windows of `ruvllm eval perplexity`. The candidate is what the flags of the engine
describe; the reference is --reference with --reference-kv, on the CPU, with weights as stored, without adapters and
kernel packs. Both models need the same vocabulary; the tokenizer is the reference's.

Memory: both models are loaded, each with a KV cache of its own, as if two programs ran (a file that both map is in
memory once). Both compute the same tokens in turn; at most 64 MiB of logits of each are held, and eight bytes per
position for the percentiles.

Divergence: Kullback-Leibler, D(reference || candidate) over the whole vocabulary, in nats; percentiles by the nearest
rank over all positions. Agreement: share of positions with the same most probable token. RMS dp: root mean square of
the change of the actual token's probability. Errors are standard errors, as if positions were independent; that of the
ratio of perplexities is from the paired differences of -ln p.

Ctrl-C ends the measurement with the result so far and exit code 130.

JSON: {version, commit, model: {name, fingerprint}, isa, threads, kv, gpu, reference: {model: {name, fingerprint}, kv,
perplexity, perplexity_error, nll, nll_error}, context, positions, kl: {mean, mean_error, p50, p95, p99, max},
agreement, agreement_error, perplexity, perplexity_error, nll, nll_error, perplexity_ratio, perplexity_ratio_error,
rms_delta_p, rms_delta_p_error, complete}; model, kv, perplexity and nll are the candidate's; agreement and rms_delta_p
are in [0, 1].

Examples:
  ruvllm eval kl --file validation.txt --kv q4
  ruvllm eval kl --file validation.txt -m model-q4_k_m.gguf --reference model-f16.gguf --kv f16 --json
  ruvllm eval kl --file validation.txt --quantize q4_0 --limit 16384";

/// KV policy of the reference without `--reference-kv`.
const REFERENCE_KV: KvFormat = KvFormat::F16;

/// KL divergence between two runs: models, quantizations, KV policies
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct KlArgs {
    #[command(flatten)]
    text: TextArgs,

    /// Model of the reference, as for --model [default: the one of --model]
    #[arg(long, value_name = "MODEL")]
    reference: Option<PathBuf>,

    /// KV-cache type of the reference, as for --kv [default: f16]
    #[arg(long, value_name = "POLICY", value_parser = kv_policy)]
    reference_kv: Option<KvPolicy>,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    /// Setup of the candidate.
    #[serde(flatten)]
    setup: EngineSetup,
    reference: ReferenceDocument,
    context: usize,
    positions: usize,
    kl: DivergenceDocument,
    agreement: f64,
    agreement_error: f64,
    #[serde(flatten)]
    candidate: NllDocument,
    perplexity_ratio: f64,
    perplexity_ratio_error: f64,
    rms_delta_p: f64,
    rms_delta_p_error: f64,
    complete: bool,
}

#[derive(Serialize)]
struct ReferenceDocument {
    #[serde(flatten)]
    setup: RunSetup,
    #[serde(flatten)]
    nll: NllDocument,
}

#[derive(Serialize)]
struct DivergenceDocument {
    mean: f64,
    mean_error: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

/// Perplexity of one run.
#[derive(Serialize)]
struct NllDocument {
    perplexity: f64,
    perplexity_error: f64,
    nll: f64,
    nll_error: f64,
}

impl From<ruvllm::MeanNll> for NllDocument {
    fn from(of: ruvllm::MeanNll) -> Self {
        let (perplexity, perplexity_error) = (of.perplexity(), of.perplexity_error());
        Self { perplexity, perplexity_error, nll: of.nll, nll_error: of.nll_error }
    }
}

pub(crate) fn run(args: &KlArgs, json: bool) -> Result<ExitCode> {
    let text = args.text.read()?;
    let reference_model = args
        .reference
        .clone()
        .map_or_else(|| args.engine.model.clone(), |path| ModelArgs { model: Some(path) });
    let kv = args.reference_kv.unwrap_or(REFERENCE_KV.into());
    let reference = args.engine.load_reference(&reference_model, kv)?;
    let candidate = args.engine.load(args.text.context)?;
    let tokens = load::encode_plain(&reference, &text)?;
    let TextArgs { context, limit, .. } = args.text;
    let result = measured("comparing", |progress| {
        reference.compare(candidate.backend(), &tokens, context, limit, progress)
    })?;
    let Some(result) = result else { return Ok(signal::exit_code()) };
    let reference = Loaded::Cpu(Box::new(reference));
    if json {
        let setup = EngineSetup::new(&args.engine.model, &candidate)?;
        output::write_json(&document(&result, context, setup, RunSetup::new(&reference_model, &reference)?))?;
    } else {
        let policies = [&candidate, &reference].map(|run| run.backend().kv_policy());
        output::write_text(&report(&result, context, policies))?;
    }
    Ok(if result.complete { ExitCode::SUCCESS } else { signal::exit_code() })
}

fn document(result: &KlDivergence, context: usize, setup: EngineSetup, reference: RunSetup) -> Document {
    let percentiles = result.percentiles;
    Document {
        setup,
        reference: ReferenceDocument { setup: reference, nll: result.reference.into() },
        context,
        positions: result.positions,
        kl: DivergenceDocument {
            mean: result.mean,
            mean_error: result.mean_error,
            p50: percentiles.p50,
            p95: percentiles.p95,
            p99: percentiles.p99,
            max: result.max,
        },
        agreement: result.agreement,
        agreement_error: result.agreement_error,
        candidate: result.candidate.into(),
        perplexity_ratio: result.perplexity_ratio(),
        perplexity_ratio_error: result.perplexity_ratio_error(),
        rms_delta_p: result.rms_delta_p,
        rms_delta_p_error: result.rms_delta_p_error,
        complete: result.complete,
    }
}

/// The result for a reader; `policies` are the KV policies of candidate and reference.
fn report(result: &KlDivergence, context: usize, policies: [KvPolicy; 2]) -> String {
    let KlDivergence { positions, mean, mean_error, percentiles, max, .. } = *result;
    let percent = |share: f64, error: f64| format!("{:.3} % +- {:.3} %", 100.0 * share, 100.0 * error);
    let perplexity = |of: ruvllm::MeanNll| format!("{:.4} +- {:.4}", of.perplexity(), of.perplexity_error());
    let [candidate_kv, reference_kv] = policies;
    format!(
        "kl divergence {mean:.6} +- {mean_error:.6} nats, median {:.6}, p95 {:.6}, p99 {:.6}, max {max:.6}\n\
         same top token {}, RMS dp {}\n\
         perplexity {} (kv {candidate_kv}), reference {} (kv {reference_kv}), ratio {:.6} +- {:.6}\n\
         {} in windows of {context}{}\n",
        percentiles.p50,
        percentiles.p95,
        percentiles.p99,
        percent(result.agreement, result.agreement_error),
        percent(result.rms_delta_p, result.rms_delta_p_error),
        perplexity(result.candidate),
        perplexity(result.reference),
        result.perplexity_ratio(),
        result.perplexity_ratio_error(),
        output::counted(positions, "position"),
        if result.complete { "" } else { " (stopped)" },
    )
}
