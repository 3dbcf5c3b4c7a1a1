//! Configuration file: a user's defaults of flags (ADR-0037).
//!
//! The file is TOML; its keys are the long names of flags. Precedence is flag, environment, file,
//! default: the parser gets the values of the file as its defaults, so one set of checks holds for
//! both.

mod file;
mod keys;

use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde::Serialize;

use self::file::Entry;
pub(crate) use self::keys::MODEL_VARIABLE;
use self::keys::{KEYS, Key};
use crate::error::{Error, Result};
use crate::help::each;
use crate::user_folders;

/// Environment variable that names another file; empty for none.
pub(crate) const CONFIG_VARIABLE: &str = "RUVLLM_CONFIG";

/// Settings of the run, available once the command line has been read.
static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// The values of a configuration file. The default has none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Config {
    path: Option<PathBuf>,
    entries: Vec<(&'static Key, Entry)>,
}

/// Value and source of every setting that the file may have.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Settings {
    /// The configuration file, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
    /// In the order of the keys' table.
    pub(crate) values: Vec<Setting>,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// Key of the file, and long name of the flag.
    pub(crate) name: &'static str,
    /// The value as text; absent if the program chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// Origin of the value.
    pub(crate) source: Source,
}

/// Origin of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// The command line.
    Flag,
    /// A variable of the environment.
    Environment,
    /// The configuration file.
    File,
    /// None of them.
    Default,
}

impl Source {
    /// The word of the JSON documents.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        }
    }
}

impl Config {
    /// Reads the file that the environment names. That is `RUVLLM_CONFIG`, else `config.toml` in
    /// the program's folder of `XDG_CONFIG_HOME`, which need not exist.
    ///
    /// # Errors
    /// [`Error::Config`] for invalid TOML or an unknown key; [`Error::ReadFile`] for a file that
    /// cannot be read, and for a missing one that `RUVLLM_CONFIG` names.
    pub(crate) fn of_environment() -> Result<Self> {
        let (path, is_named) = match env::var_os(CONFIG_VARIABLE) {
            Some(name) if name.is_empty() => return Ok(Self::default()),
            Some(name) => (PathBuf::from(name), true),
            None => match user_folders::config() {
                Some(folder) => (folder.join("config.toml"), false),
                None => return Ok(Self::default()),
            },
        };
        match file::read(&path) {
            Ok(Some(entries)) => Ok(Self { path: Some(path), entries }),
            Ok(None) if is_named => {
                Err(Error::ReadFile { path, source: std::io::ErrorKind::NotFound.into() })
            }
            Ok(None) => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// The value of a key as text.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        Some(self.entries.iter().find(|(key, _)| key.name == name)?.1.value.as_str())
    }

    /// `command` with the values of the file as the defaults of its flags.
    ///
    /// # Errors
    /// [`Error::Config`] for a value that its flag rejects.
    pub(crate) fn apply(&self, mut command: Command) -> Result<Command> {
        for (key, entry) in &self.entries {
            if let Some(reason) = fault(key, entry, &command) {
                return Err(self.refused(entry, reason));
            }
            // The environment takes precedence over the file.
            if key.variable.is_some_and(is_set) || !key.is_parsed() {
                continue;
            }
            command = each(command, &|command| {
                if key.is_for(command.get_name()) && flag(&command, key).is_some() {
                    let value = entry.value.clone();
                    command.mut_arg(key.id(), |arg| arg.default_value(value))
                } else {
                    command
                }
            });
        }
        Ok(command)
    }

    fn refused(&self, entry: &Entry, reason: String) -> Error {
        let path = self.path.clone().unwrap_or_default();
        Error::Config { path, line: entry.line, reason }
    }

    /// Values and sources after the command line was read.
    pub(crate) fn resolved(self, command: &Command, matches: &ArgMatches) -> Settings {
        let matches = deepest(matches);
        let setting = |key: &'static Key| {
            let id = key.id();
            let given = matches
                .try_get_raw(&id)
                .ok()
                .flatten()
                .filter(|_| matches.value_source(&id) == Some(ValueSource::CommandLine))
                .map(|values| values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(" "));
            let of_environment =
                || key.variable.and_then(|name| env::var(name).ok().filter(|v| !v.is_empty()));
            let of_file = || self.value(key.name).map(str::to_owned);
            let candidates: [(Source, &dyn Fn() -> Option<String>); 3] = [
                (Source::Flag, &|| given.clone()),
                (Source::Environment, &of_environment),
                (Source::File, &of_file),
            ];
            let found = candidates.into_iter().find_map(|(source, value)| Some((source, Some(value()?))));
            let (source, value) = found.unwrap_or_else(|| (Source::Default, default(key, command)));
            Setting { name: key.name, value, source }
        };
        Settings { values: KEYS.iter().map(setting).collect(), file: self.path }
    }
}

/// Makes these the settings of the run; the first call counts.
pub(crate) fn install(settings: Settings) {
    let _ = SETTINGS.set(settings);
}

/// The settings of the run.
pub(crate) fn settings() -> Settings {
    SETTINGS.get().cloned().unwrap_or_default()
}

/// The model of the file, if neither a flag nor the environment names one.
pub(crate) fn model() -> Option<PathBuf> {
    let settings = SETTINGS.get()?;
    let model = settings.values.iter().find(|setting| setting.name == "model")?;
    model.value.as_ref().filter(|_| model.source == Source::File).map(PathBuf::from)
}

