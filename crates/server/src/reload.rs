//! Replacement of configuration, keys and certificate while a server runs.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::config::Config;
use crate::error::Error;
use crate::gate::Gate;
use crate::listen::{Certificate, ConnectionLimits};

/// Reads the configuration of a running server again.
#[derive(Debug, Clone)]
pub struct ReloadHandle(Arc<Reload>);

/// Parts of a server that are replaced while it runs.
#[derive(Debug)]
pub(crate) struct Reload {
    pub(crate) config: Mutex<Config>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) limits: Arc<RwLock<Arc<ConnectionLimits>>>,
}

impl ReloadHandle {
    pub(crate) fn new(parts: Reload) -> Self {
        Self(Arc::new(parts))
    }

    /// Reads the configuration, the keys file and the certificate again. What cannot be read stays
    /// as it was; the others are replaced.
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
        for fault in &faults {
            tracing::error!(error = %fault, "reload: the former state is kept");
        }
        match faults.into_iter().next() {
            Some(fault) => Err(fault),
            None => {
                tracing::info!("reloaded configuration, keys and certificate");
                Ok(())
            }
        }
    }
}
