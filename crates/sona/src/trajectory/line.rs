//! JSON lines of exports.

use serde::{Deserialize, Serialize};

use super::{Feedback, StoredTrajectory, Trajectory};
use crate::error::{Error, Result};

/// Version of the lines.
const LINE_VERSION: u32 = 1;

/// Line of an export: a trajectory with its feedback. The schema is documented at
/// [`LearningStore::export`](crate::LearningStore::export).
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) version: u32,
    /// Number in the exporting store; an import gives new numbers.
    pub(crate) id: u64,
    pub(crate) trajectory: Trajectory,
    pub(crate) feedback: Vec<Feedback>,
}

/// Version alone, read before the rest.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Line {
    pub(crate) fn new(stored: StoredTrajectory) -> Self {
        let StoredTrajectory { id, trajectory, feedback } = stored;
        Self { version: LINE_VERSION, id: id.0, trajectory, feedback }
    }

    /// Parses and checks the line with this number.
    pub(crate) fn parse(text: &str, line: u64) -> Result<Self> {
        let refuse = |reason: String| Error::ImportLine { line, reason };
        let Version { version } = serde_json::from_str(text).map_err(|error| refuse(place(&error)))?;
        if version != LINE_VERSION {
            return Err(refuse(format!("version {version}; this program reads version {LINE_VERSION}")));
        }
        let parsed: Self = serde_json::from_str(text).map_err(|error| refuse(place(&error)))?;
        parsed.trajectory.check().map_err(|error| refuse(error.to_string()))?;
        for feedback in &parsed.feedback {
            feedback.check().map_err(|error| refuse(error.to_string()))?;
        }
        Ok(parsed)
    }
}

/// Message of a parser that saw this line alone: with its column, without "line 1".
fn place(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let message = error.to_string();
    let reason = message.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&message);
    format!("column {column}: {reason}")
}
