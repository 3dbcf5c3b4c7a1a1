//! `ruvllm tokenize`: text to token ids.

use clap::Args;
use ruvllm_text::tokenizer::EncodeOptions;
use serde::Serialize;

use super::load;
use crate::args::ModelArgs;
use crate::error::{Error, Result};
use crate::{input, output};

const HELP: &str = "\
By default BOS and EOS are added as the model's rules say, and special tokens written in the text
(such as <|im_start|>) become their ids. The text is taken exactly, a final line break included. --model also takes
a tokenizer.json.

JSON: {tokens: [id]}

Examples:
  ruvllm tokenize \"Once upon a time\"
  ruvllm tokenize --json --no-special < book.txt";

/// Convert text to token ids
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct TokenizeArgs {
    /// The text; read from standard input when absent or `-`
    text: Option<String>,

    /// Add no BOS or EOS
    #[arg(long)]
    no_special: bool,

    /// Read special tokens written in the text as plain text
    #[arg(long)]
    raw: bool,

    /// Print one token per line with the text it stands for
    #[arg(long, short, conflicts_with = "json")]
    verbose: bool,

    #[command(flatten)]
    model: ModelArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    tokens: &'a [u32],
}

pub(crate) fn run(args: &TokenizeArgs, json: bool) -> Result<()> {
    let text = input::text_or_stdin(args.text.as_deref())?;
    let tokenizer = load::tokenizer(&args.model)?;
    let options = EncodeOptions { add_special: !args.no_special, parse_special: !args.raw };
    let tokens = tokenizer
        .encode(&text, options)
        .map_err(|source| Error::Tokens { what: "cannot tokenize the text", source })?;
    if json {
        return output::write_json(&Document { tokens: &tokens });
    }
    let text = if args.verbose {
        let piece = |id: &u32| {
            let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
            vec![id.to_string(), format!("\"{}\"", bytes.escape_ascii())]
        };
        output::table(&tokens.iter().map(piece).collect::<Vec<_>>(), &[0])
    } else {
        let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
        ids.join(" ") + "\n"
    };
    output::write_text(&text).map(|_| ())
}
