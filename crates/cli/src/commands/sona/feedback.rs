//! `ruvllm sona feedback`: teaches an adapter.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use ruvllm::crates::sona::online::Taught;
use serde::Serialize;

use super::learned::LearnedArgs;
use super::lessons::{self, Feedback};
use crate::error::Result;
use crate::progress::Progress;
use crate::{input, output, signal};

const HELP: &str = "\
A correction raises the likelihood of its tokens. A rating from -1 to 1 moves that of the response in its direction. The
prompt itself is not taught. Each lesson is in the log before it is learned; after 16 of them the adapter is judged at
ordinary text, and goes back to its last good state if it does harm there. The result is what --adapter NAME takes.

FILE of --data has one JSON object per line: {prompt, correction} or {prompt, response, rating}, also as `ruvllm sona
export` writes them. --text teaches a plain text, in windows of 512 tokens.

JSON: {name, lessons, learned, outliers, quarantined, log_probability_before, log_probability_after, divergence}; the
last three are means over the lessons of this command, in nats per token, null without one that was learned.

Examples:
  ruvllm sona feedback tone --prompt \"A glacier is\" --correction \" ice that flows.\"
  ruvllm sona feedback tone --data ratings.jsonl --chat
  ruvllm sona feedback law --text statutes.txt
  ruvllm generate --adapter tone \"A glacier is\"";

/// Teach an adapter by corrections or ratings
#[derive(Debug, Args)]
#[command(after_help = HELP, override_usage = "ruvllm sona feedback [OPTIONS] <SOURCE> <NAME>")]
#[command(group = ArgGroup::new("source").required(true).args(["prompt", "data", "text"]))]
pub(crate) struct FeedbackArgs {
    #[command(flatten)]
    learned: LearnedArgs,

    /// The prompt that the feedback is about
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,

    /// The right answer
    #[arg(long, value_name = "TEXT", requires = "prompt", conflicts_with_all = ["response", "rating"])]
    correction: Option<String>,

    /// The answer that is rated
    #[arg(long, value_name = "TEXT", requires_all = ["prompt", "rating"])]
    response: Option<String>,

    /// Rating of the response, -1 to 1
    #[arg(long, value_name = "RATING", requires = "response", allow_negative_numbers = true)]
    rating: Option<f32>,

    /// JSON-lines file of feedback; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,

    /// Text that is taught as it is; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Prompts are messages of a user, rendered with the model's chat template
    #[arg(long, conflicts_with = "text")]
    chat: bool,
}

/// The JSON document.
#[derive(Serialize, Default)]
struct Document {
    name: String,
    lessons: usize,
    learned: usize,
    outliers: usize,
    quarantined: usize,
    log_probability_before: Option<f64>,
    log_probability_after: Option<f64>,
    divergence: Option<f64>,
}

pub(crate) fn run(args: &FeedbackArgs, json: bool) -> Result<ExitCode> {
    let feedback = args.feedback()?;
    let text = args.text.as_deref().map(input::file_text).transpose()?;
    let learned = args.learned.open()?;
    let lessons = match text {
        Some(text) => lessons::windows(&learned.engine, &text)?,
        None => {
            let lesson = |feedback: &Feedback| feedback.lesson(&learned.engine, args.chat);
            feedback.iter().map(lesson).collect::<Result<_>>()?
        }
    };
    let cancel = signal::cancel_on_interrupt();
    let mut document =
        Document { name: args.learned.name.clone(), lessons: lessons.len(), ..Document::default() };
    let mut sums = [0.0; 3];
    let mut progress = Progress::steps("learning");
    for (done, lesson) in lessons.iter().enumerate() {
        progress.update(done as u64, lessons.len() as u64);
        if cancel.is_cancelled() {
            break;
        }
        match learned.adapter.teach(&learned.engine, lesson, &[])? {
            Taught::Learned { update, .. } => {
                document.learned += 1;
                let measured =
                    [update.log_probability_before, update.log_probability_after, update.divergence];
                sums.iter_mut().zip(measured).for_each(|(sum, value)| *sum += value);
            }
            Taught::Outlier { .. } => document.outliers += 1,
            Taught::Quarantined => document.quarantined += 1,
        }
    }
    drop(progress);
    learned.publish()?;
    if let Some(fault) = learned.adapter.status()?.fault {
        output::warn(&format!("the lessons are in the log, but their state could not be saved: {fault}"));
    }
    let mean = |sum: f64| (document.learned > 0).then(|| sum / document.learned as f64);
    let [before, after, divergence] = sums.map(mean);
    let document =
        Document { log_probability_before: before, log_probability_after: after, divergence, ..document };
    report(&document, json)?;
    Ok(if cancel.is_cancelled() { signal::exit_code() } else { ExitCode::SUCCESS })
}

impl FeedbackArgs {
    /// Feedback of the flags or of the file.
    fn feedback(&self) -> Result<Vec<Feedback>> {
        if let Some(path) = &self.data {
            return Feedback::parse_lines(&path.display().to_string(), &input::file_text(path)?);
        }
        let Some(prompt) = &self.prompt else { return Ok(Vec::new()) };
        let (correction, response, rating) = (self.correction.clone(), self.response.clone(), self.rating);
        let prompt = Some(prompt.clone());
        Ok(vec![Feedback { prompt, correction, response, rating, ..Feedback::default() }])
    }
}

fn report(document: &Document, json: bool) -> Result<()> {
    if json {
        return output::write_json(document);
    }
    let Document { name, lessons, learned, outliers, quarantined, .. } = document;
    let mut text = format!("{name}: {} learned of {lessons}", output::counted(*learned, "lesson"));
    if let (Some(before), Some(after)) = (document.log_probability_before, document.log_probability_after) {
        text += &format!(", {before:.3} to {after:.3} nats per token");
    }
    for (count, what) in
        [(outliers, "taken for noise"), (quarantined, "refused: the adapter is in quarantine")]
    {
        if *count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    output::write_text(&(text + "\n")).map(|_| ())
}
