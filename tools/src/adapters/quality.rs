//! `cargo xtask adapter-quality`: perplexity of held-out texts with adapters of their domains, each
//! alone, in one batch, with factors in 8 bits, and merged.

use std::fmt::Write as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ruvllm_adapters::export::{AdapterFormat, FactorType};
use ruvllm_adapters::merge::{Dare, Input, Merge, Method, Rank, Ties};
use ruvllm_adapters::{FactorFormat, LoraFile, Part, ScaledAdapter};
use ruvllm_memory::{PagePool, PoolConfig, Request};
use ruvllm_models::{
    Compute, KvFormat, LogitsRows, Model, Segment, Sequence, Workspace as Buffers, open_checkpoint,
};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::EncodeOptions;
use xtask::Workspace;

use crate::bench::section;
use crate::{Error, Result};

const PAGE: &str = "docs/adapters.md";
const SECTION: &str = "adapter-quality";

/// Bytes of keys, values and factors.
const BYTES: usize = 256 << 20;

/// Rank of a merge that is shorter than the sum of the adapters' ranks.
const TRUNCATED: usize = 8;

/// Rank of merges whose deltas are not sums.
const FULL: usize = 64;

/// Arguments of `adapter-quality`.
#[derive(Debug, Args)]
pub(crate) struct AdapterQualityArgs {
    /// Two adapters or more, each with a held-out text of its domain
    #[arg(value_name = "ADAPTER=TEXT", required = true, num_args = 2.., value_parser = pair)]
    pairs: Vec<Pair>,
    /// The model of the adapters
    #[arg(long, value_name = "FILE", default_value = "models/base-q8_0.gguf")]
    model: PathBuf,
    /// Tokens in a window
    #[arg(long, default_value_t = 512)]
    context: usize,
    /// Use only the first tokens of each text
    #[arg(long, value_name = "TOKENS", default_value_t = 32_768)]
    limit: usize,
    /// Leaves docs/adapters.md as it is
    #[arg(long)]
    no_record: bool,
}

/// An adapter and a text of its domain.
#[derive(Debug, Clone)]
struct Pair {
    adapter: PathBuf,
    text: PathBuf,
}

fn pair(text: &str) -> Result<Pair, String> {
    match text.split_once('=') {
        Some((adapter, text)) if !adapter.is_empty() && !text.is_empty() => {
            Ok(Pair { adapter: adapter.into(), text: text.into() })
        }
        _ => Err("an adapter and a text are written ADAPTER=TEXT".to_owned()),
    }
}

/// Perplexities of all texts in one setting.
struct Row {
    setting: String,
    perplexities: Vec<f64>,
    /// Relative error of a merged adapter against the merge of deltas.
    error: Option<f64>,
}

/// Model, texts and adapters of a measurement.
struct Bench {
    model: Model,
    compute: Compute,
    pool: PagePool,
    files: Vec<LoraFile>,
    /// Whole windows of each text, of equal number.
    texts: Vec<Vec<TokenId>>,
    context: usize,
    /// Folder of merged adapters.
    folder: PathBuf,
}

/// Errors of the libraries.
type Any = Box<dyn std::error::Error + Send + Sync>;

/// Measures all settings, prints them and, unless told not to, writes the section of
/// `docs/adapters.md`.
///
/// # Errors
/// A model, adapter or text that cannot be read or does not fit, and a text without a whole window.
pub(crate) fn adapter_quality(workspace: &Workspace, args: &AdapterQualityArgs) -> Result<()> {
    let failed = |source| Error::AdapterQuality { source };
    let bench = Bench::open(workspace, args).map_err(failed)?;
    let mut rows = Vec::new();
    for setting in settings(args.pairs.len()) {
        let row = bench.measure(&setting).map_err(failed)?;
        println!("{}", line(&row));
        rows.push(row);
    }
    if args.no_record {
        return Ok(());
    }
    section::record(workspace, PAGE, SECTION, &markdown(args, &bench, &rows))
}

/// Adapters that the texts are computed with.
enum Setting {
    Base,
    /// One adapter for all texts.
    One(usize),
    /// Each text with its own adapter, a window of each in one pass.
    Batch(FactorFormat),
    /// The updates of all adapters, each times a scale.
    Sum(f32),
    /// One adapter made of all.
    Merged {
        method: Method,
        weight: f64,
        rank: Rank,
    },
}

