//! Replacement of configuration, keys, certificate and adapters while a server runs.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::app::{App, RequestLimits};
use crate::config::Config;
use crate::error::Error;
use crate::gate::Gate;
use crate::listen::{Certificate, ConnectionLimits};
use crate::models::ModelEntry;

/// Reads the configuration of a running server again.
#[derive(Debug, Clone)]
pub struct ReloadHandle(Arc<Reload>);

/// Function from a configuration to its models.
pub(crate) type ReadModels = Box<dyn Fn(&Config) -> Result<Vec<ModelEntry>, Error> + Send + Sync>;

/// Parts of a server that are replaced while it runs.
pub(crate) struct Reload {
    pub(crate) config: Mutex<Config>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) limits: Arc<RwLock<Arc<ConnectionLimits>>>,
    /// `None` for a server of other routes.
    pub(crate) app: Option<Arc<App>>,
    pub(crate) models: Mutex<Option<ReadModels>>,
}

impl ReloadHandle {
    pub(crate) fn new(parts: Reload) -> Self {
        Self(Arc::new(parts))
    }

    /// Sets the function whose models have the adapters after a reload.
    pub(crate) fn set_models(&self, read: ReadModels) {
        *self.0.models.lock() = Some(read);
    }

    /// Reads the configuration, the keys file, the certificate and the adapters again. What cannot
    /// be read stays as it was; the others are replaced. Requests that run are not affected. Call
    /// it from a thread that may wait: not from a task.
    ///
    /// # Errors
    /// The first fault. All of them are in the log.
    pub fn reload(&self) -> Result<(), Error> {
        let this = &self.0;
        let mut faults: Vec<Error> = Vec::new();
        let config = &mut *this.config.lock();
        match config.reload() {
            Ok(new) => {
                // The paths of the start hold: other ones need a restart.
                let paths: (Option<PathBuf>, _) = (config.keys.file.clone(), config.tls.clone());
                *config = new;
                (config.keys.file, config.tls) = paths;
            }
            Err(error) => faults.push(error.into()),
        }
        *this.limits.write() = Arc::new(ConnectionLimits::new(&config.limits));
        faults.extend(this.gate.reload(config).err().map(Error::from));
        faults.extend(this.certificate.as_ref().and_then(|certificate| certificate.reload().err()));
        if let Some(app) = &this.app {
            app.set_limits(RequestLimits::new(config));
            match this.models.lock().as_ref().map(|read| read(config)) {
                Some(Ok(entries)) => {
                    faults.extend(app.models.set_adapters(&entries).into_iter().map(Error::models));
                }
                Some(Err(error)) => faults.push(error),
                None => {}
            }
        }
        for fault in &faults {
            tracing::error!(error = %fault, "reload: the former state is kept");
        }
        match faults.into_iter().next() {
            Some(fault) => Err(fault),
            None => {
                tracing::info!("reloaded configuration, keys, certificate and adapters");
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reload")
            .field("config", &self.config)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