/// Reason that a key's flag rejects the value; `None` if it accepts it.
fn fault(key: &Key, entry: &Entry, command: &Command) -> Option<String> {
    let arg = first_flag(command, key)?;
    let name = key.name;
    if !arg.get_action().takes_values() {
        return match entry.value.as_str() {
            "true" | "false" => None,
            other => Some(format!("{name} is {other}, expected true or false")),
        };
    }
    // A separate parser with this flag alone, so that no other check applies.
    let alone = Command::new("file").no_binary_name(true).disable_help_flag(true).arg(arg.clone());
    let error = alone.try_get_matches_from([format!("--{name}={}", entry.value)]).err()?;
    let reason = match std::error::Error::source(&error) {
        Some(source) => source.to_string(),
        None => {
            let values: Vec<String> =
                arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            if values.is_empty() {
                "expected a value".to_owned()
            } else {
                format!("expected {}", values.join(", "))
            }
        }
    };
    Some(format!("{name} is \"{}\": {reason}", entry.value))
}

/// The flag of a key in the first command for which the file may set it.
fn first_flag<'a>(command: &'a Command, key: &Key) -> Option<&'a Arg> {
    let own = flag(command, key).filter(|_| key.is_for(command.get_name()));
    own.or_else(|| command.get_subcommands().find_map(|below| first_flag(below, key)))
}

fn flag<'a>(command: &'a Command, key: &Key) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(key.name))
}

/// Default of a key's flag; `None` if the program chooses at run time.
fn default(key: &Key, command: &Command) -> Option<String> {
    let values = first_flag(command, key)?.get_default_values();
    let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
    (!values.is_empty()).then(|| values.join(" "))
}

/// Matches of the innermost subcommand.
fn deepest(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, below)| deepest(below))
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// Table of all settings with value and source, for the user.
pub(crate) fn table(settings: &Settings) -> String {
    let file =
        settings.file.as_deref().map_or_else(|| "none".to_owned(), |path: &Path| path.display().to_string());
    let row = |setting: &Setting| {
        let value = setting.value.clone().unwrap_or_else(|| "chosen by the program".to_owned());
        vec![format!("  {}", setting.name), value, setting.source.name().to_owned()]
    };
    let rows: Vec<Vec<String>> = settings.values.iter().map(row).collect();
    format!("settings (configuration file: {file})\n{}", crate::output::table(&rows, &[]))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn config(text: &str) -> Result<Config> {
        let path = PathBuf::from("config.toml");
        Ok(Config { entries: file::entries(&path, text)?, path: Some(path) })
    }

    #[track_caller]
    fn refused(text: &str, pieces: &[&str]) {
        let error = config(text).and_then(|config| config.apply(Cli::command())).unwrap_err();
        let line = error.line();
        assert_eq!(error.exit_code(), 2, "{line}");
        for piece in pieces {
            assert!(line.contains(piece), "{piece:?} is not in {line:?}");
        }
    }

    #[test]
    fn every_key_is_a_flag_of_a_command() {
        let mut command = Cli::command();
        command.build();
        for key in &KEYS {
            assert!(first_flag(&command, key).is_some(), "{}", key.name);
        }
    }

    #[test]
    fn faults_have_a_line_and_say_what_is_expected() {
        refused("# one\ntemprature = 1", &["config.toml:2", "`temprature`", "`temperature`"]);
        refused("xyz = 1", &["config.toml:1", "`xyz` is no setting", "long flags"]);
        refused("temperature = -1", &["config.toml:1", "temperature is \"-1\"", "at least 0"]);
        refused("\n\nprefix-cache = \"sometimes\"", &["config.toml:3", "off, on, spill"]);
        refused("kv = \"f64\"", &["config.toml:1", "f64"]);
        refused("no-mmap = 1", &["config.toml:1", "true or false"]);
        refused("threads = [1, 2]", &["config.toml:1", "threads", "one value"]);
        refused("threads = 1\nthreads = 2", &["config.toml:2"]);
        refused("threads", &["config.toml:1"]);
        refused("[generate]\nthreads = 2", &["config.toml:1", "`generate`"]);
    }

    fn settings(text: &str, arguments: &[&str]) -> Settings {
        let config = config(text).unwrap();
        let command = config.apply(Cli::command()).unwrap();
        let matches = command.clone().try_get_matches_from([&["ruvllm"], arguments].concat()).unwrap();
        config.resolved(&command, &matches)
    }

    #[track_caller]
    fn check(settings: &Settings, name: &str, value: &str, source: Source) {
        let found = settings.values.iter().find(|setting| setting.name == name).unwrap();
        assert_eq!((found.value.as_deref(), found.source), (Some(value), source), "{name}");
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_the_defaults() {
        let text = "temperature = 0.5\nthreads = 1_0\nno-mmap = true\nkv-budget = \"64MiB\"";
        let settings = settings(text, &["generate", "-t", "3", "x"]);
        check(&settings, "threads", "3", Source::Flag);
        check(&settings, "temperature", "0.5", Source::File);
        check(&settings, "no-mmap", "true", Source::File);
        check(&settings, "kv-budget", "64MiB", Source::File);
        check(&settings, "top-k", "40", Source::Default);
    }

    #[test]
    fn measurements_do_not_depend_on_the_file() {
        let config = config("kv = \"q8\"\nthreads = 7\ncontext = 99").unwrap();
        let command = config.apply(Cli::command()).unwrap();
        for arguments in [&["bench"][..], &["eval", "perplexity", "--file", "x"]] {
            let matches = command.clone().try_get_matches_from([&["ruvllm"], arguments].concat()).unwrap();
            let raw =
                |id: &str| deepest(&matches).try_get_raw(id).ok().flatten().map(Iterator::collect::<Vec<_>>);
            assert!(raw("kv").is_none_or(|values| values != ["q8"]));
            assert_eq!(raw("threads"), None);
        }
    }
}
