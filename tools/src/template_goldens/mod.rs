//! `cargo xtask template-goldens`: chat templates of published models, rendered here and by Jinja2.
//!
//! Templates are written for Python's Jinja2 with the settings of transformers, so prompts are
//! compared with that, byte for byte. Published templates have their own licences and are not part
//! of the project; each difference becomes a small case in the tests of `ruvllm-text`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use ruvllm_text::chat::{ChatTemplate, Message};
use serde::Deserialize;
use serde_json::{Map, Value};

use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Error, Result};

/// The Python program.
const RENDER: &str = "tools/src/template_goldens/render.py";

/// The conversations.
const CHATS: &str = "tools/src/template_goldens/chats.json";

/// One conversation.
#[derive(Deserialize)]
struct Chat {
    name: String,
    messages: Vec<Message>,
    tools: Option<Value>,
    #[serde(default)]
    variables: Map<String, Value>,
}

/// Result of rendering a conversation.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Rendered {
    /// The prompt.
    Text(String),
    /// The template refuses the conversation with this message.
    Refused(String),
    /// Another error; messages differ between engines.
    Failed(String),
}

impl Rendered {
    fn agrees_with(&self, other: &Self) -> bool {
        self == other || matches!((self, other), (Self::Failed(_), Self::Failed(_)))
    }
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "the text {text:?}"),
            Self::Refused(message) => write!(f, "the refusal {message:?}"),
            Self::Failed(message) => write!(f, "the error {message:?}"),
        }
    }
}

/// Results of one template, counted in conversations with and without the start of an answer.
#[derive(Default)]
struct Outcome {
    /// Equal texts.
    texts: usize,
    /// Refused or failed on both sides.
    refused: usize,
    /// Rendered here, while Jinja2 fails for a reason outside of the template: no reference.
    here: usize,
    faults: Vec<String>,
}

/// Renders each conversation with every template of a folder, compares with Jinja2, and prints a
/// table.
///
/// # Errors
/// A folder without templates, a Python without Jinja2, and any difference.
pub(crate) fn template_goldens(workspace: &Workspace, folder: &Path, python: &Path) -> Result<()> {
    let command = CommandLine::new(python, Path::new(".")).args([
        workspace.path(RENDER).as_path(),
        folder,
        &workspace.path(CHATS),
    ]);
    let json = |source| Error::Json { command: command.display(), source };
    let goldens: BTreeMap<String, Vec<Rendered>> = serde_json::from_str(&command.output()?).map_err(json)?;
    let chats: Vec<Chat> = serde_json::from_str(&workspace.read(CHATS)?).map_err(json)?;
    if goldens.is_empty() {
        return Err(Error::NoTemplates { folder: folder.into() });
    }
    println!(
        "| template | equal prompts | refused by both | rendered here alone | different |\n|---|---:|---:|---:|---:|"
    );
    let mut total = Outcome::default();
    for (name, goldens) in goldens {
        let path = folder.join(&name);
        let source = fs::read_to_string(&path).map_err(Error::io("read", path))?;
        let Outcome { texts, refused, here, faults } = compare(&source, &chats, &goldens);
        let name = name.trim_end_matches(".jinja");
        println!("| {name} | {texts} | {refused} | {here} | {} |", faults.len());
        total.texts += texts;
        total.refused += refused;
        total.here += here;
        total.faults.extend(faults.into_iter().map(|fault| format!("{name}, {fault}")));
    }
    println!("| all | {} | {} | {} | {} |", total.texts, total.refused, total.here, total.faults.len());
    if total.faults.is_empty() {
        Ok(())
    } else {
        Err(Error::GoldensDiffer { faults: total.faults.join("\n") })
    }
}

/// Compares a template with its goldens: each conversation without and with the generation prompt.
fn compare(source: &str, chats: &[Chat], goldens: &[Rendered]) -> Outcome {
    let cases = chats.iter().flat_map(|chat| [(chat, false), (chat, true)]);
    let mut outcome = Outcome::default();
    for ((chat, add_generation_prompt), golden) in cases.zip(goldens) {
        let rendered = render(source, chat, add_generation_prompt);
        match golden {
            Rendered::Failed(_) if matches!(rendered, Rendered::Text(_)) => outcome.here += 1,
            golden if !rendered.agrees_with(golden) => {
                let start = if add_generation_prompt { " with the start of an answer" } else { "" };
                outcome.faults.push(format!("{}{start}: {rendered} instead of {golden}", chat.name));
            }
            Rendered::Text(_) => outcome.texts += 1,
            Rendered::Refused(_) | Rendered::Failed(_) => outcome.refused += 1,
        }
    }
    outcome
}

fn render(source: &str, chat: &Chat, add_generation_prompt: bool) -> Rendered {
    let token = |text: &str| Some(text.to_owned());
    let prompt = ChatTemplate::new(source, token("<s>"), token("</s>")).and_then(|template| {
        let set = |template: ChatTemplate, (name, value): (&String, &Value)| {
            template.with_variable(name.as_str(), value.clone())
        };
        chat.variables.iter().fold(template, set).render(
            &chat.messages,
            chat.tools.as_ref(),
            add_generation_prompt,
        )
    });
    match prompt {
        Ok(text) => Rendered::Text(text),
        Err(ruvllm_text::Error::TemplateRefused { message }) => Rendered::Refused(message),
        Err(error) => Rendered::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chats() -> Vec<Chat> {
        let workspace = Workspace::find().expect("the workspace");
        serde_json::from_str(&workspace.read(CHATS).expect("the file")).expect("conversations")
    }

    #[test]
    fn what_differs_is_told_with_its_conversation() {
        let chats: Vec<Chat> = chats().into_iter().filter(|chat| chat.name == "user").collect();
        let source = "{{ messages[0].content if not add_generation_prompt else raise_exception('no') }}";
        let goldens = |text: &str, refusal: &str| {
            [Rendered::Text(text.to_owned()), Rendered::Refused(refusal.to_owned())]
        };
        let outcome = compare(source, &chats, &goldens("What is a bowline?", "no"));
        assert_eq!((outcome.texts, outcome.refused, outcome.faults.len()), (1, 1, 0));
        let outcome = compare(source, &chats, &goldens("What?", "never"));
        assert_eq!((outcome.texts, outcome.refused), (0, 0));
        let expected = [
            r#"user: the text "What is a bowline?" instead of the text "What?""#,
            r#"user with the start of an answer: the refusal "no" instead of the refusal "never""#,
        ];
        assert_eq!(outcome.faults, expected);
    }

    #[test]
    fn there_is_nothing_to_be_equal_to_where_the_reference_fails() {
        let chats: Vec<Chat> = chats().into_iter().take(1).collect();
        let failed = || Rendered::Failed("TypeError".to_owned());
        let outcome = compare("text", &chats, &[failed(), failed()]);
        assert_eq!((outcome.here, outcome.faults.len()), (2, 0));
        let outcome = compare("{{ raise_exception('no') }}", &chats, &[failed(), failed()]);
        assert_eq!((outcome.here, outcome.faults.len()), (0, 2));
    }

    #[test]
    fn engines_need_not_agree_on_the_words_of_an_error() {
        let (a, b) = (Rendered::Failed("a".to_owned()), Rendered::Failed("b".to_owned()));
        assert!(a.agrees_with(&b) && !a.agrees_with(&Rendered::Refused("a".to_owned())));
    }

    #[test]
    fn names_of_conversations_are_unique() {
        let mut names: Vec<String> = chats().into_iter().map(|chat| chat.name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
