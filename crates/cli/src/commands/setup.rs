//! Setup of a measurement, archived with its results.

use serde::Serialize;

use crate::args::ModelArgs;
use crate::default_model::ModelChoice;
use crate::device::{GpuFacts, Loaded};
use crate::error::Result;

/// Commit that the program was built from; `None` outside of its repository.
const COMMIT: Option<&str> = option_env!("RUVLLM_COMMIT");

/// Program, model and kernels of a measurement.
#[derive(Serialize)]
pub(super) struct Setup {
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
    model: ModelDocument,
    /// Instruction set; `None` on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    isa: Option<&'static str>,
}

#[derive(Serialize)]
struct ModelDocument {
    /// Path, or name of the built-in model.
    name: String,
    /// [`ModelSource::fingerprint`](ruvllm::ModelSource::fingerprint) in hexadecimal.
    fingerprint: String,
}

impl ModelDocument {
    /// The model that was loaded with these flags.
    ///
    /// # Errors
    /// A model file that cannot be read any more.
    fn new(model: &ModelArgs, loaded: &Loaded) -> Result<Self> {
        let choice = ModelChoice::new(model.model.as_deref());
        let digits = match loaded.engine() {
            Some(engine) => engine.fingerprint()?,
            None => choice.source().fingerprint(None)?,
        };
        let fingerprint = digits.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name: choice.name(), fingerprint })
    }
}

/// Model and policy of a second run beside the one of [`EngineSetup`].
#[derive(Serialize)]
pub(super) struct RunSetup {
    model: ModelDocument,
    /// Policy of keys and values.
    kv: String,
}

impl RunSetup {
    /// As [`Setup::new`].
    pub(super) fn new(model: &ModelArgs, loaded: &Loaded) -> Result<Self> {
        Ok(Self { model: ModelDocument::new(model, loaded)?, kv: loaded.backend().kv_policy().to_string() })
    }
}

impl Setup {
    /// Setup of a model that was loaded with these flags.
    ///
    /// # Errors
    /// A model file that cannot be read any more.
    pub(super) fn new(model: &ModelArgs, loaded: &Loaded) -> Result<Self> {
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT,
            model: ModelDocument::new(model, loaded)?,
            isa: loaded.engine().map(|engine| engine.kernels().isa().name()),
        })
    }
}

/// As [`Setup`], of a measurement with one number of threads and one policy.
#[derive(Serialize)]
pub(super) struct EngineSetup {
    #[serde(flatten)]
    setup: Setup,
    /// `None` on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<usize>,
    /// Policy of keys and values.
    kv: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuFacts>,
}

impl EngineSetup {
    /// As [`Setup::new`].
    pub(super) fn new(model: &ModelArgs, loaded: &Loaded) -> Result<Self> {
        Ok(Self {
            setup: Setup::new(model, loaded)?,
            threads: loaded.engine().map(ruvllm::Engine::threads),
            kv: loaded.backend().kv_policy().to_string(),
            gpu: loaded.gpu().cloned(),
        })
    }
}
