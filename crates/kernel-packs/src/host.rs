//! The runtime that packs are verified for.

use std::collections::BTreeSet;

use semver::Version;

use crate::error::{Error, Result};
use crate::manifest::{Kernel, Manifest, WasmFeature};

/// Runtime and engine that packs are verified for.
#[derive(Debug, Clone)]
pub struct Host {
    /// Version of the runtime.
    pub version: Version,
    /// Engine that runs the kernels; without one, needs of engines are not checked.
    pub engine: Option<Engine>,
}

/// Engine that runs the kernels of packs.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Kind of the engine.
    pub kind: EngineKind,
    /// Its version.
    pub version: Version,
    /// Features of WebAssembly that it offers.
    pub features: BTreeSet<WasmFeature>,
}

/// Kind of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// Compiler.
    Wasmtime,
    /// Interpreter.
    Wasmi,
}

impl EngineKind {
    /// Name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wasmtime => "wasmtime",
            Self::Wasmi => "wasmi",
        }
    }
}

impl Host {
    /// A runtime without an engine, for tools that install packs and run none.
    pub fn new(version: Version) -> Self {
        Self { version, engine: None }
    }

    /// Checks that the pack is for this runtime and its engine.
    pub(crate) fn check(&self, manifest: &Manifest) -> Result<()> {
        let pack = || manifest.title();
        let found = || self.version.clone();
        if self.version.cmp_precedence(&manifest.min_runtime_version).is_lt() {
            let need = manifest.min_runtime_version.clone();
            return Err(Error::RuntimeTooOld { pack: pack(), need, found: found() });
        }
        if let Some(max) = &manifest.max_runtime_version
            && self.version.cmp_precedence(max).is_ge()
        {
            return Err(Error::RuntimeTooNew { pack: pack(), below: max.clone(), found: found() });
        }
        let Some(engine) = &self.engine else { return Ok(()) };
        manifest.kernels.iter().try_for_each(|kernel| engine.check(kernel))
    }
}

impl Engine {
    /// Checks that the engine is one that the kernel is made for.
    pub(crate) fn check(&self, kernel: &Kernel) -> Result<()> {
        let engine = self.kind.name();
        let id = || kernel.id.clone();
        let platforms = &kernel.platforms;
        let no_features = Vec::new();
        let needs = match self.kind {
            EngineKind::Wasmtime => {
                platforms.wasmtime.as_ref().map(|need| (&need.min_version, &need.features))
            }
            EngineKind::Wasmi => platforms.wasmi.as_ref().map(|need| (&need.min_version, &no_features)),
        };
        let Some((need, features)) = needs else { return Err(Error::NoPlatform { kernel: id(), engine }) };
        if self.version.cmp_precedence(need).is_lt() {
            let (need, found) = (need.clone(), self.version.clone());
            return Err(Error::EngineTooOld { kernel: id(), engine, need, found });
        }
        match features.iter().find(|feature| !self.features.contains(feature)) {
            Some(feature) => Err(Error::MissingFeature { kernel: id(), feature: feature.name(), engine }),
            None => Ok(()),
        }
    }
}
