//! Signals of the process.

use crate::error::Error;
use crate::listen::ShutdownHandle;
use crate::reload::ReloadHandle;

/// Handles signals in tasks of the current runtime.
///
/// # Errors
/// [`Error::System`].
#[cfg(unix)]
pub(crate) fn handle(shutdown: ShutdownHandle, reload: ReloadHandle) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};

    for (name, kind) in [("SIGTERM", SignalKind::terminate()), ("SIGINT", SignalKind::interrupt())] {
        let mut signals = signal(kind).map_err(Error::System)?;
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                tracing::info!(signal = name, "shutdown requested; a second signal ends all requests");
                shutdown.request();
            }
        });
    }
    let mut hangups = signal(SignalKind::hangup()).map_err(Error::System)?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let reload = reload.clone();
            // Reads files. Faults are in the log.
            let _ = tokio::task::spawn_blocking(move || reload.reload()).await;
        }
    });
    Ok(())
}

/// As on Unix, for Ctrl-C alone.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub(crate) fn handle(shutdown: ShutdownHandle, _: ReloadHandle) -> Result<(), Error> {
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            shutdown.request();
        }
    });
    Ok(())
}
