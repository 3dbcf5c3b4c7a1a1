//! A server: bound, configured, run to its end.

use std::sync::Arc;

use axum::Router;
use parking_lot::Mutex;
use ruvllm_witness::PrivateKey;
use tokio::runtime::{Builder, Runtime};

use crate::app::{App, RequestLimits};
use crate::config::Config;
use crate::error::Error;
use crate::gate::Gate;
use crate::listen::{self, Address, Certificate, Listener, ShutdownHandle};
use crate::models::{ModelEntry, ModelSet};
use crate::reload::{Reload, ReloadHandle};
use crate::router::{layered, router};
use crate::telemetry::Metrics;
use crate::witness::Witness;

/// Threads of the server itself; models compute in those of their engines.
const THREADS: usize = 2;

/// A server that is bound to its address.
pub struct Server {
    runtime: Runtime,
    listener: Listener,
    routes: Router,
    app: Option<Arc<App>>,
    witness: Option<Arc<Witness>>,
    shutdown: ShutdownHandle,
    reload: ReloadHandle,
}

impl Server {
    /// Binds the address of a configuration, then loads the models that are kept. Clients can
    /// connect from then on and are served by [`Self::run`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn bind(config: Config, models: Vec<ModelEntry>) -> Result<Self, Error> {
        let models = ModelSet::new(models, config.memory_limit.map(|limit| limit.0))
            .with_sessions(config.folders.sessions.clone());
        let mut app = App::new(models, RequestLimits::new(&config));
        if let Some(folder) = &config.folders.adapters {
            app.set_adapter_folder(folder);
        }
        let witness = Witness::of_config(&config.witness)?.map(Arc::new);
        if let Some(witness) = &witness {
            app.set_witness(witness);
        }
        if config.metrics.tenants {
            app.metrics.label_tenants();
        }
        let app = Arc::new(app);
        let interval = config.folders.sessions_interval_s.duration();
        let routes = |gate| router(Arc::clone(&app), gate);
        let server = Self::with_router(config, Some(Arc::clone(&app)), routes)?;
        app.metrics.watch_connections(server.listener.open_connections());
        let loaded = server.runtime.block_on(app.models.load_kept());
        loaded.map_err(|(name, source)| Error::Model { name, source: source.into() })?;
        app.set_ready(true);
        let models = Arc::clone(&app.models);
        server.runtime.spawn(async move { models.save_sessions(interval).await });
        Ok(Self { witness, ..server })
    }

    /// Binds a server of other routes, behind the same listener, keys and limits.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn with_routes(config: Config, routes: Router) -> Result<Self, Error> {
        let metrics = Metrics::new(&Arc::new(ModelSet::new(Vec::new(), None)));
        Self::with_router(config, None, |gate| layered(routes, gate, Arc::new(metrics)))
    }

    fn with_router(
        config: Config,
        app: Option<Arc<App>>,
        router: impl FnOnce(Arc<Gate>) -> Router,
    ) -> Result<Self, Error> {
        config.check()?;
        let gate = Arc::new(Gate::new(&config)?);
        let certificate = Certificate::read(&config)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("ruvllm-server")
            .enable_all()
            .build()
            .map_err(Error::System)?;
        let listener = {
            let _context = runtime.enter();
            Listener::bind(&config, certificate.as_ref())?
        };
        let reload = ReloadHandle::new(Reload {
            config: Mutex::new(config),
            gate: Arc::clone(&gate),
            certificate,
            limits: listener.limits(),
            app: app.clone(),
            models: Mutex::new(None),
        });
        let routes = router(gate);
        let shutdown = ShutdownHandle::new();
        Ok(Self { runtime, listener, routes, app, witness: None, shutdown, reload })
    }

    /// Checks a configuration and the files that it names, without binding the address.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn check(config: &Config) -> Result<Vec<String>, Error> {
        config.check()?;
        listen::check(config)?;
        Gate::new(config)?;
        Certificate::read(config)?;
        config.witness.key.as_deref().map(PrivateKey::load).transpose()?;
        Ok(Gate::warning(config).into_iter().collect())
    }

    /// Address with the port that was chosen.
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Ends the server from another thread.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.shutdown.clone()
    }

    /// Reloads take the adapters of the models that `read` gives for the new configuration. Other
    /// changes to models need a restart.
    #[must_use]
    pub fn with_model_reader(
        self,
        read: impl Fn(&Config) -> Result<Vec<ModelEntry>, Error> + Send + Sync + 'static,
    ) -> Self {
        self.reload.set_models(Box::new(read));
        self
    }

    /// Reads configuration, keys, certificate and adapters again, from another thread.
    pub fn reload_handle(&self) -> ReloadHandle {
        self.reload.clone()
    }

    /// Handles the signals of the process from now on: SIGTERM and SIGINT end the server, the
    /// second one at once; SIGHUP reloads.
    ///
    /// # Errors
    /// [`Error::System`] for signal handlers that the system refuses.
    pub fn with_signals(self) -> Result<Self, Error> {
        {
            let _context = self.runtime.enter();
            crate::signals::handle(self.shutdown.clone(), self.reload.clone())?;
        }
        Ok(self)
    }

    /// Serves until shutdown is requested and requests have ended.
    ///
    /// # Errors
    /// [`Error::Witness`] for entries that could not be written.
    pub fn run(self) -> Result<(), Error> {
        let Self { runtime, listener, routes, app, witness, shutdown, reload: _ } = self;
        runtime.block_on(async {
            if let Some(app) = app.clone() {
                let shutdown = shutdown.clone();
                tokio::spawn(async move {
                    shutdown.draining().await;
                    app.set_ready(false);
                    // Viewers would hold their connections until the time to drain is over.
                    app.live.close();
                });
            }
            listener.run(routes, shutdown).await;
        });
        // Its threads record the last calls.
        drop(runtime);
        if let Some(app) = app {
            app.models.clear();
        }
        Ok(witness.map_or(Ok(()), |witness| witness.writer().close())?)
    }
}