/// All settings for `n` adapters, in the order of the table.
fn settings(n: usize) -> Vec<Setting> {
    let mean = 1.0 / n as f64;
    let ties = |density| Ties { density, lambda: 1.0 };
    let dare = Dare { p: 0.5, seed: 0 };
    let merged = |method, weight, rank| Setting::Merged { method, weight, rank };
    let mut settings = vec![Setting::Base];
    settings.extend((0..n).map(Setting::One));
    settings.extend([Setting::Batch(FactorFormat::F16), Setting::Batch(FactorFormat::I8)]);
    settings.extend([Setting::Sum(1.0), Setting::Sum(mean as f32)]);
    settings.push(merged(Method::Linear, 1.0, Rank::Exact));
    settings.push(merged(Method::Average, 1.0, Rank::Exact));
    settings.push(merged(Method::Average, 1.0, Rank::AtMost(TRUNCATED)));
    if n == 2 {
        settings.push(merged(Method::Slerp { t: 0.5 }, 1.0, Rank::Exact));
    }
    settings.push(merged(Method::Ties(ties(0.5)), 1.0, Rank::AtMost(FULL)));
    settings.push(merged(Method::DareLinear(dare), mean, Rank::AtMost(FULL)));
    settings.push(merged(Method::DareTies(dare, ties(1.0)), 1.0, Rank::AtMost(FULL)));
    settings
}

impl Bench {
    fn open(workspace: &Workspace, args: &AdapterQualityArgs) -> Result<Self, Any> {
        let checkpoint = open_checkpoint(&args.model)?;
        let tokenizer = checkpoint.tokenizer()?;
        let model = Model::load(&*checkpoint, &mut |_| ())?;
        let plain = EncodeOptions { add_special: false, parse_special: false };
        let (mut files, mut texts) = (Vec::new(), Vec::new());
        for Pair { adapter, text } in &args.pairs {
            files.push(LoraFile::open(adapter)?);
            let tokens = tokenizer.encode(&fs::read_to_string(text)?, plain)?;
            texts.push(tokens);
        }
        let shortest = texts.iter().map(Vec::len).min().unwrap_or(0).min(args.limit);
        let whole = shortest / args.context.max(2) * args.context.max(2);
        if whole == 0 {
            return Err(format!("a text of {shortest} tokens has no window of {}", args.context).into());
        }
        texts.iter_mut().for_each(|text| text.truncate(whole));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            model,
            compute: Compute::new(threads)?,
            pool: PagePool::new(PoolConfig::new(BYTES))?,
            files,
            texts,
            context: args.context.max(2),
            folder: workspace.path("target/adapter-quality"),
        })
    }

    fn measure(&self, setting: &Setting) -> Result<Row, Any> {
        let n = self.files.len();
        let mut error = None;
        let (name, perplexities) = match *setting {
            Setting::Base => ("none".to_owned(), self.each(&[])?),
            Setting::One(index) => {
                (self.name(index), self.each(&[self.adapter(&self.files[index], 1.0, FactorFormat::F16)?])?)
            }
            Setting::Batch(format) => {
                let load = |file| Ok(vec![self.adapter(file, 1.0, format)?]);
                let lists: Vec<_> = self.files.iter().map(load).collect::<Result<_, Any>>()?;
                let texts: Vec<_> =
                    self.texts.iter().zip(&lists).map(|(text, list)| (&text[..], &list[..])).collect();
                (format!("its own, all texts in one batch, {}", format.name()), self.perplexities(&texts)?)
            }
            Setting::Sum(scale) => {
                let load = |file| self.adapter(file, scale, FactorFormat::F16);
                let list: Vec<_> = self.files.iter().map(load).collect::<Result<_, Any>>()?;
                (format!("all {n}, scale {scale} each"), self.each(&list)?)
            }
            Setting::Merged { method, weight, rank } => {
                let (file, relative) = self.merged(method, weight, rank)?;
                error = Some(relative);
                (
                    merged_name(method, weight, rank),
                    self.each(&[self.adapter(&file, 1.0, FactorFormat::F16)?])?,
                )
            }
        };
        Ok(Row { setting: name, perplexities, error })
    }

    /// Merges all adapters, and reads the result as a request would.
    fn merged(&self, method: Method, weight: f64, rank: Rank) -> Result<(LoraFile, f64), Any> {
        let inputs: Vec<_> = self.files.iter().map(|file| Input { file, weight }).collect();
        let base = self.model.adapter_base();
        let merge = Merge::new(&inputs, method, Some(base), AdapterFormat::Peft)?;
        let mut go_on = |_, _| ControlFlow::Continue(());
        let compressed = merge.adapter(rank, FactorType::F16, &self.compute.pool, &mut go_on)?;
        compressed.adapter.write(&self.folder, true)?;
        Ok((LoraFile::open(&self.folder)?, compressed.relative_error()))
    }

    fn adapter(&self, file: &LoraFile, scale: f32, format: FactorFormat) -> Result<ScaledAdapter, Any> {
        let part = Part { file, scale: 1.0 };
        let adapter = self.model.adapter(&[part], format, &self.pool, &Request::default())?;
        Ok(ScaledAdapter::new(Arc::new(adapter), scale))
    }

    fn name(&self, index: usize) -> String {
        let path = self.files[index].path();
        path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    }

    /// Perplexity of each text with the same adapters, one text per pass.
    fn each(&self, adapters: &[ScaledAdapter]) -> Result<Vec<f64>, Any> {
        let of = |text: &Vec<TokenId>| Ok(self.perplexities(&[(text, adapters)])?[0]);
        self.texts.iter().map(of).collect()
    }

    /// Perplexity of texts, a window of each in one pass.
    fn perplexities(&self, texts: &[(&[TokenId], &[ScaledAdapter])]) -> Result<Vec<f64>, Any> {
        let store = self.model.kv_store(&KvFormat::F16.into(), &self.pool)?;
        let sequence = |_| self.model.new_sequence(&store, self.context);
        let mut sequences: Vec<Sequence> = texts.iter().map(sequence).collect::<Result<_, _>>()?;
        let (mut buffers, mut sums) = (Buffers::new(), vec![0.0; texts.len()]);
        let scored = self.context - 1;
        for start in (0..texts[0].0.len()).step_by(self.context) {
            sequences.iter_mut().for_each(Sequence::clear);
            let mut segments = Vec::with_capacity(texts.len());
            for ((text, adapters), sequence) in texts.iter().zip(&mut sequences) {
                let inputs = &text[start..start + scored];
                let segment = Segment::new(&self.compute, inputs, sequence, LogitsRows::All)?;
                segments.push(segment.with_adapters(adapters));
            }
            let logits = self.model.forward(&self.compute, &mut buffers, segments)?;
            let rows = logits.chunks_exact(logits.len() / (texts.len() * scored));
            let targets = texts.iter().enumerate().flat_map(|(i, (text, _))| {
                text[start + 1..start + self.context].iter().map(move |&target| (i, target))
            });
            for (row, (text, target)) in rows.zip(targets) {
                sums[text] += loss(row, target);
            }
        }
        let tokens = texts[0].0.len() / self.context * scored;
        Ok(sums.iter().map(|sum| (sum / tokens as f64).exp()).collect())
    }
}

