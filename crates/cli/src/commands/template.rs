//! `ruvllm template`: renders messages with a chat template.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_text::chat::{ChatStyle, ChatTemplate, Message};
use serde::Serialize;
use serde_json::Value;

use super::load;
use crate::args::{self, ModelArgs};
use crate::error::{Error, Result, one_line};
use crate::{input, output};

const HELP: &str = "\
The messages are a JSON array, [{\"role\": \"user\", \"content\": \"Hi\"}, ...], or an object with the array under
`messages` and perhaps `tools`, as chat servers take it. The model's own template is used; a model without one
gets the built-in template of its style, if its vocabulary shows which. The prompt is printed exactly, without a
line break at its end; a terminal gets it without control characters. --model also takes a tokenizer.json, or the
folder that holds it.

Styles: chatml, gemma, llama2, llama3, mistral, phi3

JSON: {prompt, style (only of a built-in template)}

Examples:
  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | ruvllm template --messages -
  ruvllm template --messages chat.json --tools tools.json --model model.gguf
  ruvllm template --messages chat.json --set enable_thinking=false";

/// Characters of a template's line shown in an error.
const MOST_LINE_CHARS: usize = 60;

/// Render messages with the chat template
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct TemplateArgs {
    /// File with the messages; `-` for standard input
    #[arg(long, value_name = "FILE")]
    messages: PathBuf,

    /// File with the tool definitions, a JSON array
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,

    /// File with a Jinja template, instead of the model's
    #[arg(long, value_name = "FILE", conflicts_with = "style")]
    template: Option<PathBuf>,

    /// Built-in template, instead of the model's
    #[arg(long, value_name = "STYLE", value_parser = style)]
    style: Option<ChatStyle>,

    /// A variable that the template knows: JSON, or else text
    #[arg(long, value_name = "NAME=VALUE", value_parser = args::variable)]
    set: Vec<(String, Value)>,

    /// End after the last message instead of where the answer begins
    #[arg(long)]
    no_generation_prompt: bool,

    #[command(flatten)]
    model: ModelArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    style: Option<&'static str>,
}

pub(crate) fn run(args: &TemplateArgs, json: bool) -> Result<()> {
    let Conversation { messages, tools } = Conversation::read(args)?;
    let template = chat_template(args)?;
    let style = template.style().map(ChatStyle::name);
    let template = args
        .set
        .iter()
        .fold(template, |template, (name, value)| template.with_variable(name.clone(), value.clone()));
    let prompt = template
        .render(&messages, tools.as_ref(), !args.no_generation_prompt)
        .map_err(|error| located(Error::Conversation(error), args))?;
    if json {
        return output::write_json(&Document { prompt: &prompt, style });
    }
    output::write_text(&prompt).map(|_| ())
}

/// Loads the template that the flags name, or the model's.
fn chat_template(args: &TemplateArgs) -> Result<ChatTemplate> {
    let failed = |source: ruvllm_text::Error| Error::ChatTemplate { source: source.into() };
    if args.style.is_none() && args.template.is_none() {
        return load::chat_template(&args.model);
    }
    let tokenizer = load::tokenizer(&args.model)?;
    match (args.style, &args.template) {
        (Some(style), _) => ChatTemplate::of_style(style, &tokenizer).map_err(failed),
        (None, Some(path)) => {
            let text = input::file_text(path)?;
            ChatTemplate::for_tokenizer(&text, &tokenizer).map_err(|error| located(failed(error), args))
        }
        (None, None) => load::chat_template(&args.model),
    }
}

/// Adds the text of the line that an error names, if the template is that of `--template`.
fn located(error: Error, args: &TemplateArgs) -> Error {
    let line_of = |text: &str| text.rsplit_once("(line ")?.1.strip_suffix(')')?.parse::<usize>().ok();
    let found = args.template.as_ref().and_then(|path| {
        let line = line_of(&one_line(&error))?;
        let text = input::file_text(path).ok()?;
        let text = text.lines().nth(line.checked_sub(1)?)?.trim();
        let shown: String = text.chars().take(MOST_LINE_CHARS).collect();
        Some((path.clone(), line, if shown.len() < text.len() { shown + "..." } else { shown }))
    });
    match found {
        Some((path, line, text)) => Error::TemplateLine { path, line, text, source: Box::new(error) },
        None => error,
    }
}

/// Conversation to render.
struct Conversation {
    messages: Vec<Message>,
    tools: Option<Value>,
}

impl Conversation {
    fn read(args: &TemplateArgs) -> Result<Self> {
        let origin = args.messages.display();
        let wrong = |reason: String| Error::Input { origin: origin.to_string(), reason };
        let mut document = json_file(&args.messages)?;
        let (messages, own_tools) = match &mut document {
            Value::Object(map) => (map.remove("messages"), map.remove("tools")),
            _ => (Some(document), None),
        };
        let messages = messages.filter(Value::is_array).ok_or_else(|| {
            wrong("expected a JSON array of messages, or an object with one under `messages`".to_owned())
        })?;
        let messages = serde_json::from_value(messages).map_err(|error| {
            wrong(format!("not a list of messages ({error}); each needs at least a `role`"))
        })?;
        let tools = match &args.tools {
            Some(path) => Some(json_file(path)?),
            None => own_tools.filter(|tools| !tools.is_null()),
        };
        if tools.as_ref().is_some_and(|tools| !tools.is_array()) {
            let origin = args.tools.as_ref().unwrap_or(&args.messages).display().to_string();
            let reason = "expected a JSON array of tool definitions".to_owned();
            return Err(Error::Input { origin, reason });
        }
        Ok(Self { messages, tools })
    }
}

fn json_file(path: &Path) -> Result<Value> {
    serde_json::from_str(&input::file_text(path)?).map_err(|error| Error::Input {
        origin: path.display().to_string(),
        reason: format!("invalid JSON ({error})"),
    })
}

fn style(name: &str) -> Result<ChatStyle, String> {
    name.parse().map_err(|error: ruvllm_text::Error| error.to_string())
}
