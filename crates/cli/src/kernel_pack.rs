//! `--kernel-pack`: an installed pack of kernels in the engine.
//!
//! Without the feature `kernel-packs` the flag is an error.

use std::sync::Arc;

use ruvllm::RowKernels;

use crate::error::Result;

/// Kernels of an installed pack, one for the process. The version that is current in the store is
/// loaded now, and each later one within seconds of its installation.
///
/// # Errors
/// A pack that is not installed, not trusted or not healthy.
#[cfg(feature = "kernel-packs")]
pub(crate) fn load(name: &str, share: f64) -> Result<Arc<dyn RowKernels>> {
    use std::sync::OnceLock;

    static LOADED: OnceLock<Arc<dyn RowKernels>> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(Arc::clone(loaded));
    }
    let loaded = installed::load(name, share)?;
    Ok(Arc::clone(LOADED.get_or_init(|| loaded)))
}

/// The error of a program without the sandbox.
///
/// # Errors
/// Always.
#[cfg(not(feature = "kernel-packs"))]
pub(crate) fn load(_: &str, _: f64) -> Result<Arc<dyn RowKernels>> {
    Err(crate::error::Error::NoSandbox)
}

#[cfg(feature = "kernel-packs")]
mod installed {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use ruvllm::RowKernels;
    use ruvllm::kernel_packs::{PackKernels, PackKernelsOptions};
    use ruvllm_kernel_packs::manager::{Manager, ManagerOptions, Origin};
    use ruvllm_kernel_packs::sandbox::{Sandbox, SandboxOptions};
    use ruvllm_kernel_packs::{Error as PackError, Host};

    use crate::commands::pack;
    use crate::error::{Result, one_line};
    use crate::{output, pack_text, user_folders};

    /// Time between two looks at the store.
    const EVERY: Duration = Duration::from_secs(2);

    /// Loads the current version of a pack and watches the store for others.
    pub(super) fn load(name: &str, share: f64) -> Result<Arc<dyn RowKernels>> {
        let store = pack::store()?;
        let cache = user_folders::cache().map(|folder| folder.join("kernels"));
        if let Some(folder) = cache.as_ref().and_then(|folder| folder.parent()) {
            // A folder that cannot be made is an error of the cache, which names it.
            let _ = user_folders::make_private(folder);
        }
        let threads = thread::available_parallelism().map_or(8, Into::into);
        let options = SandboxOptions { cache, idle_instances: threads.max(8), ..SandboxOptions::default() };
        let sandbox = Arc::new(Sandbox::new(options)?);
        let host = Host { engine: Some(Sandbox::engine()), ..Host::new(pack::version()) };
        let of_store = store.clone();
        let origin = Origin::new(store, host, move || pack::trusted_keys(&of_store));
        let manager = Manager::with_origin(sandbox, name, ManagerOptions::default(), origin);
        manager.refresh()?;
        let kernels = PackKernels::new(manager.clone(), PackKernelsOptions { share });
        output::detail(&details(&kernels));
        watch(manager);
        Ok(Arc::new(kernels))
    }

    /// Version and replaced operations, for `--verbose`.
    fn details(kernels: &PackKernels) -> String {
        let version = version(kernels.manager()).unwrap_or_default();
        let replaced = kernels.replaced();
        let operations: Vec<String> =
            replaced.iter().map(|(category, least)| format!("{category} from {least} values on")).collect();
        format!("kernel pack {} {version}: {}", kernels.manager().name(), operations.join(", "))
    }

    /// Active version.
    fn version(manager: &Manager) -> Option<String> {
        manager.reader().get().map(|pack| pack.release().version.to_string())
    }

    /// Swaps in versions that are installed later, and reports quarantines; a thread that ends with
    /// the process.
    fn watch(manager: Manager) {
        let (mut last, mut seen) = (String::new(), manager.status());
        let watch = move || {
            loop {
                thread::sleep(EVERY);
                manager.tick();
                let status = manager.status();
                for line in status.news_since(&seen) {
                    output::warn(&format!("kernel pack {}: {line}", manager.name()));
                }
                seen = status;
                let report = match manager.refresh() {
                    Ok(true) => {
                        let version = version(&manager).unwrap_or_default();
                        format!("kernel pack {} {version} is in use", manager.name())
                    }
                    // No other version, or the store is being changed: the next look sees it.
                    Ok(false) | Err(PackError::Busy { .. }) => continue,
                    Err(error) => {
                        let fault = pack_text::in_commands(&one_line(&error));
                        match version(&manager) {
                            None => format!("kernel pack {}: native code computes: {fault}", manager.name()),
                            Some(version) => {
                                format!("kernel pack {} {version} stays in use: {fault}", manager.name())
                            }
                        }
                    }
                };
                if report != last {
                    output::warn(&report);
                    last = report;
                }
            }
        };
        // Without the thread the loaded version stays.
        if let Err(error) = thread::Builder::new().name("kernel-pack".to_owned()).spawn(watch) {
            output::warn(&format!("later versions of the kernel pack are not noticed: {error}"));
        }
    }
}
