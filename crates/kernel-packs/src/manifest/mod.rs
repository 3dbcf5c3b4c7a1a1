//! The manifest of a pack: `kernels.json`.

mod category;
mod check;
mod fallback;
mod kernel;
mod parameter;
mod platform;
mod resolve;
mod tensor;

use ruvllm_witness::{KeyId, Timestamp};
use semver::Version;
use serde::{Deserialize, Serialize};

pub use category::Category;
pub(crate) use check::check_text;
pub use fallback::{CategoryFallback, Fallback};
pub use kernel::{Benchmark, Kernel, ResourceLimits};
pub use parameter::{Parameter, ParameterType, ParameterValue};
pub use platform::{Platforms, WasmFeature, Wasmi, Wasmtime};
pub use tensor::{DType, Dim, Tensor};

use crate::error::{Error, Result, within};
use crate::json::{self, present};
use crate::limits::MAX_MANIFEST_BYTES;
use crate::name::MANIFEST;

/// Version of the format that this crate reads and writes.
pub const SCHEMA_VERSION: u32 = 1;

/// Contents of `kernels.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Manifest {
    /// JSON Schema of the document, for editors; its value means nothing here.
    #[serde(
        rename = "$schema",
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub schema: Option<String>,
    /// Version of the format: [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the pack, under which its versions replace one another.
    pub name: String,
    /// Version of the pack, without build metadata.
    pub version: Version,
    /// Purpose, for people.
    pub description: String,
    /// Earliest version of the runtime, inclusive.
    pub min_runtime_version: Version,
    /// First version of the runtime that is too late, exclusive; absent for no bound.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub max_runtime_version: Option<Version>,
    /// Author, with the key that signs.
    pub author: Author,
    /// Time at which the pack was made, as its author states it.
    pub created: Timestamp,
    /// Kernels, with unique ids.
    pub kernels: Vec<Kernel>,
    /// Fallbacks of categories, for kernels that name none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<CategoryFallback>,
}

/// Author of a pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Author {
    /// Name of a person or an organization.
    pub name: String,
    /// Address for questions.
    pub email: String,
    /// Id of the key that signs the manifest. Drafts may lack it.
    #[serde(default)]
    pub signing_key: KeyId,
}

/// The field that later versions have too.
#[derive(Serialize, Deserialize)]
struct Head {
    schema_version: u32,
}

impl Manifest {
    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::SchemaVersion`], [`Error::Json`], and the errors of values:
    /// [`Error::Field`], [`Error::Path`], [`Error::Duplicate`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let manifest = Self::parse_draft(bytes)?;
        manifest.check_complete()?;
        Ok(manifest)
    }

    /// Reads a manifest whose hashes, sizes and signing key may be absent.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn parse_draft(bytes: &[u8]) -> Result<Self> {
        within(format!("{MANIFEST} (bytes)"), bytes.len() as u64, MAX_MANIFEST_BYTES)?;
        // A later version may have other fields: its number is a better message than their names.
        let Head { schema_version: found } = json::read(bytes, MANIFEST)?;
        if found != SCHEMA_VERSION {
            return Err(Error::SchemaVersion { what: MANIFEST.to_owned(), found, known: SCHEMA_VERSION });
        }
        let manifest: Self = json::read(bytes, MANIFEST)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Text of the manifest: the bytes of `kernels.json`.
    ///
    /// # Errors
    /// [`Error::Json`] does not occur for a manifest that was parsed.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|source| Error::Json { what: MANIFEST.to_owned(), source })?;
        text.push(b'\n');
        Ok(text)
    }

    /// Kernel with an id.
    pub fn kernel(&self, id: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.id == id)
    }

    /// Name and version, for messages.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}
