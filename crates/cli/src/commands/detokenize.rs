//! `ruvllm detokenize`: token ids to text.

use clap::Args;
use serde::Serialize;

use super::load;
use crate::args::ModelArgs;
use crate::error::{Error, Result};
use crate::{input, output};

const HELP: &str = "\
Special tokens appear as they are written (such as <|im_end|>); bytes that are not valid UTF-8 become U+FFFD.
The text is printed exactly, without a line break at its end; a terminal gets it without control characters.

JSON: {text}

Examples:
  ruvllm detokenize 2537 874 274 670
  ruvllm tokenize \"Once upon a time\" | ruvllm detokenize";

/// Convert token ids to text
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct DetokenizeArgs {
    /// The ids; read from standard input when absent or `-`: separated by spaces or commas, or a
    /// JSON array
    #[arg(value_name = "ID")]
    ids: Vec<String>,

    /// Leave special tokens out
    #[arg(long)]
    skip_special: bool,

    #[command(flatten)]
    model: ModelArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    text: &'a str,
}

pub(crate) fn run(args: &DetokenizeArgs, json: bool) -> Result<()> {
    let tokens = input::argument_tokens(&args.ids)?;
    let tokenizer = load::tokenizer(&args.model)?;
    let text = tokenizer
        .decode(&tokens, args.skip_special)
        .map_err(|source| Error::Tokens { what: "cannot turn the ids into text", source })?;
    if json {
        return output::write_json(&Document { text: &text });
    }
    output::write_text(&text).map(|_| ())
}
