//! `ruvllm sona export`: the lessons of an adapter as feedback that can be taught again.

use std::path::PathBuf;

use clap::Args;
use ruvllm::crates::sona::instant::Lesson;
use ruvllm::crates::sona::online::TaughtText;
use serde::Serialize;

use super::learned::LearnedArgs;
use super::lessons::Feedback;
use crate::error::{Error, Result};
use crate::output;
use crate::result_file::{Destination, Readers};

const HELP: &str = "\
OUT has one JSON object per line: {prompt, correction} or {prompt, response, rating}, and their tokens, so that another
adapter, with this model, is taught the same bits:

  ruvllm sona feedback other --data OUT

The file appears as a whole, readable for its owner alone.

JSON: {name, output, lessons}

Examples:
  ruvllm sona export tone lessons.jsonl
  ruvllm sona export tone - | head -1";

/// Write the lessons of an adapter to a file
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    learned: LearnedArgs,

    /// The file to write (- = standard output)
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    output: &'a PathBuf,
    lessons: usize,
}

pub(crate) fn run(args: &ExportArgs, json: bool) -> Result<()> {
    let destination = Destination::find_text(&args.output, args.force)?;
    let learned = args.learned.open()?;
    let lessons = learned.adapter.lessons()?;
    let tokenizer = learned.engine.tokenizer();
    let mut text = String::new();
    for lesson in &lessons {
        let decode = |tokens: &[u32]| {
            let decoded = tokenizer.decode(tokens, false);
            decoded.map_err(|source| Error::Tokens { what: "cannot decode a lesson", source })
        };
        let TaughtText { prompt, response, lesson } = lesson;
        let mut line = Feedback {
            prompt: Some(decode(prompt)?),
            prompt_tokens: Some(prompt.clone()),
            response_tokens: Some(response.clone()),
            ..Feedback::default()
        };
        match lesson {
            Lesson::Corrected => line.correction = Some(decode(response)?),
            Lesson::Rated(rating) => {
                (line.response, line.rating) = (Some(decode(response)?), Some(rating.value()));
            }
        }
        text += &serde_json::to_string(&line).map_err(|error| destination.failed(error.into()))?;
        text.push('\n');
    }
    destination.write(text.as_bytes(), Readers::Owner)?;
    let document = Document { name: &args.learned.name, output: &args.output, lessons: lessons.len() };
    if args.output.as_os_str() == "-" {
        return Ok(());
    }
    if json {
        return output::write_json(&document);
    }
    let lessons = output::counted(document.lessons, "lesson");
    output::write_text(&format!("{}: {lessons} in {}\n", document.name, args.output.display())).map(drop)
}