/// `-ln p` of a token under a row of logits.
fn loss(row: &[f32], target: TokenId) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    f64::from(max) + sum.ln() - f64::from(row[target as usize])
}

fn merged_name(method: Method, weight: f64, rank: Rank) -> String {
    let parameters = match method {
        Method::Slerp { t } => format!(", t {t}"),
        Method::Ties(ties) => format!(", density {}", ties.density),
        Method::DareLinear(dare) => format!(", p {}, weights {weight}", dare.p),
        Method::DareTies(dare, _) => format!(", p {}", dare.p),
        Method::Linear => format!(", weights {weight}"),
        _ => String::new(),
    };
    let rank = match rank {
        Rank::AtMost(rank) => format!(", rank {rank}"),
        _ => String::new(),
    };
    format!("merged, `{}`{parameters}{rank}", method.name())
}

fn markdown(args: &AdapterQualityArgs, bench: &Bench, rows: &[Row]) -> String {
    let mut text = format!(
        "```text\n{}\n```\n\nPerplexity of {} tokens of each text in windows of {}, keys and values in F16.\n\n| adapters |",
        section::this_command(),
        bench.texts[0].len(),
        args.context,
    );
    for index in 0..bench.files.len() {
        let _ = write!(text, " {} text |", bench.name(index));
    }
    let columns = "---:|".repeat(bench.files.len() + 1);
    let _ = write!(text, " error of the merge |\n|---|{columns}\n");
    for row in rows {
        let _ = writeln!(text, "{}", line(row));
    }
    text
}

fn line(row: &Row) -> String {
    let cells: String = row.perplexities.iter().map(|perplexity| format!(" {perplexity:.3} |")).collect();
    let error = row.error.map(|error| format!("{:.1} %", error * 100.0)).unwrap_or_default();
    format!("| {} |{cells} {error} |", row.setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_both_parts() {
        let Pair { adapter, text } = pair("a/b=c.txt").expect("a pair");
        assert_eq!((adapter, text), (PathBuf::from("a/b"), PathBuf::from("c.txt")));
        assert!(pair("a").is_err() && pair("=c").is_err() && pair("a=").is_err());
    }

    #[test]
    fn losses_are_those_of_the_softmax() {
        assert!((loss(&[0.0, 0.0], 1) - 2f64.ln()).abs() < 1e-12);
        assert!((loss(&[1e4, 0.0], 1) - 1e4).abs() < 1e-6);
    }

    #[test]
    fn batches_have_the_perplexity_of_each_text_alone() {
        let workspace = Workspace::find().expect("the workspace");
        let data = workspace.path("crates/models/tests/data");
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("text.txt");
        fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(20)).expect("written");
        let of = |name: &str| Pair { adapter: data.join("lora").join(name), text: text.clone() };
        let args = AdapterQualityArgs {
            pairs: vec![of("r4_all"), of("r1_qv")],
            model: data.join("tiny/llama/model-F32.gguf"),
            context: 16,
            limit: 64,
            no_record: true,
        };
        let bench = Bench::open(&workspace, &args).expect("it opens");
        let row = |setting: &Setting| bench.measure(setting).expect("a row").perplexities;
        let batch = row(&Setting::Batch(FactorFormat::F16));
        assert_eq!(batch, [row(&Setting::One(0))[0], row(&Setting::One(1))[1]]);
        assert!(batch.iter().zip(row(&Setting::Base)).all(|(adapted, base)| *adapted != base));
    }
}
