//! A server: bound, configured, run to its end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use parking_lot::Mutex;
use ruvllm::crates::sona::background::Background;
use ruvllm::{EngineOptions, TuningOptions};
use ruvllm_witness::PrivateKey;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;
#[cfg(feature = "grpc")]
use tonic_health::server::HealthReporter;

use crate::app::{App, RequestLimits};
use crate::config::{Config, Grpc, Tuning};
use crate::error::Error;
use crate::gate::Gate;
#[cfg(feature = "grpc")]
use crate::grpc;
use crate::learning::background;
use crate::listen::{self, Address, Certificate, Listener, Peak, Services, ShutdownHandle};
use crate::models::{ModelEntry, ModelSet};
use crate::reload::{Reload, ReloadHandle};
use crate::router::{layered, router};
use crate::routing::{self, Routers, with_arms};
use crate::telemetry::Metrics;
use crate::witness::Witness;

/// Time between two looks at failures of prefix folders and decisions of tuners.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Time between two looks at the number of connections.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);

/// Threads of the server itself; models compute in those of their engines.
const THREADS: usize = 2;

/// The models with settings that follow the load, if the configuration says so.
fn tuned(mut models: Vec<ModelEntry>, tuning: &Tuning) -> Vec<ModelEntry> {
    for model in models.iter_mut().filter(|_| tuning.enabled) {
        let EngineOptions { scheduling, prefill_chunk, tuning: own, .. } = &mut model.options;
        let options = TuningOptions::fitting(scheduling, *prefill_chunk).with_drafts(tuning.drafts);
        own.get_or_insert(options);
    }
    models
}

/// The models with exchange of prefixes, if the configuration says so.
fn transferring(mut models: Vec<ModelEntry>, grpc: &Grpc) -> Vec<ModelEntry> {
    models.iter_mut().filter(|_| grpc.transfers).for_each(|model| model.options.prefix_transfers = true);
    models
}

/// A server that is bound to its address.
pub struct Server {
    runtime: Runtime,
    listener: Listener,
    services: Services,
    #[cfg(feature = "grpc")]
    health: Option<HealthReporter>,
    app: Option<Arc<App>>,
    witness: Option<Arc<Witness>>,
    /// Consolidates lessons until it is dropped.
    background: Option<Background>,
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
        routing::check(&config, &models)?;
        let models = transferring(tuned(models, &config.tuning), &config.grpc);
        let models = with_arms(models, &config);
        let models = ModelSet::new(models, config.memory_limit.map(|limit| limit.0))
            .with_sessions(config.folders.sessions.clone())
            .with_learning(config.learning.clone());
        let mut app = App::new(models, RequestLimits::new(&config));
        if let Some(folder) = &config.folders.adapters {
            app.set_adapter_folder(folder);
        }
        app.set_routers(Routers::new(&config));
        let witness = Witness::of_config(&config.witness)?.map(Arc::new);
        if let Some(witness) = &witness {
            app.set_witness(witness);
        }
        if config.metrics.tenants {
            app.metrics.label_tenants();
        }
        let app = Arc::new(app);
        let interval = config.folders.sessions_interval_s.duration();
        let learning = config.learning.clone();
        #[cfg(feature = "grpc")]
        let health = HealthReporter::new();
        let services = |gate: Arc<Gate>| Services {
            http: router(Arc::clone(&app), Arc::clone(&gate)),
            #[cfg(feature = "grpc")]
            grpc: Some(grpc::router(&app, gate, &health)),
            #[cfg(not(feature = "grpc"))]
            grpc: None,
        };
        let server = Self::with_services(config, Some(Arc::clone(&app)), services)?;
        app.metrics.watch_connections(server.listener.open_connections());
        let loaded = server.runtime.block_on(app.models.load_kept());
        loaded.map_err(|(name, source)| Error::Model { name, source: source.into() })?;
        app.set_ready(true);
        #[cfg(feature = "grpc")]
        server.runtime.block_on(grpc::set_serving(&health));
        let background = background::start(&app.models, &learning);
        let background = background.map_err(|error| Error::System(io::Error::other(error)))?;
        let models = Arc::clone(&app.models);
        server.runtime.spawn(async move { models.save_sessions(interval).await });
        let routers = Arc::clone(&app.routers);
        server.runtime.spawn(async move { routers.save_changed(interval).await });
        let models = Arc::clone(&app.models);
        server.runtime.spawn(async move { models.log_engines(LOG_INTERVAL).await });
        Ok(Self {
            witness,
            background,
            #[cfg(feature = "grpc")]
            health: Some(health),
            ..server
        })
    }

    /// Binds a server of other routes, behind the same listener, keys and limits, without gRPC.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn with_routes(mut config: Config, routes: Router) -> Result<Self, Error> {
        config.grpc.port = None;
        let metrics = Metrics::new(&Arc::new(ModelSet::new(Vec::new(), None)));
        Self::with_services(config, None, |gate| Services {
            http: layered(routes, gate, Arc::new(metrics)),
            grpc: None,
        })
    }

    fn with_services(
        config: Config,
        app: Option<Arc<App>>,
        services: impl FnOnce(Arc<Gate>) -> Services,
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
        Ok(Self {
            runtime,
            listener,
            services: services(gate),
            #[cfg(feature = "grpc")]
            health: None,
            app,
            witness: None,
            background: None,
            shutdown: ShutdownHandle::new(),
            reload,
        })
    }

    /// Checks a configuration for these models, and the files that it names, without binding the
    /// address.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn check(config: &Config, models: &[ModelEntry]) -> Result<Vec<String>, Error> {
        config.check()?;
        routing::check(config, models)?;
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

    /// Address of gRPC with the port that was chosen; `None` if it is not served.
    pub fn grpc_address(&self) -> Option<&Address> {
        self.listener.grpc_address()
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

    /// Calls `trim` after many connections have closed: the C library may keep their memory, which
    /// lies between memory in use, and `trim` gives it back to the system (ADR-0074).
    #[must_use]
    pub fn with_heap_trim(self, trim: fn()) -> Self {
        let open = self.listener.open_connections();
        self.runtime.spawn(async move {
            let mut peak = Peak::default();
            loop {
                sleep(TRIM_INTERVAL).await;
                if peak.has_fallen(open()) {
                    let _ = tokio::task::spawn_blocking(trim).await;
                }
            }
        });
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
        let Self { runtime, listener, services, app, witness, background, shutdown, .. } = self;
        #[cfg(feature = "grpc")]
        let health = self.health;
        runtime.block_on(async {
            if let Some(app) = app.clone() {
                let shutdown = shutdown.clone();
                tokio::spawn(async move {
                    shutdown.draining().await;
                    app.set_ready(false);
                    // Viewers would hold their connections until the time to drain is over.
                    app.live.close();
                    #[cfg(feature = "grpc")]
                    if let Some(health) = health {
                        grpc::end_watches(health).await;
                    }
                });
            }
            listener.run(services, shutdown).await;
        });
        // Its threads record the last calls, and the other one holds the models.
        drop(runtime);
        drop(background);
        if let Some(app) = app {
            app.models.clear();
            app.routers.save();
        }
        Ok(witness.map_or(Ok(()), |witness| witness.writer().close())?)
    }
}
