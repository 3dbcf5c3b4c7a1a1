//! Snapshots of a learner, in memory and as bytes.

use super::bytes::{Reader, TOO_LARGE};
use super::learner::InstantLearner;
use super::observation::Observations;
use super::optimizer::Moments;
use super::parameters::Shape;
use crate::error::{Error, Result};

/// First bytes of a snapshot: name and version of the format.
const MAGIC: &[u8; 8] = b"ruvsona2";

/// State of a learner at one moment: parameters, optimizer, baseline and kept ordinary positions. A
/// learner that is restored goes on bit by bit as the one that was saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    shape: Shape,
    parameters: Vec<f32>,
    moments: Moments,
    baseline: f32,
    updates: u64,
    anchors: Observations,
    anchors_seen: u64,
}

impl InstantLearner {
    /// Copies the state.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            shape: self.shape,
            parameters: self.parameters.clone(),
            moments: self.moments.clone(),
            baseline: self.baseline,
            updates: self.updates,
            anchors: self.anchors.clone(),
            anchors_seen: self.anchors_seen,
        }
    }

    /// Takes the state of a snapshot.
    ///
    /// # Errors
    /// [`Error::Dimension`] for a snapshot of another model or other ranks; nothing changes then.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        let (own, other) = (&self.shape, &snapshot.shape);
        let sizes = [
            ("the hidden state of the snapshot's model", own.model_dim, other.model_dim),
            ("the vocabulary of the snapshot's model", own.vocab_size, other.vocab_size),
            ("hidden_rank of the snapshot", own.hidden_rank, other.hidden_rank),
            ("logits_rank of the snapshot", own.logits_rank, other.logits_rank),
            ("a position of the snapshot", self.anchors.candidates(), snapshot.anchors.candidates()),
        ];
        if let Some((what, expected, got)) = sizes.into_iter().find(|(_, own, other)| own != other) {
            return Err(Error::Dimension { what, expected, got });
        }
        self.parameters.clone_from(&snapshot.parameters);
        self.moments.clone_from(&snapshot.moments);
        self.baseline = snapshot.baseline;
        self.updates = snapshot.updates;
        self.anchors.clone_from(&snapshot.anchors);
        self.anchors_seen = snapshot.anchors_seen;
        Ok(())
    }
}

impl Snapshot {
    /// The state as bytes: sizes as `u64`, then all numbers, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let Shape { model_dim, vocab_size, hidden_rank, logits_rank } = self.shape;
        let sizes =
            [model_dim, vocab_size, hidden_rank, logits_rank, self.anchors.candidates(), self.anchors.len()];
        let sizes = sizes.map(|size| size as u64).into_iter();
        for number in sizes.chain([self.moments.steps, self.updates, self.anchors_seen]) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let floats = [&self.parameters, &self.moments.mean, &self.moments.square];
        let floats = floats.into_iter().flatten().chain(std::iter::once(&self.baseline));
        floats.for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        self.anchors.write(&mut bytes);
        bytes
    }

    /// Reads the state.
    ///
    /// # Errors
    /// [`Error::Snapshot`] for bytes that are not a whole snapshot of this version, or hold numbers
    /// that are not finite.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader { bytes };
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(Error::Snapshot { reason: "it is none of this version" });
        }
        let mut sizes = [0; 6];
        for size in &mut sizes {
            *size = usize::try_from(reader.u64()?).map_err(|_| TOO_LARGE)?;
        }
        let [model_dim, vocab_size, hidden_rank, logits_rank, candidates, anchors] = sizes;
        // Sizes come from a file: none may overflow, and all numbers must be there.
        let shape = Shape { model_dim, vocab_size, hidden_rank, logits_rank };
        shape.check()?;
        let parameters = (2 * hidden_rank + logits_rank)
            .checked_mul(model_dim)
            .and_then(|dense| logits_rank.checked_mul(vocab_size)?.checked_add(dense))
            .filter(|parameters| parameters.checked_mul(12).is_some_and(|size| size <= bytes.len()))
            .ok_or(TOO_LARGE)?;
        let (steps, updates, anchors_seen) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let mut floats = |count| reader.floats(count);
        let snapshot = Self {
            shape,
            parameters: floats(parameters)?,
            moments: Moments { steps, mean: floats(parameters)?, square: floats(parameters)? },
            baseline: floats(1)?[0],
            updates,
            anchors: Observations::read(&mut reader, model_dim, candidates, anchors)?,
            anchors_seen,
        };
        if snapshot.anchors.largest_token().is_some_and(|token| token as usize >= vocab_size) {
            return Err(Error::Snapshot { reason: "a token is beyond the vocabulary" });
        }
        match reader.bytes.is_empty() {
            true => Ok(snapshot),
            false => Err(Error::Snapshot { reason: "bytes are left over" }),
        }
    }
}
