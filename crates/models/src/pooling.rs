//! Pooling of a text's hidden states into one vector, and the defaults in a model's files.

use std::fmt;
use std::str::FromStr;

use gguf_rs_lite::Metadata;

use crate::config::keys::Keys;
use crate::config::read_architecture;
use crate::error::{Error, Result};

/// Suffix of the key for the kind of pooling.
const POOLING: &str = "pooling_type";

/// Key of a flag: scale vectors to unit length (L2). The format has no key for it; this one is
/// ours.
pub(crate) const NORMALIZE: &str = "ruvllm.embedding.normalize";

/// Most tokens of a text that count, where a model was trained with fewer than it has positions
/// for. Ours too.
pub(crate) const MAX_TOKENS: &str = "ruvllm.embedding.max_tokens";

/// The number of GGUF files for a score of a text instead of a vector.
pub(crate) const RANKS: u32 = 4;

/// Pooling of a text's hidden states into one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean of all.
    Mean,
    /// State of the last token, which in a decoder has seen all others.
    Last,
    /// State of the first token, where encoders put a token of no other meaning.
    Cls,
}

impl Pooling {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Mean, Self::Last, Self::Cls];

    /// The name that [`FromStr`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Last => "last",
            Self::Cls => "cls",
        }
    }

    /// The number that GGUF files use: 0 is none, [`RANKS`] a score instead of a vector.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Mean => 1,
            Self::Cls => 2,
            Self::Last => 3,
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|pooling| pooling.name() == name)
            .ok_or_else(|| Error::UnknownPooling { found: name.to_owned() })
    }
}

/// Embedding defaults from the files of a model; `None` for settings that they do not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmbeddingDefaults {
    /// Pooling of the hidden states.
    pub pooling: Option<Pooling>,
    /// True if vectors are scaled to unit length (L2).
    pub normalize: Option<bool>,
    /// Most tokens of a text, those around it included.
    pub max_tokens: Option<usize>,
}

impl EmbeddingDefaults {
    /// Reads the defaults in the metadata of a checkpoint.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] for a pooling that is not supported and for a length of 0,
    /// [`Error::Gguf`] for values of a wrong type.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let keys = Keys::new(metadata, read_architecture(metadata)?);
        let pooling = match keys.count(POOLING, 0..=usize::MAX)? {
            None | Some(0) => None,
            Some(found) if found == RANKS as usize => None,
            Some(found) => {
                let pooling = Pooling::ALL.into_iter().find(|pooling| pooling.number() as usize == found);
                let expected = "1 (mean), 2 (cls), 3 (last) or 4 (score)";
                Some(pooling.ok_or_else(|| keys.invalid(POOLING, found, expected))?)
            }
        };
        let max_tokens = match metadata.get_u64(MAX_TOKENS)? {
            Some(0) => {
                let (key, found) = (MAX_TOKENS.to_owned(), "0".to_owned());
                return Err(Error::InvalidKey { key, found, expected: "at least 1".to_owned() });
            }
            found => found.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)),
        };
        Ok(Self { pooling, normalize: metadata.get_bool(NORMALIZE)?, max_tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for pooling in Pooling::ALL {
            assert_eq!(pooling.name().parse::<Pooling>().ok(), Some(pooling));
        }
        let error = "max".parse::<Pooling>().map_err(|error| error.to_string());
        assert_eq!(error, Err("pooling `max` is not known (known: mean, last, cls)".to_owned()));
    }

    #[test]
    fn what_files_say_is_checked() {
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", "bert");
        assert_eq!(EmbeddingDefaults::from_metadata(&metadata).ok(), Some(EmbeddingDefaults::default()));
        metadata.insert("bert.pooling_type", 2_u32);
        metadata.insert(MAX_TOKENS, 256_u32);
        metadata.insert(NORMALIZE, false);
        let expected =
            EmbeddingDefaults { pooling: Some(Pooling::Cls), normalize: Some(false), max_tokens: Some(256) };
        assert_eq!(EmbeddingDefaults::from_metadata(&metadata).ok(), Some(expected));
        metadata.insert("bert.pooling_type", RANKS);
        let expected = EmbeddingDefaults { pooling: None, ..expected };
        assert_eq!(EmbeddingDefaults::from_metadata(&metadata).ok(), Some(expected));
        for (key, value) in [("bert.pooling_type", 5_u32), (MAX_TOKENS, 0)] {
            let mut metadata = metadata.clone();
            metadata.insert(key, value);
            let error = EmbeddingDefaults::from_metadata(&metadata).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains(key)));
        }
    }
}
