//! Checkpoint: hyperparameters and tensors under GGUF names, from any file format.

use gguf_rs_lite::{Gguf, Metadata, TensorData, TensorInfo};
use ruvllm_text::tokenizer::Tokenizer;

use crate::error::Result;

/// A model on disk, presented as a GGUF file: the same metadata keys, tensor names, shapes and row
/// orders.
///
/// [`Gguf`] is one; [`HfFolder`](crate::HfFolder) makes a Hugging Face folder look like one;
/// [`InSitu`](crate::quantize::InSitu) shows another checkpoint in other tensor types.
pub trait Checkpoint {
    /// The hyperparameters and the chat template. The vocabulary may be missing here, see
    /// [`Self::file_metadata`].
    fn metadata(&self) -> &Metadata;

    /// All metadata that a GGUF file of this model has, the vocabulary included.
    ///
    /// # Errors
    /// A tokenizer that is absent, damaged, or that the format cannot hold.
    fn file_metadata(&self) -> Result<Metadata>;

    /// All tensors, in the order of their storage.
    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_>;

    /// The tensor of a name.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// The data of a tensor of this checkpoint: borrowed where a file holds them in this form, else
    /// made now.
    ///
    /// # Errors
    /// A tensor that is not of this checkpoint, or whose values cannot be stored as its type.
    fn data(&self, tensor: &TensorInfo) -> Result<TensorBytes>;

    /// Copies of its first row that a tensor of this checkpoint has at its end in a GGUF file. A
    /// table has them in the place of tokens that it lacks, which stand for no text.
    fn padding_rows(&self, _tensor: &TensorInfo) -> u64 {
        0
    }

    /// Length of all weight files together, in bytes.
    fn file_bytes(&self) -> u64;

    /// The version of the GGUF file, if it is one.
    fn gguf_version(&self) -> Option<u32>;

    /// The model's tokenizer.
    ///
    /// # Errors
    /// A tokenizer that is absent, damaged or of an unknown kind.
    fn tokenizer(&self) -> Result<Tokenizer>;
}

/// Bytes of a tensor; own or share the memory they lie in.
#[derive(Debug, Clone)]
pub enum TensorBytes {
    /// Shared memory: a mapped file, or memory that the caller owns.
    Shared(TensorData),
    /// Private memory.
    Made(Vec<u8>),
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Shared(data) => data.as_bytes(),
            Self::Made(bytes) => bytes,
        }
    }
}

impl Checkpoint for Gguf {
    fn metadata(&self) -> &Metadata {
        self.metadata()
    }

    fn file_metadata(&self) -> Result<Metadata> {
        Ok(self.metadata().clone())
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_> {
        Box::new(self.tensors())
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor(name)
    }

    fn data(&self, tensor: &TensorInfo) -> Result<TensorBytes> {
        Ok(TensorBytes::Shared(self.data(tensor)?))
    }

    fn file_bytes(&self) -> u64 {
        self.file_bytes()
    }

    fn gguf_version(&self) -> Option<u32> {
        Some(self.version())
    }

    fn tokenizer(&self) -> Result<Tokenizer> {
        Ok(Tokenizer::from_gguf(self.metadata())?)
    }
}
