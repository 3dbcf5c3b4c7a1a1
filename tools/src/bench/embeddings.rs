//! Speed of embeddings, compared with sentence-transformers (`PyTorch`) and llama.cpp.
//!
//! Programs stay loaded between rounds. A measurement begins with texts and ends with normalized
//! vectors; for llama.cpp its own time is used, which excludes tokenization.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde_json::json;

use super::machine::Machine;
use super::plan::absolute;
use super::samples::Samples;
use super::{programs, report, section};
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Error, Result};

const SECTION: &str = "embeddings";
const DRIVER: &str = include_str!("embeddings.py");

/// Measures embeddings of an encoder beside its peers.
#[derive(clap::Args, Debug)]
pub struct EmbeddingSpeedArgs {
    /// Folder of an encoder with a BERT vocabulary, such as all-MiniLM-L6-v2 in F32
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// A Python with sentence-transformers
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,
    /// llama.cpp's program `llama-embedding`
    #[arg(long, value_name = "FILE")]
    pub llama: Option<PathBuf>,
    /// Texts of a request
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    pub batch: Vec<usize>,
    /// Tokens of a text
    #[arg(long, value_delimiter = ',', default_value = "64,256")]
    pub tokens: Vec<usize>,
    /// Threads of each program
    #[arg(short, long, default_value_t = 2)]
    pub threads: usize,
    /// Interleaved rounds
    #[arg(long, default_value_t = 7)]
    pub rounds: usize,
    /// Seconds of a measurement
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Leaves docs/performance as it is
    #[arg(long)]
    pub no_record: bool,
}

/// Answer of a driver.
#[derive(Debug, Deserialize)]
struct Answer {
    tokens: f64,
    wall_s: f64,
    cpu_s: f64,
}

/// Texts of a request, and tokens per text.
type Case = (usize, usize);

/// Tokens per second of an engine in a case, by wall-clock and by CPU time; the latter times the
/// threads.
#[derive(Debug, Default)]
struct Rates {
    wall: Samples,
    cpu: Samples,
}

/// A measured program.
trait Engine {
    fn name(&self) -> &'static str;
    fn measure(&mut self, case: Case, seconds: f64) -> Result<Answer>;
}

/// Measures round by round, writes JSON to `target/bench/` and, unless told not to, the section of
/// the page of this machine in `docs/performance`.
///
/// # Errors
/// When a program cannot be built or started, fails, or prints something else; when a file cannot
/// be written.
pub fn embedding_speed(workspace: &Workspace, args: &EmbeddingSpeedArgs) -> Result<()> {
    let machine = Machine::describe(workspace);
    let mut engines = engines(workspace, args)?;
    let cases: Vec<Case> =
        args.batch.iter().flat_map(|&batch| args.tokens.iter().map(move |&tokens| (batch, tokens))).collect();
    let mut rates: Vec<Vec<Rates>> =
        cases.iter().map(|_| engines.iter().map(|_| Rates::default()).collect()).collect();
    for round in 1..=args.rounds {
        eprintln!("round {round}/{}", args.rounds);
        for (&case, rates) in cases.iter().zip(&mut rates) {
            for (engine, rates) in engines.iter_mut().zip(rates) {
                let Answer { tokens, wall_s, cpu_s } = engine.measure(case, args.seconds)?;
                rates.wall.0.push(tokens / wall_s);
                if cpu_s > 0.0 {
                    rates.cpu.0.push(tokens / cpu_s * args.threads as f64);
                }
            }
        }
    }
    let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
    let rows: Vec<_> = cases.iter().zip(&rates).map(|(case, rates)| row_json(*case, &names, rates)).collect();
    let document = json!({ "machine": machine, "command": section::this_command(), "rows": rows });
    println!("samples: {}", report::write_json(workspace, SECTION, &document)?.display());
    let text = markdown(&machine, args, &names, &cases, &rates);
    println!("{text}");
    if args.no_record {
        return Ok(());
    }
    section::record_speed(workspace, &machine, SECTION, &text)
}

