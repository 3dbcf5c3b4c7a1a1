//! File, environment and flags as layers of one configuration, and the origin of each value.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value as Json;
use thiserror::Error;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::check::Fault;
use super::{Arm, Config, Model, Router, Tenant};

/// Most bytes of a configuration file.
const MOST_BYTES: u64 = 4 << 20;

/// Reason why a configuration is refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A value or the syntax around it.
    #[error("{origin}: {reason}")]
    Invalid {
        /// File and line, environment variable or flag.
        origin: String,
        /// The value, what is expected and what to do.
        reason: String,
    },
    /// An environment variable is no setting.
    #[error("{variable} is no setting of the server; docs/server-config.md lists the keys{hint}")]
    Variable {
        /// Name of the variable.
        variable: String,
        /// The nearest name, if one is near.
        hint: String,
    },
}

/// A setting from a flag or an environment variable.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Key with its sections, such as `listen.port`.
    pub key: String,
    /// Flag or variable that set it.
    pub origin: String,
    /// The value as text.
    pub value: String,
}

impl Setting {
    /// A setting of a flag.
    pub fn new(key: &str, flag: &str, value: impl Into<String>) -> Self {
        Self { key: key.to_owned(), origin: flag.to_owned(), value: value.into() }
    }
}

/// The sources of a configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Layers {
    path: Option<PathBuf>,
    text: String,
    /// Environment, then flags: later ones win.
    settings: Vec<Setting>,
}

impl Layers {
    pub(super) fn of_text(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }

    pub(super) fn read(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: Vec<Setting>,
    ) -> Result<Self, ConfigError> {
        let mut settings = of_environment(environment)?;
        settings.extend(flags);
        let text = file.map(read_text).transpose()?.unwrap_or_default();
        Ok(Self { path: file.map(Path::to_owned), text, settings })
    }

    /// The same sources with the file read again.
    pub(super) fn again(&self) -> Result<Self, ConfigError> {
        let text = match &self.path {
            Some(path) => read_text(path)?,
            None => self.text.clone(),
        };
        Ok(Self { text, ..self.clone() })
    }

    /// The checked configuration of the layers.
    pub(super) fn config(self) -> Result<Config, ConfigError> {
        let mut config: Config = toml::from_str(&self.text).map_err(|error| {
            let line = error.span().map_or(1, |span| line(&self.text, span.start));
            ConfigError::Invalid { origin: self.place(line), reason: one_line(error.message()) }
        })?;
        if !self.settings.is_empty() {
            // Parsed before, so that this cannot fail.
            let mut table: Table = toml::from_str(&self.text).unwrap_or_default();
            for setting in &self.settings {
                let refused = |reason| ConfigError::Invalid { origin: setting.origin.clone(), reason };
                insert(&mut table, setting).map_err(refused)?;
                config =
                    Config::deserialize(table.clone()).map_err(|error| refused(one_line(error.message())))?;
            }
        }
        config.layers = self;
        config.check()?;
        Ok(config)
    }

    /// The error of a faulty value, with the origin of the value.
    pub(super) fn refused(&self, fault: Fault) -> ConfigError {
        let Fault { key, reason } = fault;
        let set = self.settings.iter().rev().find(|setting| setting.key == key);
        let origin = match set {
            Some(setting) => setting.origin.clone(),
            None => self.place(line_of(&self.text, &key).unwrap_or(1)),
        };
        ConfigError::Invalid { origin, reason: format!("{key}: {reason}") }
    }

    fn place(&self, line: usize) -> String {
        match &self.path {
            Some(path) => format!("{}:{line}", path.display()),
            None => format!("line {line}"),
        }
    }
}

/// Reads a file up to the limit.
fn read_text(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        let reason = format!("not a regular file of at most {MOST_BYTES} bytes");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, reason)));
    }
    fs::read_to_string(path).map_err(failed)
}

