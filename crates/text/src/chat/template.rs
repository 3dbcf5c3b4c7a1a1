//! Chat template: compiled once, rendered for every conversation.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
    time::{SystemTime, UNIX_EPOCH},
};

use minijinja::{AutoEscape, Environment, ErrorKind, State, Value as Jinja, syntax::SyntaxConfig};
use serde_json::{Map, Value};

use super::{
    bounds::{self, LONGEST_TEXT, NAME, TOO_LONG},
    engine::on_large_stack,
    input::ChatInput,
    message::{Message, visit_strings},
    nesting,
    origin::{self, Prompt},
    python, rewrite, source,
    style::ChatStyle,
    time,
};
use crate::error::{Error, Result};
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;

/// Name of the separate template that a model may have for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// Limit on the instructions of one rendering. Real templates need some hundreds per message; an
/// endless loop is stopped within a second.
const FUEL: u64 = 4_000_000;

/// Limit on the depth of calls within one rendering.
const RECURSION_LIMIT: usize = 200;

/// A compiled chat template. Immutable: one value serves all threads.
///
/// ```
/// use ruvllm_text::chat::{ChatTemplate, Message};
///
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
/// let template = ChatTemplate::new(source, None, None)?;
/// let messages = [Message::system("Be brief."), Message::user("Hello!")];
/// assert_eq!(template.render(&messages, None, true)?, "<system>Be brief.\n<user>Hello!\n");
/// # Ok::<(), ruvllm_text::Error>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    /// Source of the separate template for conversations with tools.
    tool_use: Option<String>,
    style: Option<ChatStyle>,
    environment: Environment<'static>,
    /// Bytes of text between tags in the longest template.
    text_bytes: usize,
    /// True if a template has filters that mark a text as safe.
    escapes: bool,
    bos_token: Option<String>,
    eos_token: Option<String>,
    variables: Map<String, Value>,
}

