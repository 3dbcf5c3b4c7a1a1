//! Saved conversations: JSON files of messages and settings.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ruvllm::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings::{SavedSettings, Settings};
use crate::error::{Error, Result};
use crate::result_file::{self, Readers};

/// Maximum size of a file in bytes: more than any context holds.
const MOST_BYTES: u64 = 64 << 20;

/// Contents of a saved conversation.
#[derive(Serialize, Deserialize)]
struct Saved {
    messages: Vec<Message>,
    /// Messages behind the system prompt that are no longer sent; only of sessions.
    #[serde(default, skip_serializing_if = "is_zero")]
    forgotten_messages: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<SavedSettings>,
}

/// Writes a conversation; a new file is readable by its owner alone. An existing saved conversation
/// is replaced and keeps its permissions; a file of another kind is not replaced.
///
/// # Errors
/// [`Error::NotReplaced`], [`Error::WriteFile`].
pub(super) fn save(path: &Path, messages: &[Message], settings: &Settings) -> Result<()> {
    match read(path) {
        Ok(_) => {}
        Err(Error::ReadFile { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        Err(_) => return Err(Error::NotReplaced { path: path.to_owned() }),
    }
    write(path, messages, 0, settings)
}

/// Writes a conversation as [`save`] does, but without a look at the file that it replaces.
///
/// # Errors
/// [`Error::WriteFile`].
pub(super) fn write(
    path: &Path,
    messages: &[Message],
    forgotten_messages: usize,
    settings: &Settings,
) -> Result<()> {
    let saved = Saved { messages: messages.to_vec(), forgotten_messages, settings: Some(settings.into()) };
    let failed = |source| Error::WriteFile { path: path.to_owned(), source };
    let mut bytes = serde_json::to_vec_pretty(&saved).map_err(|error| failed(error.into()))?;
    bytes.push(b'\n');
    result_file::write(path, &bytes, Readers::Owner).map_err(failed)
}

/// Reads a saved conversation or a plain list of messages, to which `settings` apply.
///
/// # Errors
/// [`Error::ReadFile`], [`Error::NoConversation`].
pub(super) fn load(path: &Path, settings: &Settings) -> Result<(Vec<Message>, Settings)> {
    let Saved { messages, settings: saved, .. } = read(path)?;
    let none = |reason| Error::NoConversation { path: path.to_owned(), reason };
    let settings = match saved {
        Some(saved) => saved.apply(settings).map_err(none)?,
        None => settings.clone(),
    };
    Ok((messages, settings))
}

/// Reads the messages of a saved conversation, and how many of them are no longer sent.
///
/// # Errors
/// As [`load`].
pub(super) fn messages(path: &Path) -> Result<(Vec<Message>, usize)> {
    read(path).map(|saved| (saved.messages, saved.forgotten_messages))
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

fn read(path: &Path) -> Result<Saved> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|source| Error::ReadFile { path: path.to_owned(), source })?;
    let none = |reason| Error::NoConversation { path: path.to_owned(), reason };
    if bytes.len() as u64 > MOST_BYTES {
        return Err(none(format!("it has more than {MOST_BYTES} bytes")));
    }
    let invalid = |error: serde_json::Error| none(error.to_string());
    match serde_json::from_slice(&bytes).map_err(invalid)? {
        list @ Value::Array(_) => {
            let messages = serde_json::from_value(list).map_err(invalid)?;
            Ok(Saved { messages, forgotten_messages: 0, settings: None })
        }
        other => serde_json::from_value(other).map_err(invalid),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ruvllm::SamplingParams;

    use super::*;

    fn settings() -> Settings {
        Settings {
            sampling: SamplingParams::greedy(),
            breakers: vec!["\n".into()],
            max_tokens: 7,
            stop: vec!["x".into()],
            output: None,
        }
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let messages = [Message::system("Be \"brief\"."), Message::user("a\nb"), Message::assistant("")];
        save(&path, &messages, &settings()).unwrap();
        let other = Settings { max_tokens: 1, ..settings() };
        assert_eq!(load(&path, &other).unwrap(), (messages.to_vec(), settings()));
        // Saving again replaces the file and leaves no temporary file.
        save(&path, &messages[..1], &settings()).unwrap();
        assert_eq!(load(&path, &other).unwrap().0, messages[..1]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn lists_of_messages_are_conversations_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.json");
        for text in [
            r#"[{"role":"user","content":"Hi"}]"#,
            r#"{"messages":[{"role":"user","content":"Hi"}],"model":"other"}"#,
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(load(&path, &settings()).unwrap(), (vec![Message::user("Hi")], settings()));
        }
    }

    #[test]
    fn other_files_are_neither_loaded_nor_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        for text in ["", "text", "{}", "3", r#"{"messages":3}"#, r#"[{"content":"no role"}]"#, "\u{1b}[2J"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(load(&path, &settings()), Err(Error::NoConversation { .. })), "{text:?}");
            assert!(matches!(save(&path, &[], &settings()), Err(Error::NotReplaced { .. })), "{text:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, r#"{"messages":[],"settings":{"top_p":2}}"#).unwrap();
        assert!(load(&path, &settings()).unwrap_err().to_string().contains("top_p"));
        assert!(matches!(load(folder.path(), &settings()), Err(Error::ReadFile { .. })));
        assert!(matches!(
            save(&folder.path().join("no/such"), &[], &settings()),
            Err(Error::WriteFile { .. })
        ));
    }
}
