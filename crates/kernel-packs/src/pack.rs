//! Verification: from files to a pack whose modules may be compiled.

use std::sync::Arc;

use ruvllm_witness::{Digest, KeyId, Timestamp};
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::contents::Contents;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::manifest::{Kernel, Manifest};
use crate::trust::TrustedKeys;

/// Conditions under which a pack is accepted.
#[derive(Debug, Clone, Copy)]
pub struct Policy<'a> {
    /// Trusted keys and allowed kernels.
    pub keys: &'a TrustedKeys,
    /// Runtime and engine.
    pub host: &'a Host,
    /// Time at which the key must be valid. `None` for packs that were accepted before: keys whose
    /// validity has ended stay good for them, revoked ones do not.
    pub now: Option<Timestamp>,
}

/// Version of a pack, told from others of the same number by its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Release {
    /// The version.
    pub version: Version,
    /// SHA-256 of the manifest.
    pub manifest_sha256: Digest,
}

/// Verified pack: its author's key is trusted, and every module has the signed hash.
#[derive(Debug, Clone)]
pub struct Pack {
    contents: Contents,
    signer: String,
}

/// Verified module of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Module<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Binary form of the WebAssembly module; kernels of one file share it.
    pub bytes: &'a Arc<[u8]>,
}

impl Release {
    /// Checks that a pack is not older than this release, and is this one if it has its version.
    fn check_floor(&self, contents: &Contents) -> Result<()> {
        let Manifest { name, version, .. } = contents.manifest();
        let (name, found) = (name.clone(), version.clone());
        match found.cmp_precedence(&self.version) {
            std::cmp::Ordering::Less => Err(Error::Downgrade { name, found, floor: self.version.clone() }),
            std::cmp::Ordering::Equal if contents.manifest_sha256() != self.manifest_sha256 => {
                Err(Error::SameVersion { name, version: found })
            }
            _ => Ok(()),
        }
    }
}

impl Contents {
    /// Verifies the pack.
    ///
    /// # Errors
    /// In this order: the key ([`Error::NoTrustedKey`], [`Error::UnknownKey`],
    /// [`Error::RevokedKey`], [`Error::KeyNotValid`]), the signature ([`Error::Unsigned`],
    /// [`Error::BadSignature`]), the host ([`Error::RuntimeTooOld`], [`Error::RuntimeTooNew`],
    /// [`Error::NoPlatform`], [`Error::EngineTooOld`], [`Error::MissingFeature`]), and each kernel
    /// ([`Error::Length`], [`Error::HashMismatch`], [`Error::NotWasm`], [`Error::NotAllowed`]).
    pub fn verify(self, policy: Policy<'_>) -> Result<Pack> {
        self.verify_above(policy, None)
    }

    /// Verifies the pack, which must not be older than `floor`.
    ///
    /// # Errors
    /// As [`verify`](Self::verify); after the host, [`Error::Downgrade`] and
    /// [`Error::SameVersion`].
    pub fn verify_above(self, policy: Policy<'_>, floor: Option<&Release>) -> Result<Pack> {
        let manifest = self.manifest();
        let key = policy.keys.find(manifest.author.signing_key, policy.now)?;
        let signature = self.parsed_signature()?;
        if !key.public_key.verifies(&self.manifest_bytes, &signature) {
            return Err(Error::BadSignature { key: key.id });
        }
        policy.host.check(manifest)?;
        floor.map_or(Ok(()), |floor| floor.check_floor(&self))?;
        self.check_modules()?;
        if let Some(kernel) = manifest.kernels.iter().find(|kernel| !policy.keys.allows(&kernel.sha256)) {
            return Err(Error::NotAllowed { kernel: kernel.id.clone(), sha256: kernel.sha256 });
        }
        let signer = key.name.clone();
        Ok(Pack { contents: self, signer })
    }
}

impl Pack {
    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        self.contents.manifest()
    }

    /// Version and digest.
    pub fn release(&self) -> Release {
        let version = self.manifest().version.clone();
        Release { version, manifest_sha256: self.contents.manifest_sha256() }
    }

    /// Id of the key that signed the pack.
    pub fn key_id(&self) -> KeyId {
        self.manifest().author.signing_key
    }

    /// Name of the key in the trusted keys.
    pub fn signer(&self) -> &str {
        &self.signer
    }

    /// The files, as they were verified.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Modules of all kernels, in the order of the manifest.
    pub fn modules(&self) -> impl Iterator<Item = Module<'_>> {
        let kernels = self.manifest().kernels.iter();
        kernels.filter_map(|kernel| Some(Module { kernel, bytes: self.contents.kernels.get(&kernel.path)? }))
    }

    /// Module of the kernel with an id.
    pub fn module(&self, id: &str) -> Option<Module<'_>> {
        self.modules().find(|module| module.kernel.id == id)
    }
}