impl ChatTemplate {
    /// Compiles a template. `bos_token` and `eos_token` are the token texts that it can use; absent
    /// ones are undefined.
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`] if the template is not valid or longer than 256 KiB.
    pub fn new(source: &str, bos_token: Option<String>, eos_token: Option<String>) -> Result<Self> {
        let environment = environment().map_err(|error| not_valid(&error))?;
        let style = None;
        let mut template = Self {
            source: source.to_owned(),
            tool_use: None,
            style,
            environment,
            text_bytes: 0,
            escapes: false,
            bos_token,
            eos_token,
            variables: Map::new(),
        };
        template.add(NAME, source)?;
        Ok(template)
    }

    /// Compiles a template with the BOS and EOS tokens of a tokenizer.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let text = |id: Option<TokenId>| id.and_then(|id| tokenizer.id_to_token(id));
        Self::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// Compiles the template of a GGUF file, see [`ChatTemplateSource::from_gguf`].
    ///
    /// # Errors
    /// As [`ChatTemplateSource::from_gguf`] and [`ChatTemplateSource::compile`].
    pub fn from_gguf(metadata: &gguf_rs_lite::Metadata, tokenizer: &Tokenizer) -> Result<Self> {
        ChatTemplateSource::from_gguf(metadata)?.compile(tokenizer)
    }

    /// Compiles the built-in template of a style.
    ///
    /// # Errors
    /// As [`new`](Self::new); the built-in templates are valid.
    pub fn of_style(style: ChatStyle, tokenizer: &Tokenizer) -> Result<Self> {
        Ok(Self { style: Some(style), ..Self::for_tokenizer(style.source(), tokenizer)? })
    }

    /// Adds the separate template for conversations with tools, if there is one.
    fn with_tool_use(mut self, source: Option<&str>) -> Result<Self> {
        source.map_or(Ok(()), |source| self.add(TOOL_USE, source))?;
        self.tool_use = source.map(str::to_owned);
        Ok(self)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<()> {
        if source.len() > bounds::LONGEST_SOURCE {
            let most = bounds::LONGEST_SOURCE >> 10;
            let message = format!("{} bytes are longer than {most} KiB", source.len());
            return Err(Error::TemplateSyntax { message });
        }
        let mut add = || {
            let source = source::rewrite(source);
            nesting::check(&source, syntax()?)?;
            let rewritten = rewrite::rewrite(&source, syntax()?)?;
            self.text_bytes = self.text_bytes.max(rewritten.text_bytes);
            let text_bytes = self.text_bytes;
            let characters = move |value: Jinja| python::characters(value, text_bytes);
            self.environment.add_filter(source::CHARACTERS, characters);
            // Where texts can be marked as safe, sums of texts must escape.
            self.escapes |= rewrite::escapes(&source);
            let escapes = self.escapes;
            let sum = move |state: &State<'_, '_>, list: &Jinja| python::add(state, list, escapes);
            self.environment.add_filter(rewrite::SUM, sum);
            self.environment.add_template_owned(name, rewritten.source)
        };
        let added = on_large_stack(|| add().map_err(|error| not_valid(&error)));
        added.unwrap_or_else(|message| Err(Error::TemplateSyntax { message }))
    }

    /// Sets an additional variable of every rendering, for example `enable_thinking`.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: Value) -> Self {
        self.variables.insert(name.into(), value);
        self
    }

    /// Jinja source of the template.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Jinja source of the template for conversations with tools: some models have a separate one.
    #[must_use]
    pub fn tool_source(&self) -> &str {
        self.tool_use.as_deref().unwrap_or(&self.source)
    }

    /// Style, if the template is a built-in one.
    #[must_use]
    pub fn style(&self) -> Option<ChatStyle> {
        self.style
    }

    /// Renders a conversation to the prompt text. `tools` is a JSON array of tool definitions;
    /// `add_generation_prompt` ends the prompt where the model's answer begins.
    ///
    /// # Errors
    /// [`Error::TemplateRefused`] if the template calls `raise_exception`;
    /// [`Error::TemplateRender`] if it fails or exceeds a limit: 4 million instructions, 512 MiB of
    /// values read and 128 MiB of values created in all, a prompt of 16 MiB, 10 seconds;
    /// [`Error::UnassignedCharacter`] for messages with code points of planes 4 and 5.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        self.render_until(messages, tools, add_generation_prompt, None)
    }

    /// As [`render`](Self::render), but ends with an error once `stop` is set.
    ///
    /// # Errors
    /// As [`render`](Self::render), and [`Error::TemplateStopped`].
    pub fn render_until(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        stop: Option<&Arc<AtomicBool>>,
    ) -> Result<String> {
        let input = ChatInput { messages, tools, add_generation_prompt, ..ChatInput::default() };
        Ok(origin::restore(&self.run(&input, stop)?))
    }

    /// Renders the prompt, with the ranges of the template's own text.
    pub(super) fn prompt(&self, input: &ChatInput<'_>, stop: Option<&Arc<AtomicBool>>) -> Result<Prompt> {
        self.run(input, stop).map(|rendered| Prompt::new(&rendered))
    }

    /// Renders the template; the result has marked characters.
    fn run(&self, input: &ChatInput<'_>, stop: Option<&Arc<AtomicBool>>) -> Result<String> {
        self.check_texts(input)?;
        let own = |token: &Option<String>| token.as_deref().map(|token| Jinja::from(origin::marked(token)));
        let messages: Jinja = input.messages.iter().map(Message::to_jinja).collect();
        let mut variables = vec![
            ("messages", messages),
            ("tools", input.tools.map_or(Jinja::from(()), python::from_json)),
            ("documents", Jinja::from(())),
            ("add_generation_prompt", Jinja::from(input.add_generation_prompt)),
        ];
        let further = input.variables.into_iter().flatten();
        let further = further.filter(|(name, _)| !ChatInput::FIXED.contains(&name.as_str()));
        variables.extend(further.map(|(name, value)| (name.as_str(), python::from_json(value))));
        variables.extend(own(&self.bos_token).map(|token| ("bos_token", token)));
        variables.extend(own(&self.eos_token).map(|token| ("eos_token", token)));
        let given = self.variables.iter().map(|(name, value)| (name.as_str(), python::from_json(value)));
        variables.extend(given);
        let variables = Jinja::from_pairs(variables);
        let failed = |message: String| Error::TemplateRender { message };
        let render = || {
            bounds::begin(stop.cloned());
            let tool_use = input.tools.and_then(|_| self.environment.get_template(TOOL_USE).ok());
            let mut prompt = Written::default();
            tool_use
                .map_or_else(|| self.environment.get_template(NAME), Ok)
                .and_then(|template| template.render_captured_to(variables, &mut prompt).map(|_| ()))
                .map_err(|error| match (cause::<Raised>(&error), cause::<bounds::Stopped>(&error)) {
                    (Some(Raised(message)), _) => Error::TemplateRefused { message: message.clone() },
                    (None, Some(_)) => Error::TemplateStopped,
                    (None, None) => failed(describe(&error)),
                })?;
            String::from_utf8(prompt.0).map_err(|error| failed(error.to_string()))
        };
        on_large_stack(render).unwrap_or_else(|message| Err(failed(message)))
    }

    /// Rejects texts with code points that are reserved for marking template text.
    fn check_texts(&self, input: &ChatInput<'_>) -> Result<()> {
        let mut checked = Ok(());
        let mut check = |text: &str| {
            if checked.is_ok() {
                checked = origin::check(text);
            }
        };
        input.visit_strings(&mut check);
        self.variables.values().for_each(|value| visit_strings(value, &mut check));
        checked
    }
}

/// Chat template of a model as its files contain it, not compiled yet.
///
/// Reading it executes nothing: programs that render no chats are unaffected by a template that
/// does not compile.
#[derive(Debug, Clone)]
pub struct ChatTemplateSource {
    template: Option<String>,
    tool_use: Option<String>,
    architecture: String,
    name: String,
}

impl ChatTemplateSource {
    /// Reads the template of a GGUF file. The keys are `tokenizer.chat_template` and, for
    /// conversations with tools, `tokenizer.chat_template.tool_use`; without the former, the
    /// metadata for [`ChatStyle::detect`].
    ///
    /// # Errors
    /// [`Error::Gguf`] if a key has another type.
    pub fn from_gguf(metadata: &gguf_rs_lite::Metadata) -> Result<Self> {
        let text = |key: &str| metadata.get_str(key).map(|text| text.map(str::to_owned));
        Ok(Self {
            template: text("tokenizer.chat_template")?,
            tool_use: text("tokenizer.chat_template.tool_use")?,
            architecture: text("general.architecture")?.unwrap_or_default(),
            name: text("general.name")?.unwrap_or_default(),
        })
    }

    /// Compiles the template, or else the built-in one of the style that [`ChatStyle::detect`]
    /// finds.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`] if there is neither; as [`ChatTemplate::new`] otherwise.
    pub fn compile(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        match &self.template {
            Some(source) => {
                ChatTemplate::for_tokenizer(source, tokenizer)?.with_tool_use(self.tool_use.as_deref())
            }
            None => {
                let style = ChatStyle::detect(tokenizer, &self.architecture, &self.name);
                ChatTemplate::of_style(style.ok_or(Error::NoChatTemplate)?, tokenizer)
            }
        }
    }
}