/// This engine, then the given peers.
fn engines(workspace: &Workspace, args: &EmbeddingSpeedArgs) -> Result<Vec<Box<dyn Engine>>> {
    let (model, threads) = (absolute(&args.model), args.threads.to_string());
    let folder = workspace.path("target/bench");
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let program = programs::build(workspace, "ruvllm-benches", "embeddings")?;
    let driver = |name, command: &mut Command| Driver::start(name, command.arg(&model).arg(&threads));
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(driver("ruvllm", &mut Command::new(program))?)];
    if let Some(python) = &args.python {
        let script = folder.join("embeddings.py");
        fs::write(&script, DRIVER).map_err(Error::io("write", &script))?;
        let mut command = Command::new(absolute(python));
        engines.push(Box::new(driver("sentence-transformers", command.arg(script))?));
    }
    if let Some(llama) = &args.llama {
        let gguf = folder.join("embeddings-f32.gguf");
        let ruvllm = programs::build(workspace, "ruvllm-cli", "ruvllm")?;
        CommandLine::new(ruvllm, workspace.root())
            .args(["quantize".as_ref(), model.as_os_str(), gguf.as_os_str()])
            .args(["F32", "--force"])
            .output()?;
        let root = workspace.root().to_owned();
        engines.push(Box::new(Llama { program: absolute(llama), gguf, folder, root, threads }));
    }
    Ok(engines)
}

/// A driver: answers each input line with an output line.
struct Driver {
    name: &'static str,
    command: String,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Driver {
    fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let display = format!("{command:?}");
        let failed = |source| Error::from(xtask::Error::Start { command: display.clone(), source });
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Self { name, command: display, child, stdin, stdout: BufReader::new(stdout) })
    }
}

impl Engine for Driver {
    fn name(&self) -> &'static str {
        self.name
    }

    fn measure(&mut self, (batch, tokens): Case, seconds: f64) -> Result<Answer> {
        let command = || self.command.clone();
        let mut line = String::new();
        writeln!(self.stdin, "{batch} {tokens} {seconds}")
            .and_then(|()| self.stdin.flush())
            .and_then(|()| self.stdout.read_line(&mut line))
            .map_err(|source| xtask::Error::Start { command: command(), source })?;
        serde_json::from_str(&line).map_err(|source| Error::Json { command: command(), source })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A driver ends with its input; kill one that does not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// llama.cpp's own program, once per measurement.
struct Llama {
    program: PathBuf,
    gguf: PathBuf,
    folder: PathBuf,
    root: PathBuf,
    threads: String,
}

impl Engine for Llama {
    fn name(&self) -> &'static str {
        "llama.cpp"
    }

    fn measure(&mut self, (batch, tokens): Case, seconds: f64) -> Result<Answer> {
        // Enough texts for about the given time at 5000 tokens per second.
        let requests = ((5000.0 * seconds) as usize / (batch * tokens)).max(3);
        let texts: String = (0..requests * batch).map(|at| text(at % batch, tokens) + "\n").collect();
        let file = self.folder.join("embeddings.txt");
        fs::write(&file, texts).map_err(Error::io("write", &file))?;
        // One sequence per text; at least two, because 1 means any number.
        let (room, sequences) = ((batch.max(2) * tokens).to_string(), batch.max(2).to_string());
        let command = CommandLine::new(&self.program, &self.root)
            .args(["-m".as_ref(), self.gguf.as_os_str(), "-f".as_ref(), file.as_os_str()])
            .args(["-t", &self.threads, "-tb", &self.threads, "-c", &room, "-b", &room, "-ub", &room])
            .args([
                "-np",
                &sequences,
                // Prints the line with the time.
                "--perf",
                "-lv",
                "4",
                "--pooling",
                "mean",
                "--embd-normalize",
                "2",
                "--embd-output-format",
                "json",
                "-fa",
                "auto",
            ]);
        let output = command.errors()?;
        prompt_time(&output).ok_or_else(|| Error::MissingField {
            command: command.display(),
            field: "prompt eval time".to_owned(),
        })
    }
}

/// A text of `tokens` tokens, equal to the drivers' text.
fn text(at: usize, tokens: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "of", "and", "to", "in", "is", "was", "he", "for", "on", "as", "with", "that", "it", "by",
        "at",
    ];
    let word = |i: usize| WORDS[(at * 7 + i * 5 + i / 16) % WORDS.len()];
    (0..tokens.saturating_sub(2)).map(word).collect::<Vec<_>>().join(" ")
}

