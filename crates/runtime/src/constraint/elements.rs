//! Grammar of arguments as elements: strings are text up to the closing tag, others JSON.

use std::fmt::Write as _;

use ruvllm_text::tool_call::{ArgumentType, ToolCallFormat};
use serde_json::{Map, Value};

use super::error::ConstraintError;
use super::gbnf::lark_string;
use super::schema;

/// Keywords of a tool's parameters that elements in a fixed order cannot follow.
const UNSUPPORTED: [&str; 13] = [
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "minProperties",
    "maxProperties",
];

/// Tags of a format in Lark: texts, or special tokens.
pub(super) struct Tags {
    /// Before and behind the name of a parameter.
    name: (String, String),
    /// Between the name and the text.
    open: String,
    /// Behind a JSON value or one of several texts.
    close: String,
    /// Behind all elements.
    end: &'static str,
    /// Before the name of the function, and behind it.
    function: (&'static str, &'static str),
    /// Rule for any text with the closing tag.
    text: String,
}

impl Tags {
    /// Tags of a format; `marker` gives a tag as its special token, or its text. `None` if the
    /// format has no elements.
    pub(super) fn of(format: ToolCallFormat, marker: &dyn Fn(&str) -> String) -> Option<Self> {
        match format {
            ToolCallFormat::QwenXml => Some(Self {
                name: (lark_string("<parameter="), lark_string(">\n")),
                open: String::new(),
                close: lark_string("\n</parameter>\n"),
                end: "</function>\n",
                function: ("\n<function=", ">\n"),
                text: "element_value \"\\n\"\nelement_value[lazy]: /(?s:.*)<\\/parameter>/\n".to_owned(),
            }),
            ToolCallFormat::Glm => {
                let close = marker("</arg_value>");
                let text = if close.starts_with('<') {
                    format!(
                        "ELEMENT_TEXT? {close} \"\\n\"?\n\
                         ELEMENT_TEXT: /(?s:.+)/ & ~/(?s:.*)<\\/arg_value>(?s:.*)/\n"
                    )
                } else {
                    "element_value \"\\n\"?\nelement_value[lazy]: /(?s:.*)<\\/arg_value>/\n".to_owned()
                };
                Some(Self {
                    name: (marker("<arg_key>"), marker("</arg_key>")),
                    open: format!("\"\\n\"? {}", marker("<arg_value>")),
                    close: format!("{close} \"\\n\"?"),
                    end: "",
                    function: ("", ""),
                    text,
                })
            }
            _ => None,
        }
    }

    /// Rules that all tools share.
    pub(super) fn shared(&self) -> String {
        format!("element_text: {}ELEMENT_NAME: /[A-Za-z_][A-Za-z0-9_.\\-]*/\n", self.text)
    }

    /// The rules of one tool: its name and its elements.
    ///
    /// # Errors
    /// [`ConstraintError::UnsupportedKeyword`], and faults of the parameters' schemas.
    pub(super) fn tool(
        &self,
        index: usize,
        name: &str,
        parameters: Option<&Value>,
    ) -> Result<String, ConstraintError> {
        let (mut head, mut rules) = (String::new(), String::new());
        let (before, after) = self.function;
        let _ = write!(head, "tool_{index}: {}", lark_string(&format!("{before}{name}{after}")));
        if after.is_empty() {
            head.push_str(" \"\\n\"?");
        }
        let none = Value::Object(Map::new());
        let root = parameters.unwrap_or(&none);
        check(root)?;
        let properties = root.get("properties").and_then(Value::as_object);
        let is_required = |name: &str| {
            let required = root.get("required").and_then(Value::as_array);
            required.is_some_and(|names| names.iter().any(|required| required == name))
        };
        for (number, (parameter, schema)) in properties.into_iter().flatten().enumerate() {
            let rule = format!("element_{index}_{number}");
            let _ = write!(head, " {rule}{}", if is_required(parameter) { "" } else { "?" });
            let _ = writeln!(rules, "{rule}: {}", self.element(&rule, parameter, schema, root)?);
        }
        let is_open = root.get("additionalProperties").is_none_or(|more| more == &Value::Bool(true));
        if parameters.is_some() && properties.is_none() && is_open {
            let (before, after) = &self.name;
            let _ = write!(head, " element_{index}*");
            let _ =
                writeln!(rules, "element_{index}: {before} ELEMENT_NAME {after} {} element_text", self.open);
        }
        if !self.end.is_empty() {
            let _ = write!(head, " {}", lark_string(self.end));
        }
        Ok(format!("{head}\n{rules}"))
    }

    /// Body of the rule of one parameter, and rules that it uses.
    fn element(
        &self,
        rule: &str,
        name: &str,
        schema: &Value,
        root: &Value,
    ) -> Result<String, ConstraintError> {
        let (before, after) = match (&self.name, self.open.is_empty()) {
            // The tag and the name are one text.
            (_, true) => (lark_string(&format!("<parameter={name}>\n")), String::new()),
            ((before, after), false) => {
                (format!("{before} {}", lark_string(name)), format!("{after} {}", self.open))
            }
        };
        if ArgumentType::of_schema(schema, root) != ArgumentType::Text {
            let schema = schema::normalize(&with_definitions(schema, root))?;
            return Ok(format!("{before} {after} {rule}_json {}\n{rule}_json: %json {schema}", self.close));
        }
        let listed = match (schema.get("enum").and_then(Value::as_array), schema.get("const")) {
            (Some(values), _) => values.iter().filter_map(Value::as_str).collect(),
            (None, value) => value.and_then(Value::as_str).into_iter().collect::<Vec<_>>(),
        };
        if listed.is_empty() {
            return Ok(format!("{before} {after} element_text"));
        }
        let texts: Vec<String> = listed.into_iter().map(lark_string).collect();
        Ok(format!("{before} {after} ({}) {}", texts.join(" | "), self.close))
    }
}

/// Refuses parameters that elements cannot follow.
fn check(root: &Value) -> Result<(), ConstraintError> {
    let remedy = "name the parameters under `properties`: this model writes them as elements";
    let refused = |keyword: &str| ConstraintError::UnsupportedKeyword {
        keyword: keyword.to_owned(),
        path: "#".to_owned(),
        remedy: remedy.to_owned(),
    };
    if let Some(keyword) = UNSUPPORTED.iter().find(|keyword| root.get(**keyword).is_some()) {
        return Err(refused(keyword));
    }
    let (properties, more) = (root.get("properties"), root.get("additionalProperties"));
    if properties.is_none() && more.is_some_and(|more| !more.is_boolean()) {
        return Err(refused("additionalProperties"));
    }
    // The name of a parameter stands between tags.
    let names = properties.and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name);
    let required = root.get("required").and_then(Value::as_array).into_iter().flatten();
    if required.filter_map(Value::as_str).any(|name| properties.is_none_or(|known| known.get(name).is_none()))
    {
        return Err(refused("required"));
    }
    let is_name = |name: &String| !name.is_empty() && !name.contains(['<', '>', '\n']) && name.trim() == name;
    if names.clone().all(is_name) { Ok(()) } else { Err(refused("properties")) }
}

/// The schema of a parameter with the definitions that it may refer to.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        for table in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(table) {
                object.entry(table).or_insert_with(|| definitions.clone());
            }
        }
    }
    schema
}
