//! Lines of the log: their bytes, and the values in them.
//!
//! A line is a JSON object that begins with its sequence number and the hash of the line before,
//! and ends with its own hash, which covers all bytes before.

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, bytes_of};
use crate::entry::Entry;
use crate::key::{KeyId, Signature};
use crate::time::Timestamp;

/// Version of the format, in the first line of each file.
pub(crate) const FORMAT: u32 = 1;

/// Longest line in bytes, its line feed included.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// Bytes that a line has beside its body: sequence number, two hashes, punctuation.
pub(crate) const MAX_FRAME_BYTES: usize = 256;

const HASH_FIELD: &[u8] = b",\"hash\":\"";
/// Bytes from the comma before the hash to the closing brace.
const HASH_BYTES: usize = HASH_FIELD.len() + 64 + 2;

/// Event that a line records.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// First line of a file.
    File(FileStart),
    /// A writer has opened the log.
    Start(Start),
    /// A request.
    Request(Box<Entry>),
    /// Entries that were dropped because the queue was full.
    Dropped(Dropped),
    /// A signature over all lines before.
    Checkpoint(Checkpoint),
    /// A kind of a later version.
    #[serde(other)]
    Other,
}

/// First line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStart {
    /// Version of the format.
    pub format: u32,
    /// Number of the file, as in its name.
    pub file: u64,
}

/// The log was opened for writing; `elapsed_ms` counts from here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Incomplete last line that the former process left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torn: Option<Torn>,
}

/// Bytes of an incomplete line, which were moved to a file of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Torn {
    /// Number of bytes.
    pub bytes: u64,
    /// Name of the file in the folder of the log.
    pub moved_to: String,
}

/// A run of dropped entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Number of entries.
    pub count: u64,
    /// Time of the first.
    pub first: Timestamp,
    /// Time of the last.
    pub last: Timestamp,
}

/// A signature over all lines before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Id of the key.
    pub key_id: KeyId,
    /// Signature over sequence number, predecessor, time and key id of the line.
    pub signature: Signature,
}

/// Signed bytes of a checkpoint in line `seq`, whose predecessor has the hash `prev`.
pub(crate) fn message(seq: u64, prev: Digest, time: Timestamp, key_id: KeyId) -> Vec<u8> {
    format!("ruvllm-witness checkpoint {FORMAT}\n{seq}\n{prev}\n{time}\n{key_id}\n").into_bytes()
}

/// Place in the chain and time of a line.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Head {
    pub(crate) seq: u64,
    pub(crate) prev: Digest,
    pub(crate) kind: String,
    pub(crate) time: Timestamp,
}

/// A line with its values.
#[derive(Deserialize)]
pub(crate) struct Parsed {
    pub(crate) seq: u64,
    pub(crate) time: Timestamp,
    pub(crate) elapsed_ms: u64,
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// Body of a line, without its place in the chain: a JSON object.
pub(crate) fn body<T: Serialize>(kind: &str, time: Timestamp, elapsed_ms: u64, fields: &T) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a, T> {
        kind: &'a str,
        time: Timestamp,
        elapsed_ms: u64,
        #[serde(flatten)]
        fields: &'a T,
    }
    // Numbers, texts and maps with text keys always have a JSON form.
    serde_json::to_vec(&Body { kind, time, elapsed_ms, fields }).unwrap_or_else(|_| b"{}".to_vec())
}

/// Appends the line of a body to `out`. Returns its hash.
pub(crate) fn seal(seq: u64, prev: Digest, body: &[u8], out: &mut Vec<u8>) -> Digest {
    let begin = out.len();
    out.extend(format!("{{\"seq\":{seq},\"prev\":\"{prev}\",").into_bytes());
    out.extend(&body[1..body.len() - 1]);
    let hash = Digest::of(&out[begin..]);
    out.extend(HASH_FIELD);
    out.extend(hash.to_string().into_bytes());
    out.extend(b"\"}\n");
    hash
}

/// Hashes of a line without its line feed: computed, and as it states it. `None` if the line does
/// not end with a hash.
pub(crate) fn hashes(line: &[u8]) -> Option<(Digest, Digest)> {
    let (hashed, end) = line.split_at(line.len().checked_sub(HASH_BYTES)?);
    let stated = end.strip_prefix(HASH_FIELD)?.strip_suffix(b"\"}")?;
    Some((Digest::of(hashed), Digest(bytes_of(stated)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_documented_bytes() {
        let time = "2026-11-23T18:05:00.250Z".parse().unwrap();
        let body = body("file", time, 7, &FileStart { format: 1, file: 2 });
        let mut line = Vec::new();
        let hash = seal(3, Digest::ZERO, &body, &mut line);
        let zeros = "0".repeat(64);
        let hashed = format!(
            "{{\"seq\":3,\"prev\":\"{zeros}\",\"kind\":\"file\",\"time\":\"2026-11-23T18:05:00.250Z\",\
             \"elapsed_ms\":7,\"format\":1,\"file\":2"
        );
        assert_eq!(hash, Digest::of(hashed.as_bytes()));
        assert_eq!(String::from_utf8(line.clone()).unwrap(), format!("{hashed},\"hash\":\"{hash}\"}}\n"));
        line.pop();
        assert_eq!(hashes(&line), Some((hash, hash)));
        let parsed: Parsed = serde_json::from_slice(&line).unwrap();
        assert_eq!((parsed.seq, parsed.elapsed_ms), (3, 7));
        assert_eq!(parsed.event, Event::File(FileStart { format: 1, file: 2 }));
        let head: Head = serde_json::from_slice(&line).unwrap();
        assert_eq!((head.seq, head.prev, head.kind.as_str(), head.time), (3, Digest::ZERO, "file", time));
    }

    #[test]
    fn lines_without_a_hash_at_their_end_are_none() {
        for line in [&b""[..], b"{}", &[b'x'; 75], &[b'"'; 300]] {
            assert_eq!(hashes(line), None);
        }
    }

    #[test]
    fn kinds_of_later_versions_are_read_as_other() {
        let text = format!(
            "{{\"seq\":1,\"prev\":\"{}\",\"kind\":\"new\",\"time\":\"2026-11-23\",\"elapsed_ms\":0,\"x\":[1]}}",
            Digest::ZERO
        );
        assert_eq!(serde_json::from_str::<Parsed>(&text).unwrap().event, Event::Other);
    }
}