/// Parses `prompt eval time = 1234.56 ms / 4096 tokens (...)`.
fn prompt_time(output: &str) -> Option<Answer> {
    let (_, rest) = output.split_once("prompt eval time =")?;
    let (milliseconds, rest) = rest.split_once("ms /")?;
    let tokens = rest.split_whitespace().next()?.parse().ok()?;
    let wall_s = milliseconds.trim().parse::<f64>().ok()? / 1000.0;
    Some(Answer { tokens, wall_s, cpu_s: 0.0 })
}

fn row_json((batch, tokens): Case, names: &[&str], rates: &[Rates]) -> serde_json::Value {
    let engines: Vec<_> = names
        .iter()
        .zip(rates)
        .map(|(name, rates)| {
            json!({ "engine": name, "tokens_per_s": rates.wall.json(), "tokens_per_cpu_s": rates.cpu.json() })
        })
        .collect();
    json!({ "batch": batch, "tokens": tokens, "engines": engines })
}

fn markdown(
    machine: &Machine,
    args: &EmbeddingSpeedArgs,
    names: &[&str],
    cases: &[Case],
    rates: &[Vec<Rates>],
) -> String {
    let mut text = format!(
        "```text\n{}\n```\n\n{}.\nWeights and activations in F32, {} threads, {} interleaved rounds. Tokens per second from \
         text to vector: median (least-most); llama.cpp's are without tokenization. A ratio is of the medians to the best \
         peer, with the extremes of the ratios within a round. t/CPU s: tokens per second of CPU time, times threads.\n\n\
         | batch | tokens |",
        section::this_command(),
        machine.sentence(),
        args.threads,
        args.rounds,
    );
    for name in names {
        let _ = write!(text, " {name} t/s |");
    }
    let _ = writeln!(text, " ratio | ruvllm t/CPU s | sentence-transformers t/CPU s | ratio |");
    let _ = writeln!(text, "|---:|---:|{}---|---|---|---|", "---|".repeat(names.len()));
    for ((batch, tokens), rates) in cases.iter().zip(rates) {
        let _ = write!(text, "| {batch} | {tokens} |");
        for rates in rates {
            let _ = write!(text, " {} |", cell(&rates.wall));
        }
        let Some((ours, peers)) = rates.split_first() else { continue };
        let best = |rate: fn(&Rates) -> &Samples| {
            peers
                .iter()
                .map(rate)
                .filter(|samples| samples.median().is_some())
                .max_by(|a, b| a.median().unwrap_or(0.0).total_cmp(&b.median().unwrap_or(0.0)))
        };
        let ratio = |rate: fn(&Rates) -> &Samples| {
            let ratio = best(rate).and_then(|peer| rate(ours).ratio(peer));
            ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.bold_cell(2))
        };
        let theirs = best(|rates| &rates.cpu).map_or_else(|| "-".to_owned(), cell);
        let _ = writeln!(
            text,
            " {} | {} | {theirs} | {} |",
            ratio(|rates| &rates.wall),
            cell(&ours.cpu),
            ratio(|rates| &rates.cpu)
        );
    }
    text
}

fn cell(samples: &Samples) -> String {
    samples.spread().map_or_else(|| "-".to_owned(), |spread| spread.cell(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_llama_is_read() {
        let line = "llama_perf_context_print: prompt eval time =     250.50 ms /  2048 tokens (    0.1 ms per token)";
        let answer = prompt_time(line).expect("a time");
        assert_eq!((answer.tokens, answer.wall_s), (2048.0, 0.2505));
        assert!(prompt_time("eval time = nothing").is_none());
    }

    #[test]
    fn ratios_are_to_the_best_peer() {
        let rates = |wall: f64| Rates { wall: Samples(vec![wall; 3]), cpu: Samples(Vec::new()) };
        let args = EmbeddingSpeedArgs {
            model: PathBuf::new(),
            python: None,
            llama: None,
            batch: vec![1],
            tokens: vec![64],
            threads: 2,
            rounds: 3,
            seconds: 1.0,
            no_record: true,
        };
        let (machine, names) = (Machine::for_tests(), ["ruvllm", "a", "b"]);
        let text =
            markdown(&machine, &args, &names, &[(1, 64)], &[vec![rates(30.0), rates(20.0), rates(10.0)]]);
        assert!(text.contains("| **1.50** (1.50-1.50) | - | - | - |"), "{text}");
    }
}