/// Syntax with transformers' handling of white space around tags.
fn syntax() -> Result<SyntaxConfig, minijinja::Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// Creates an environment that renders as Jinja2 does in transformers.
fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::empty();
    environment.set_syntax(syntax()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_formatter(|output, _, value| {
        let text = python::to_str(value)?;
        bounds::charge(text.len())?;
        output.write_str(&text).map_err(minijinja::Error::from)
    });
    python::register(&mut environment);
    environment.add_function("raise_exception", |message: &Jinja| -> Result<Jinja, minijinja::Error> {
        let raised = Raised(origin::restore(&python::to_str(message)?));
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
    });
    environment.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        time::strftime(&origin::plain_text(format), now.as_secs())
    });
    Ok(environment)
}

/// Output of a template, limited in length.
#[derive(Default)]
struct Written(Vec<u8>);

impl io::Write for Written {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.0.len() + text.len() > LONGEST_TEXT {
            return Err(io::Error::other(TOO_LONG));
        }
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Message of a template's `raise_exception`, distinct from errors of the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Finds the error of type `T` among the causes of an engine error.
fn cause<T: std::error::Error + 'static>(error: &minijinja::Error) -> Option<&T> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        source = error.source();
    }
    None
}

fn not_valid(error: &minijinja::Error) -> Error {
    Error::TemplateSyntax { message: describe(error) }
}

