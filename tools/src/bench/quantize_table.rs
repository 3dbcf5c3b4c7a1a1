//! Quality of the types of `ruvllm quantize` compared with llama.cpp's quantizer, and a check that
//! llama.cpp reads the files written here.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::kv_quality::Measured;
use super::machine::Machine;
use super::plan::absolute;
use super::{programs, report, section};
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Error, Result};

const PAGE: &str = "docs/models.md";
const SECTION: &str = "quantize";

/// Tolerated excess of perplexity over llama.cpp's file, as a share.
const TOLERANCE: f64 = 0.005;

/// Types common to both programs that need no importance matrix.
const TYPES: [&str; 18] = [
    "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0",
    "IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K",
];

/// Options of the table.
#[derive(clap::Args, Debug)]
pub struct QuantizeTableArgs {
    /// Folder with llama.cpp's programs `llama-quantize` and `llama-perplexity`
    #[arg(long, value_name = "DIR")]
    pub llama: PathBuf,
    /// A trained model in F32, F16 or BF16
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// The text, UTF-8
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens in a window of perplexity
    #[arg(long, default_value_t = 512)]
    pub context: usize,
    /// Use only the first tokens of the text
    #[arg(long, value_name = "TOKENS", default_value_t = 32_768)]
    pub limit: usize,
    /// Of these, llama.cpp computes so many itself
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    pub llama_limit: usize,
    /// Types to measure instead of all
    #[arg(long = "type", value_delimiter = ',', value_name = "TYPES")]
    pub types: Vec<String>,
    /// A `ruvllm` program to measure instead of building one
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Leaves docs/models.md as it is
    #[arg(long)]
    pub no_record: bool,
}

/// Results of one type; pairs: file written here, llama.cpp's file.
#[derive(Clone, Debug, Serialize)]
struct Row {
    name: String,
    bytes: [u64; 2],
    measured: [Measured; 2],
    /// Perplexity as llama.cpp computes it.
    in_llama: [f64; 2],
}

impl Row {
    /// Relative excess of perplexity over llama.cpp's file.
    fn difference(&self) -> f64 {
        let [ours, theirs] = &self.measured;
        ours.perplexity / theirs.perplexity - 1.0
    }
}

/// Programs and settings of the measurement.
struct Bench<'a> {
    workspace: &'a Workspace,
    args: &'a QuantizeTableArgs,
    program: PathBuf,
    folder: PathBuf,
}

/// Quantizes the model to each type with both programs, measures both files, writes JSON to
/// `target/bench/` and, unless told not to, the section of `docs/models.md`.
///
/// # Errors
/// If a program cannot be built or fails (for instance llama.cpp refuses a file), its output is
/// unexpected, or a file cannot be written.
pub fn quantize_table(workspace: &Workspace, args: &QuantizeTableArgs) -> Result<()> {
    let machine = Machine::describe(workspace);
    let program = match &args.program {
        Some(program) => absolute(program),
        None => programs::build(workspace, "ruvllm-cli", "ruvllm")?,
    };
    let folder = workspace.path("target/bench/quantize");
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let bench = Bench { workspace, args, program, folder };
    let types: Vec<String> =
        if args.types.is_empty() { TYPES.map(str::to_owned).to_vec() } else { args.types.clone() };
    let mut rows = Vec::new();
    for name in &types {
        rows.push(bench.row(name)?);
        println!("{}", line(&rows[rows.len() - 1]));
    }
    let document = json!({ "machine": machine, "command": section::this_command(), "rows": rows });
    println!("samples: {}", report::write_json(workspace, SECTION, &document)?.display());
    if args.no_record {
        return Ok(());
    }
    section::record(workspace, PAGE, SECTION, &markdown(&machine, args, &rows))
}

