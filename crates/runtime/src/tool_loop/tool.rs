//! A Rust closure that a model may call.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

/// Type of a tool's closure: arguments to result, or a message for the model.
type Function = dyn Fn(Value) -> Result<Value, String> + Send + Sync;

/// A function that a model may call: name, description, schema of its arguments, closure.
///
/// The closure gets the arguments as a JSON object. Its result is a JSON value or a text; an error
/// is told to the model, as are panics and time-outs.
#[derive(Clone)]
pub struct Tool {
    name: String,
    description: String,
    parameters: Option<Value>,
    pub(super) function: Arc<Function>,
}

impl Tool {
    /// A tool whose arguments fit a JSON Schema of an object.
    pub fn new<T: Into<Value>, E: fmt::Display>(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: Value,
        function: impl Fn(Value) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        Self { parameters: Some(parameters), ..Self::without_parameters(name, description, function) }
    }

    /// A tool without arguments: the closure gets an empty object.
    pub fn without_parameters<T: Into<Value>, E: fmt::Display>(
        name: impl Into<String>,
        description: impl Into<String>,
        function: impl Fn(Value) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        let function =
            move |arguments| function(arguments).map(Into::into).map_err(|error| error.to_string());
        Self {
            name: name.into(),
            description: description.into(),
            parameters: None,
            function: Arc::new(function),
        }
    }

    /// Name of the tool.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Definition in the JSON form of the chat-completions API.
    pub fn definition(&self) -> Value {
        let mut function = json!({"name": self.name, "description": self.description});
        // Templates print the field, so that an empty list of parameters is written down.
        let empty = || json!({"type": "object", "properties": {}});
        function["parameters"] = self.parameters.clone().unwrap_or_else(empty);
        json!({"type": "function", "function": function})
    }
}

/// The name and the parameters.
impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("name", &self.name)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}