/// Message of an engine error, with its line.
fn describe(error: &minijinja::Error) -> String {
    let mut message = match (error.kind(), std::error::Error::source(error)) {
        (ErrorKind::OutOfFuel, _) => "the template takes too many steps".to_owned(),
        (ErrorKind::WriteFailure, Some(source)) => source.to_string(),
        (kind, _) => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    };
    if let Some(line) = error.line() {
        message.push_str(&format!(" (line {line})"));
    }
    origin::restore(&message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String> {
        ChatTemplate::new(source, None, None)?.render(&[], None, false)
    }

    /// Expected texts come from Jinja2 3.1.6.
    #[test]
    fn raw_blocks_are_those_of_jinja() {
        for (source, expected) in [
            ("a{% raw %}\nx{% endraw %}\ny", "a\nxy"),
            ("a{% raw -%}\n x{% endraw %}y", "axy"),
            ("a{%- raw %}\n\nx\n  {% endraw -%}\n y", "a\n\nx\ny"),
            ("{% raw %}{{ x }}\n{% endraw %}\n\nb", "{{ x }}\n\nb"),
            ("{%raw%}\n{%endraw%}", "\n"),
            ("{% raw %}\n{% if %}\n{%- endraw %}b", "\n{% if %}b"),
        ] {
            assert_eq!(render(source).unwrap_or_default(), expected, "{source:?}");
        }
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped() {
        let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless), Err(Error::TemplateRender { .. })));
        let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(matches!(render(recursive), Err(Error::TemplateRender { .. })));
    }

    #[test]
    fn what_a_template_makes_has_an_end() {
        let repeat = |step: &str| {
            format!(
                "{{% set ns = namespace(s='ab', l=[1]) %}}{{% macro m(s) %}}{{{{ s }}}}{{{{ s }}}}{{% endmacro %}}\
                 {{% for i in range(1000) %}}{step}{{% endfor %}}"
            )
        };
        for step in [
            "{% set ns.s = ns.s ~ ns.s %}",
            "{% set ns.s = ns.s + ns.s %}",
            "{% set ns.s = ns.s * 2 %}",
            "{% set ns.s = ns.s | replace('a', ns.s) %}",
            "{% set ns.s = ns.s.replace('a', ns.s) %}",
            "{% set ns.s = [ns.s, ns.s] | join %}",
            "{% set ns.s = ns.s.join([ns.s, ns.s]) %}",
            "{% set ns.s = '%s%s' | format(ns.s, ns.s) %}",
            "{% set ns.s = '{}{}'.format(ns.s, ns.s) %}",
            "{% set ns.s = ns.s | list | string %}",
            "{% set ns.s = m(ns.s) %}",
            "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}",
            "{% set ns.l = ns.l + ns.l %}",
            "{% set ns.l = ns.l * 2 %}",
            "{% set ns.s = '%999999999d' | format(1) %}",
            "{% set ns.s = '{:>999999999}'.format(1) %}",
            "{% set ns.s = 'a' | indent(999999999) %}",
            "{% set ns.l = [1] | batch(999999999, 0) | list %}",
            "{% set ns.l = [1] | slice(999999999) | list %}",
            "{% set ns.s = '%s%s' % (ns.s, ns.s) %}",
            "{% set ns.s = '%(a)s%(a)s' % {'a': ns.s} %}",
            "{% set ns.s = '%r' % [ns.s, ns.s] %}",
            "{% set ns.s = '%999999999d' % 1 %}",
            "{% set ns.s = '%.999999999f' % 1 %}",
            "{% set ns.s = '{:{}}'.format(1, 999999999) %}",
            "{% set ns.s = '{0!r}{0!r}'.format(ns.s) %}",
            "{% set ns.s = ns.s ~ ns.s[1:] %}",
            "{% set ns.s = [ns.s, ns.s] | escape %}",
            "{% set ns.l = dict([(1, ns.l), (2, ns.l)]).values() | sum(start=[]) %}",
            "{% set ns.l = [(1, ns.l), (1, ns.l)] | groupby(0) | map('last') | sum(start=[]) | map('last') | sum(start=[]) %}",
        ] {
            let error = render(&repeat(step)).map(|_| ());
            let is_bound =
                |message: &str| ["MiB", "too large", "too far"].iter().any(|bound| message.contains(bound));
            assert!(
                matches!(&error, Err(Error::TemplateRender { message }) if is_bound(message)),
                "{step} {error:?}"
            );
        }
        let text = "x".repeat(100_000);
        let error = render(&format!("{{% set x %}}{}{{% endset %}}", repeat(&repeat(&text))));
        assert!(matches!(error.map(|_| ()), Err(Error::TemplateRender { .. })));
        let error = render(&"x".repeat(bounds::LONGEST_SOURCE + 1)).map(|_| ());
        assert!(matches!(error, Err(Error::TemplateSyntax { .. })));
    }

    #[test]
    fn what_a_template_prints_has_an_end() {
        let nest = "{% set ns = namespace(x=['0123456789']) %}{% for i in range(40) %}\
                    {% set ns.x = [ns.x, ns.x] %}{% endfor %}";
        for print in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x | string | length }}"] {
            let error = render(&format!("{nest}{print}"));
            assert!(
                matches!(&error, Err(Error::TemplateRender { message }) if message.contains("16 MiB")),
                "{print} {error:?}"
            );
        }
        let many = "{% for i in range(10000) %}{{ 'x' * 10000 }}{% endfor %}";
        assert!(matches!(render(many), Err(Error::TemplateRender { message }) if message.contains("16 MiB")));
    }

    #[test]
    fn values_nested_deeply_are_printed_and_freed() {
        let nest = "{% set ns = namespace(x=[]) %}{% for i in range(2500) %}{% for j in range(100) %}\
                    {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
        assert_eq!(render(nest).ok().as_deref(), Some(""));
        assert_eq!(render(&format!("{nest}{{{{ ns.x }}}}")).map_or(0, |text| text.len()), 500_002);
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