/// Settings of the variables that begin with the prefix of the server.
fn of_environment(
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<Setting>, ConfigError> {
    let keys: Vec<(String, String)> = scalar_keys().into_iter().map(|key| (variable(&key), key)).collect();
    let mut settings = Vec::new();
    for (name, value) in environment {
        if !name.starts_with(Config::VARIABLES) {
            continue;
        }
        match keys.iter().find(|(variable, _)| *variable == name) {
            Some((_, key)) => settings.push(Setting { key: key.clone(), origin: name, value }),
            None => {
                let section = name.split('_').nth(2).unwrap_or_default();
                let near = keys.iter().filter(|(known, _)| known.split('_').nth(2) == Some(section));
                let near: Vec<&str> = near.map(|(known, _)| known.as_str()).collect();
                let hint = match near.is_empty() {
                    true => String::new(),
                    false => format!("; there are {}", near.join(", ")),
                };
                return Err(ConfigError::Variable { variable: name, hint });
            }
        }
    }
    settings.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(settings)
}

/// Environment variable of a key.
fn variable(key: &str) -> String {
    format!("{}{}", Config::VARIABLES, key.replace('.', "_").to_uppercase())
}

/// Inserts a setting into a table, with the type that the key has.
fn insert(table: &mut Table, setting: &Setting) -> Result<(), String> {
    let default = serde_json::to_value(Config::default()).unwrap_or_default();
    let pointer = format!("/{}", setting.key.replace('.', "/"));
    let text = &setting.value;
    let value = match default.pointer(&pointer) {
        None => return Err(format!("{} is no setting", setting.key)),
        Some(Json::Array(_)) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(Value::from).collect())
        }
        Some(Json::Bool(_)) => match text.as_str() {
            "true" | "1" => Value::Boolean(true),
            "false" | "0" => Value::Boolean(false),
            _ => Value::from(text.as_str()),
        },
        Some(Json::Number(_) | Json::Null) => number(text),
        Some(_) => Value::from(text.as_str()),
    };
    let mut sections: Vec<&str> = setting.key.split('.').collect();
    let name = sections.pop().unwrap_or_default();
    let mut below = table;
    for section in sections {
        let entry = below.entry(section).or_insert_with(|| Value::Table(Table::new()));
        below = entry.as_table_mut().ok_or_else(|| format!("{section} is no section"))?;
    }
    below.insert(name.to_owned(), value);
    Ok(())
}

/// A number if the text is one, else the text.
fn number(text: &str) -> Value {
    let whole = text.parse::<i64>().ok().map(Value::Integer);
    let any = || text.parse::<f64>().ok().filter(|value| value.is_finite()).map(Value::Float);
    whole.or_else(any).unwrap_or_else(|| Value::from(text))
}

/// Sections of which there are many, whose keys no variable can set.
const MANY: [&str; 3] = ["models", "routers", "tenants"];

/// Keys that a variable can set: those outside of [`MANY`].
fn scalar_keys() -> Vec<String> {
    let mut keys = Vec::new();
    walk("", &serde_json::to_value(Config::default()).unwrap_or_default(), &mut keys);
    keys.retain(|(key, _)| !MANY.contains(&key.as_str()));
    keys.into_iter().map(|(key, _)| key).collect()
}

/// See [`Config::keys`].
pub(super) fn keys() -> Vec<(String, String)> {
    let json = |value: serde_json::Result<Json>| value.unwrap_or_default();
    let mut keys = Vec::new();
    walk("", &json(serde_json::to_value(Config::default())), &mut keys);
    keys.retain(|(key, _)| !MANY.contains(&key.as_str()));
    walk("tenants.NAME", &json(serde_json::to_value(Tenant::default())), &mut keys);
    walk("models", &json(serde_json::to_value(Model::default())), &mut keys);
    walk("routers", &json(serde_json::to_value(Router::default())), &mut keys);
    walk("routers.arms.NAME", &json(serde_json::to_value(Arm::default())), &mut keys);
    keys.retain(|(key, _)| key != "routers.arms");
    keys
}

/// Collects the keys below a value with their defaults as TOML; an absent one is empty.
fn walk(key: &str, value: &Json, keys: &mut Vec<(String, String)>) {
    match value {
        Json::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                walk(&key, value, keys);
            }
        }
        Json::Null => keys.push((key.to_owned(), String::new())),
        value => keys.push((key.to_owned(), value.to_string())),
    }
}

/// Line of a byte, counted from 1.
fn line(text: &str, byte: usize) -> usize {
    1 + text.as_bytes().iter().take(byte).filter(|byte| **byte == b'\n').count()
}

/// Line of a key, or of the deepest section above it that the text has.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut found = None;
    let mut table = table.get_ref();
    for part in key.split('.') {
        let (name, index) = match part.split_once('[') {
            Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else { break };
        found = Some(key.span().start);
        let value = match (value.get_ref(), index) {
            (DeValue::Array(items), Some(index)) => {
                let Some(item) = items.get(index) else { break };
                found = Some(item.span().start);
                item.get_ref()
            }
            (value, _) => value,
        };
        let DeValue::Table(below) = value else { break };
        table = below;
    }
    found.map(|byte| line(text, byte))
}

/// A message of the parser in one line, without control characters.
fn one_line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).collect()
}
