//! Errors of tools: the tool by name, the fault, the remedy.

/// Tools that cannot be used, or a choice that they do not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The tools are no JSON array.
    #[error(
        "tools are a JSON array of {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}, not {found}"
    )]
    NotAList {
        /// Kind of JSON value that was given.
        found: &'static str,
    },
    /// A tool without a name.
    #[error("tool {} has no name; give `function.name` a text", index + 1)]
    Unnamed {
        /// Its index in the list.
        index: usize,
    },
    /// A name with characters that calls cannot have.
    #[error("tool name `{name}` is not valid: use up to 64 letters, digits and the characters _ - . : /")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// Two tools of one name.
    #[error("there are two tools with the name `{name}`; rename one")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Parameters that are not the schema of an object.
    #[error("the parameters of tool `{name}` are no schema of an object; use {{\"type\": \"object\", ...}}")]
    Parameters {
        /// Name of the tool.
        name: String,
    },
    /// The schema of a tool's parameters cannot be used.
    #[cfg(feature = "structured-output")]
    #[error("parameters of tool `{name}`")]
    Schema {
        /// Name of the tool.
        name: String,
        /// The fault.
        #[source]
        source: crate::constraint::ConstraintError,
    },
    /// All tools together cannot be compiled.
    #[cfg(feature = "structured-output")]
    #[error("the tools cannot be constrained; use fewer or simpler ones")]
    Grammar(#[source] crate::constraint::ConstraintError),
    /// The chosen tool does not exist.
    #[error("there is no tool `{name}` to choose; known: {known}")]
    UnknownChoice {
        /// The chosen name.
        name: String,
        /// Names of the tools.
        known: String,
    },
    /// A call is demanded, and there are no tools.
    #[error("a tool call is required, and the prompt has no tools; use Prompt::chat_with_tools")]
    NoTools,
    /// The chat template writes no tool calls in a known format.
    #[error(
        "the model's chat template has no tool calls in a known format ({known}); set the format, or use a model for tools"
    )]
    UnknownFormat {
        /// Names of the known formats.
        known: String,
    },
    /// A choice of a tool that is none of the known forms.
    #[error("`{found}` is no choice of tools; use auto, none, required or the name of a tool")]
    Choice {
        /// The value.
        found: String,
    },
    /// The request restricts its output in two ways.
    #[error("tools and another constraint on the output exclude each other; drop one, or choose no tool")]
    TwoConstraints,
    /// The prompt ends within a message of the answer, and calls are messages of their own.
    #[error(
        "the prompt ends within a message of the answer, and calls of this model are messages; end it before the first header"
    )]
    OpenMessage,
    /// A build without constraints cannot force a call.
    #[error("a required tool call needs the feature `structured-output`")]
    Unconstrained,
}
