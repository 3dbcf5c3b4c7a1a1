//! Chat templates: a model's own Jinja template turns messages into the prompt it was trained on.
//!
//! Templates are written for Python's Jinja2 as the transformers library runs it; `minijinja` runs
//! them here, with the Python manners (printing, JSON, methods) that it lacks in `python`. Not
//! here: reading the answer, and turning the prompt into tokens
//! ([`Tokenizer::encode_chat`](crate::tokenizer::Tokenizer::encode_chat)).

use std::{
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use minijinja::{AutoEscape, Environment, ErrorKind, Value as Jinja, syntax::SyntaxConfig};
use serde_json::{Map, Value};

mod message;
mod python;
mod source;
mod time;

pub use self::message::Message;
pub(crate) use self::message::visit_strings;
use crate::{Error, Result};

/// Name of the only template in its environment, shown in error messages.
const NAME: &str = "chat_template";

/// Instructions that one rendering may execute. Real templates need some hundreds a message; a template
/// that loops without end is stopped within a second.
const FUEL: u64 = 4_000_000;

/// Depth of calls within one rendering.
const RECURSION_LIMIT: usize = 200;

/// Stack of the thread that renders. Freeing or printing a value recurses as deeply as it is nested, and
/// [`FUEL`] instructions can nest lists half a million times; pages that are not needed cost nothing.
const STACK_BYTES: usize = 512 << 20;

/// A compiled chat template. Immutable: one value serves all threads.
///
/// ```
/// use ruvllm_models::chat::{ChatTemplate, Message};
///
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
/// let template = ChatTemplate::new(source, None, None)?;
/// let messages = [Message::system("Be brief."), Message::user("Hello!")];
/// assert_eq!(template.render(&messages, None, true)?, "<system>Be brief.\n<user>Hello!\n");
/// # Ok::<(), ruvllm_models::Error>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    variables: Map<String, Value>,
}

impl ChatTemplate {
    /// Compiles a template. The token texts are what it knows as `bos_token` and `eos_token`; absent ones are
    /// undefined.
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`] if the template is not valid.
    pub fn new(source: &str, bos_token: Option<String>, eos_token: Option<String>) -> Result<Self> {
        let mut environment =
            environment().map_err(|error| Error::TemplateSyntax { message: describe(&error) })?;
        environment
            .add_template_owned(NAME, source::rewrite(source))
            .map_err(|error| Error::TemplateSyntax { message: describe(&error) })?;
        Ok(Self { source: source.to_owned(), environment, bos_token, eos_token, variables: Map::new() })
    }

    /// The template of a GGUF file (`tokenizer.chat_template`), with the texts of the tokenizer's
    /// BOS and EOS tokens.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`] if the file has none; as [`new`](Self::new) otherwise.
    pub fn from_gguf(
        metadata: &gguf_rs_lite::Metadata,
        tokenizer: &crate::tokenizer::Tokenizer,
    ) -> Result<Self> {
        let source = metadata.get_str("tokenizer.chat_template")?.ok_or(Error::NoChatTemplate)?;
        let text = |id: Option<crate::TokenId>| id.and_then(|id| tokenizer.id_to_token(id));
        Self::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// Sets a further variable that the template sees in every rendering, for example `enable_thinking`.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: Value) -> Self {
        self.variables.insert(name.into(), value);
        self
    }

    /// The template's text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation to the prompt. `tools` is a list of tool definitions;
    /// `add_generation_prompt` ends the prompt where the model's answer begins.
    ///
    /// # Errors
    /// [`Error::TemplateRefused`] if the template calls `raise_exception`;
    /// [`Error::TemplateRender`] if it fails or executes more than 4 million instructions.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let messages: Jinja = messages.iter().map(Message::to_jinja).collect();
        let mut variables = vec![
            ("messages", messages),
            ("tools", tools.map_or(Jinja::from(()), python::from_json)),
            ("documents", Jinja::from(())),
            ("add_generation_prompt", Jinja::from(add_generation_prompt)),
        ];
        for (name, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            variables.extend(token.as_deref().map(|token| (name, Jinja::from(token))));
        }
        let own = self.variables.iter().map(|(name, value)| (name.as_str(), python::from_json(value)));
        variables.extend(own);
        let variables = Jinja::from_pairs(variables);
        let render = || {
            self.environment.get_template(NAME).and_then(|template| template.render(variables)).map_err(
                |error| match raised(&error) {
                    Some(message) => Error::TemplateRefused { message },
                    None => Error::TemplateRender { message: describe(&error) },
                },
            )
        };
        let failed = |message: String| Error::TemplateRender { message };
        thread::scope(|scope| {
            let builder = thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES);
            let renderer =
                builder.spawn_scoped(scope, render).map_err(|error| failed(format!("no thread: {error}")))?;
            renderer.join().unwrap_or_else(|_| Err(failed("the template engine stopped".to_owned())))
        })
    }
}

/// An environment that renders as Jinja2 does in transformers.
fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(python::unknown_method);
    environment.set_formatter(|output, _, value| {
        output.write_str(&python::to_str(value)).map_err(minijinja::Error::from)
    });
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("trim", python::trim);
    environment.add_filter(source::CHARACTERS, python::characters);
    environment.add_filter("string", |value: &Jinja| python::to_str(value));
    environment.add_test("iterable", python::is_iterable);
    environment.add_test("sequence", python::is_sequence);
    environment.add_function("raise_exception", |message: &Jinja| -> Result<Jinja, minijinja::Error> {
        let raised = Raised(python::to_str(message));
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
    });
    environment.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        time::strftime(format, now.as_secs())
    });
    Ok(environment)
}

/// The message of a template's `raise_exception`, kept apart from errors of the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raised(error: &minijinja::Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        source = error.source();
    }
    None
}

/// What went wrong and in which line.
fn describe(error: &minijinja::Error) -> String {
    let mut message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        message.push_str(&format!(" (line {line})"));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String> {
        ChatTemplate::new(source, None, None)?.render(&[], None, false)
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped() {
        let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless), Err(Error::TemplateRender { .. })));
        let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(matches!(render(recursive), Err(Error::TemplateRender { .. })));
    }

    #[test]
    fn values_nested_deeply_are_printed_and_freed() {
        let nest = "{% set ns = namespace(x=[]) %}{% for i in range(60000) %}{% for j in range(5) %}\
                    {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
        assert_eq!(render(nest).ok().as_deref(), Some(""));
        assert_eq!(render(&format!("{nest}{{{{ ns.x }}}}")).map_or(0, |text| text.len()), 600_002);
        assert!(matches!(
            render(&format!("{nest}{{{{ ns.x | tojson }}}}")),
            Err(Error::TemplateRender { .. })
        ));
    }

    #[test]
    fn a_raised_message_is_passed_on_as_it_is() {
        for source in ["{{ raise_exception('no, \"no\"') }}", "{% set x = raise_exception('no, \"no\"') %}"] {
            assert!(
                matches!(render(source), Err(Error::TemplateRefused { message }) if message == "no, \"no\"")
            );
        }
    }

    #[test]
    fn errors_name_the_line() {
        let error = render("a\nb\n{% if %}").map_err(|error| error.to_string());
        assert!(error.is_err_and(|message| message.contains("line 3")));
    }

    #[test]
    fn generation_blocks_are_transparent() {
        assert_eq!(render("a {%- generation %} b {% endgeneration -%} c").ok().as_deref(), Some("a b c"));
    }
}
