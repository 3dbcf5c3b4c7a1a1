//! Configuration of the server: a TOML file, environment variables and flags (ADR-0064).
//!
//! Precedence is flag, environment, file, default. Every setting has a default, so that an empty
//! file is a configuration. `docs/server-config.md` lists all keys.

mod check;
mod layers;
mod routers;
mod sections;
mod values;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub(crate) use self::check::is_name;
use self::layers::Layers;
pub use self::layers::{ConfigError, Setting};
pub use self::routers::{Arm, Router, Rule};
pub(crate) use self::sections::MEMORY_SIMILARITY;
pub use self::sections::{
    Cors, Folders, FullQueue, Grpc, KeyFiles, Learning, Limits, Listen, Log, LogFormat, LogLevel, Metrics,
    Model, Tenant, Tls, Tuning, Witness,
};
pub use self::values::{Bytes, Seconds};

/// Settings of a server. The default serves the given models at `http://127.0.0.1:8080`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Bytes of all loaded models together; beyond it idle ones are unloaded.
    pub memory_limit: Option<Bytes>,
    /// Address.
    pub listen: Listen,
    /// gRPC.
    pub grpc: Grpc,
    /// Certificate and private key.
    pub tls: Tls,
    /// API keys.
    pub keys: KeyFiles,
    /// Bounds of connections and requests.
    pub limits: Limits,
    /// Limits by tenant.
    pub tenants: BTreeMap<String, Tenant>,
    /// Origins of foreign pages.
    pub cors: Cors,
    /// Witness log.
    pub witness: Witness,
    /// Learning from feedback.
    pub learning: Learning,
    /// Settings of step loops that follow the load.
    pub tuning: Tuning,
    /// Models.
    pub models: Vec<Model>,
    /// Routers.
    pub routers: Vec<Router>,
    /// Folders that requests can reach.
    pub folders: Folders,
    /// Metrics.
    pub metrics: Metrics,
    /// Log lines.
    pub log: Log,
    /// Origin of the values, for errors and for [`Config::reload`].
    #[serde(skip)]
    layers: Layers,
}

impl Config {
    /// Beginning of the environment variables that [`Config::load`] reads.
    pub const VARIABLES: &str = "RUVLLM_SERVER_";

    /// Reads and checks a configuration text.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with line and key for invalid TOML, an unknown key, or a value out
    /// of its range.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Layers::of_text(text).config()
    }

    /// Reads and checks a configuration: the file, over it the environment variables that begin
    /// with [`Self::VARIABLES`], over them `flags`.
    ///
    /// # Errors
    /// As [`Self::from_toml`]; [`ConfigError::Read`] for a file that cannot be read, and
    /// [`ConfigError::Variable`] for a variable that is no setting.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: Vec<Setting>,
    ) -> Result<Self, ConfigError> {
        Layers::read(file, environment, flags)?.config()
    }

    /// Reads the file again, with the environment and the flags of the first time.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn reload(&self) -> Result<Self, ConfigError> {
        self.layers.again()?.config()
    }

    /// Checks values whose type alone does not make them valid.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let checked = check::check(self).and_then(|()| routers::check(&self.routers));
        checked.map_err(|fault| self.layers.refused(fault))
    }

    /// Checks the names of routers and of their models against those of the models that are served,
    /// and of aliases and adapters.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub(crate) fn check_routers(&self, models: &[&str], others: &[&str]) -> Result<(), ConfigError> {
        routers::check_models(self, models, others).map_err(|fault| self.layers.refused(fault))
    }

    /// True if callers need an API key.
    pub fn needs_keys(&self) -> bool {
        self.keys.file.is_some()
    }

    /// Limits of a tenant.
    pub fn tenant(&self, name: &str) -> Tenant {
        let section = self.tenants.get(name).or_else(|| self.tenants.get(DEFAULT_TENANT));
        section.cloned().unwrap_or_default()
    }

    /// Every key with its default, in the order of the sections: `tenants.NAME.`, `models.`,
    /// `routers.` and `routers.arms.NAME.` are prefixes of settings of which there are many.
    pub fn keys() -> Vec<(String, String)> {
        layers::keys()
    }
}

/// Tenant of callers without a key, and of keys that name none.
pub const DEFAULT_TENANT: &str = "default";

#[cfg(test)]
mod tests;
