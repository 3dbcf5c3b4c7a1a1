//! State that a log gives, in memory and as bytes.

use sha2::{Digest as _, Sha256};

use crate::continual::{Ewc, EwcSettings};
use crate::error::{Error, Result};
use crate::instant::bytes::{Reader, TOO_LARGE};
use crate::instant::pieces::layout;
use crate::instant::{InstantLearner, Snapshot};

/// First bytes of a state with a consolidation; one without is the snapshot of the learner alone.
const MAGIC: &[u8; 8] = b"ruvcons1";

/// Learner with what was consolidated.
#[derive(Clone)]
pub(super) struct State {
    pub(super) learner: InstantLearner,
    /// Importance of the consolidated parameters, which are its anchor; `None` before the first
    /// consolidation.
    pub(super) consolidated: Option<Ewc>,
}

impl State {
    /// Goes back to a learner without lessons.
    pub(super) fn reset(&mut self, fresh: &Snapshot) -> Result<()> {
        self.learner.restore(fresh)?;
        self.consolidated = None;
        Ok(())
    }

    /// Takes what was consolidated in place of what was learned.
    pub(super) fn adopt(&mut self, consolidated: Ewc) -> Result<()> {
        self.learner.adopt(consolidated.anchor())?;
        self.consolidated = Some(consolidated);
        Ok(())
    }

    /// SHA-256 of the state.
    pub(super) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_bytes()).into()
    }

    /// Bytes: tasks, number of parameters, importance, anchor, snapshot of the learner.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let learner = self.learner.snapshot().to_bytes();
        let Some(ewc) = &self.consolidated else { return learner };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&ewc.tasks().to_le_bytes());
        bytes.extend_from_slice(&(ewc.anchor().len() as u64).to_le_bytes());
        for value in ewc.importance().iter().chain(ewc.anchor()) {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.extend_from_slice(&learner);
        bytes
    }

    /// Takes the state of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`Error::Snapshot`], and [`Error::Dimension`] for that of another model; nothing changes
    /// then.
    pub(super) fn restore(&mut self, bytes: &[u8], settings: EwcSettings) -> Result<()> {
        let mut reader = Reader { bytes };
        if !bytes.starts_with(MAGIC) {
            self.learner.restore(&Snapshot::from_bytes(bytes)?)?;
            self.consolidated = None;
            return Ok(());
        }
        reader.take(MAGIC.len())?;
        let tasks = reader.u64()?;
        let len = usize::try_from(reader.u64()?).map_err(|_| TOO_LARGE)?;
        let (importance, anchor) = (reader.floats(len)?, reader.floats(len)?);
        if importance.iter().any(|value| *value < 0.0) {
            return Err(Error::Snapshot { reason: "an importance is below 0" });
        }
        let ewc = Ewc::from_parts(layout(self.learner.shape())?, settings, (importance, anchor), tasks)?;
        self.learner.restore(&Snapshot::from_bytes(reader.bytes)?)?;
        self.consolidated = Some(ewc);
        Ok(())
    }
}