impl Bench<'_> {
    /// Quantizes with both programs, measures both files and removes them.
    fn row(&self, name: &str) -> Result<Row> {
        let files = [self.folder.join("ours.gguf"), self.folder.join("llama.gguf")];
        let model = absolute(&self.args.model);
        self.command(&self.program)
            .args(["quantize".as_ref(), model.as_os_str(), files[0].as_os_str()])
            .args([name, "--force"])
            .output()?;
        self.llama("llama-quantize").args([&model, &files[1]]).args([name]).output()?;
        let both = |measure: &dyn Fn(&Path) -> Result<f64>| {
            Ok::<_, Error>([measure(&files[0])?, measure(&files[1])?])
        };
        let bytes = |file: &Path| fs::metadata(file).map(|data| data.len()).map_err(Error::io("read", file));
        let row = Row {
            name: name.to_owned(),
            bytes: [bytes(&files[0])?, bytes(&files[1])?],
            measured: [self.measure(&files[0])?, self.measure(&files[1])?],
            in_llama: both(&|file| self.measure_in_llama(file))?,
        };
        files.iter().try_for_each(|file| fs::remove_file(file).map_err(Error::io("remove", file)))?;
        Ok(row)
    }

    fn command(&self, program: &Path) -> CommandLine {
        CommandLine::new(program, self.workspace.root())
    }

    fn llama(&self, program: &str) -> CommandLine {
        self.command(&absolute(&self.args.llama).join(program))
    }

    fn measure(&self, model: &Path) -> Result<Measured> {
        let command = self
            .command(&self.program)
            .args(["eval", "perplexity", "--json", "--context", &self.args.context.to_string()])
            .args(["--limit", &self.args.limit.to_string()])
            .args(["--file".as_ref(), absolute(&self.args.file).as_os_str()])
            .args(["--model".as_ref(), model.as_os_str()]);
        serde_json::from_str(&command.output()?)
            .map_err(|source| Error::Json { command: command.display(), source })
    }

    fn measure_in_llama(&self, model: &Path) -> Result<f64> {
        let windows = (self.args.llama_limit / self.args.context).max(1);
        let command = self
            .llama("llama-perplexity")
            .args(["--ctx-size", &self.args.context.to_string(), "--chunks", &windows.to_string()])
            .args(["--file".as_ref(), absolute(&self.args.file).as_os_str()])
            .args(["--model".as_ref(), model.as_os_str()]);
        last_estimate(&command.output()?).ok_or_else(|| Error::MissingField {
            command: command.display(),
            field: "perplexity after the last window".to_owned(),
        })
    }
}

/// Last running estimate printed by `llama-perplexity`: `[1]9.8765,[2]10.1234,`.
fn last_estimate(output: &str) -> Option<f64> {
    let (_, last) = output.rsplit_once(']')?;
    last.split_once(',')?.0.parse().ok()
}

fn markdown(machine: &Machine, args: &QuantizeTableArgs, rows: &[Row]) -> String {
    let mut text = format!(
        "```text\n{}\n```\n\n{}.\nWindows of {} tokens, {} tokens scored. In llama.cpp: the second halves of the windows of the \
         first {} tokens.\n\n| type | MB | of llama.cpp | perplexity | of llama.cpp | difference | in llama.cpp | of llama.cpp \
         |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
        section::this_command(),
        machine.sentence(),
        args.context,
        rows.first().map_or(0, |row| row.measured[0].tokens),
        args.llama_limit,
    );
    for row in rows {
        let _ = writeln!(text, "{}", line(row));
    }
    text
}

fn line(row: &Row) -> String {
    let [ours, theirs] = row.bytes.map(|bytes| bytes as f64 / 1e6);
    let [our_perplexity, their_perplexity] = row.measured.each_ref().map(|measured| measured.perplexity);
    let [our_estimate, their_estimate] = row.in_llama;
    let percent = format!("{:+.2} %", row.difference() * 100.0);
    let difference = if row.difference() > TOLERANCE { format!("**{percent}**") } else { percent };
    format!(
        "| {} | {ours:.1} | {theirs:.1} | {our_perplexity:.4} | {their_perplexity:.4} | {difference} | {our_estimate:.4} | \
         {their_estimate:.4} |",
        row.name
    )
}

#[cfg(test)]
mod tests {
    use ruvllm_models::quantize::Recipe;

    use super::*;

    fn row(ours: f64, theirs: f64) -> Row {
        let measured = |perplexity: f64| Measured {
            perplexity,
            nll: perplexity.ln(),
            tokens: 511,
            kv_bytes_per_token: 1.0,
        };
        Row {
            name: "Q4_0".to_owned(),
            bytes: [17_000_000, 16_990_000],
            measured: [measured(ours), measured(theirs)],
            in_llama: [12.5, 12.25],
        }
    }

    #[test]
    fn a_file_that_is_worse_stands_out() {
        let expected = "| Q4_0 | 17.0 | 17.0 | 10.0400 | 10.0000 | +0.40 % | 12.5000 | 12.2500 |";
        assert_eq!(line(&row(10.04, 10.0)), expected);
        assert!(line(&row(10.06, 10.0)).contains("| **+0.60 %** |"));
        assert!(line(&row(9.0, 10.0)).contains("| -10.00 % |"));
    }

    #[test]
    fn the_estimate_is_that_of_the_last_window() {
        assert_eq!(last_estimate("ETA 0.1 minutes\n[1]9.8765,[2]10.1234,\n\n"), Some(10.1234));
        for output in ["", "[1]", "[1]nothing,", "9.8765,"] {
            assert_eq!(last_estimate(output), None, "{output}");
        }
    }

    #[test]
    fn types_are_named_as_recipes() {
        for name in TYPES {
            assert_eq!(Recipe::from_name(name).map(|recipe| recipe.name()), Some(name));
        }
    }
}
