//! Description of a measurement, so that its results can be archived.

use ruvllm::Engine;
use serde::Serialize;

use crate::args::ModelArgs;
use crate::default_model::ModelChoice;
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
    /// Instruction set.
    isa: &'static str,
}

#[derive(Serialize)]
struct ModelDocument {
    /// Path, or name of the built-in model.
    name: String,
    /// Digits of [`Engine::fingerprint`].
    fingerprint: String,
}

impl Setup {
    /// The setup of an engine that was loaded with these flags.
    ///
    /// # Errors
    /// A model file that cannot be read any more.
    pub(super) fn new(model: &ModelArgs, engine: &Engine) -> Result<Self> {
        let name = ModelChoice::new(model.model.as_deref()).name();
        let fingerprint = engine.fingerprint()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT,
            model: ModelDocument { name, fingerprint },
            isa: engine.kernels().isa().name(),
        })
    }
}

/// As [`Setup`], of a measurement with one number of threads and one policy.
#[derive(Serialize)]
pub(super) struct EngineSetup {
    #[serde(flatten)]
    setup: Setup,
    threads: usize,
    /// Policy of keys and values.
    kv: String,
}

impl EngineSetup {
    /// As [`Setup::new`].
    pub(super) fn new(model: &ModelArgs, engine: &Engine) -> Result<Self> {
        let setup = Setup::new(model, engine)?;
        Ok(Self { setup, threads: engine.threads(), kv: engine.kv_policy().to_string() })
    }
}
