//! The session of a chat: messages on disk that follow those of the conversation.

use super::saved;
use super::settings::Settings;
use super::transcript::Transcript;
use crate::error::{Error, Result};
use crate::session_store::OpenSession;

/// An open session, and the messages in its file.
pub(super) struct Session {
    open: OpenSession,
    written: Transcript,
}

impl Session {
    /// Reads the messages of a session; a new one has none.
    ///
    /// # Errors
    /// A file that cannot be read or is no saved conversation.
    pub(super) fn read(open: OpenSession) -> Result<Self> {
        let written = match saved::messages(&open.file()) {
            Ok((messages, forgotten)) => Transcript::resumed(messages, forgotten),
            Err(Error::ReadFile { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Transcript::default()
            }
            Err(error) => return Err(error),
        };
        Ok(Self { open, written })
    }

    pub(super) fn id(&self) -> &str {
        self.open.id.as_str()
    }

    /// The messages that were written last.
    pub(super) fn transcript(&self) -> &Transcript {
        &self.written
    }

    /// Writes the messages, unless they are those in the file.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn keep(&mut self, transcript: &Transcript, settings: &Settings) -> Result<()> {
        if *transcript != self.written {
            saved::write(&self.open.file(), transcript.messages(), transcript.forgotten(), settings)?;
            self.written = transcript.clone();
        }
        Ok(())
    }
}
