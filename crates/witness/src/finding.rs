//! Findings of a verification.

use std::fmt;

use crate::key::KeyId;

/// Damage of a log, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Name of the file.
    pub file: String,
    /// Line in the file, counted from 1; `None` for the file as a whole.
    pub line: Option<u64>,
    /// Sequence number of the line, where it is known.
    pub seq: Option<u64>,
    /// The damage.
    pub fault: Fault,
}

/// Damage of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The line is not in the format of the log.
    NotALine,
    /// The line is longer than any of a log.
    TooLong,
    /// The bytes of the line do not have its hash.
    Altered,
    /// The line is not the successor of the line before.
    Replaced,
    /// Lines before this one are missing.
    Missing {
        /// First sequence number that is missing.
        from: u64,
        /// Last one.
        to: u64,
    },
    /// The line stands at the wrong place: moved, or there twice.
    OutOfOrder,
    /// The file is missing.
    NoFile,
    /// The first line of the file is not that of a file of this number.
    WrongFile,
    /// The file is of a later version of the format.
    Format(u32),
    /// The file ends in the middle of a line.
    Torn {
        /// Bytes of the incomplete line.
        bytes: u64,
    },
    /// The key did not make the signature of the checkpoint.
    Signature(KeyId),
    /// The checkpoint is signed by a key that was not given.
    UnknownKey(KeyId),
    /// There is no checkpoint with a valid signature.
    NoCheckpoint,
    /// The copy of the latest checkpoint is missing.
    NoCheckpointFile,
    /// The copy of a checkpoint is damaged.
    CheckpointFile,
    /// The copy of a checkpoint differs from the line in the log.
    CheckpointDiffers,
    /// The log ends before a checkpoint.
    CutTail {
        /// Sequence number of the checkpoint.
        checkpoint_seq: u64,
        /// Sequence number of the last line.
        last_seq: u64,
    },
}

impl Fault {
    /// Name of the kind of damage, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotALine => "not_a_line",
            Self::TooLong => "too_long",
            Self::Altered => "altered",
            Self::Replaced => "replaced",
            Self::Missing { .. } => "missing",
            Self::OutOfOrder => "out_of_order",
            Self::NoFile => "no_file",
            Self::WrongFile => "wrong_file",
            Self::Format(_) => "format",
            Self::Torn { .. } => "torn",
            Self::Signature(_) => "signature",
            Self::UnknownKey(_) => "unknown_key",
            Self::NoCheckpoint => "no_checkpoint",
            Self::NoCheckpointFile => "no_checkpoint_file",
            Self::CheckpointFile => "checkpoint_file",
            Self::CheckpointDiffers => "checkpoint_differs",
            Self::CutTail { .. } => "cut_tail",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotALine => f.write_str("not a line of a witness log"),
            Self::TooLong => f.write_str("longer than any line of a log"),
            Self::Altered => f.write_str("altered: its bytes do not have its hash"),
            Self::Replaced => f.write_str("replaced: not the successor of the line before"),
            Self::Missing { from, to } if from == to => write!(f, "line {from} before this one is missing"),
            Self::Missing { from, to } => write!(f, "lines {from} to {to} before this one are missing"),
            Self::OutOfOrder => f.write_str("out of order: moved, or there twice"),
            Self::NoFile => f.write_str("the file is missing"),
            Self::WrongFile => f.write_str("the first line is not that of this file"),
            Self::Format(format) => write!(f, "version {format} of the format is unknown"),
            Self::Torn { bytes } => write!(f, "incomplete last line of {bytes} bytes"),
            Self::Signature(key) => write!(f, "the signature is not that of key {key}"),
            Self::UnknownKey(key) => write!(f, "signed by the unknown key {key}"),
            Self::NoCheckpoint => f.write_str("no checkpoint has a valid signature"),
            Self::NoCheckpointFile => f.write_str("the copy of the latest checkpoint is missing"),
            Self::CheckpointFile => f.write_str("the checkpoint is damaged"),
            Self::CheckpointDiffers => f.write_str("the checkpoint differs from the line in the log"),
            Self::CutTail { checkpoint_seq, last_seq } => {
                write!(
                    f,
                    "the log ends at {last_seq}, before the checkpoint {checkpoint_seq}: lines were removed"
                )
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, " line {line}")?;
        }
        if let Some(seq) = self.seq {
            write!(f, " (sequence number {seq})")?;
        }
        write!(f, ": {}", self.fault)
    }
}
