//! State of each tenant's router, in memory and in a file.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use ruvllm::crates::sona::Error as SonaError;
use ruvllm::crates::sona::routing::{
    ArmFigures, Prompt, Reason, RouterSettings, SavedTenantRouter, TenantRouter,
};

use super::{ArmReward, ModelRouter, RouterFigures, Routers};
use crate::api_error::with_sources;
use crate::generation::{Observer, Routed, Ticket};

/// States by the name of their tenant.
pub(super) type Tenants = HashMap<Arc<str>, TenantState>;

/// State of a tenant's router.
pub(super) struct TenantState {
    pub(super) router: TenantRouter,
    /// True if its file is older.
    is_changed: bool,
}

impl ModelRouter {
    /// Decides a request of a tenant by the embedding of its prompt. `embedder` is the digest of
    /// the model that computed it.
    ///
    /// # Errors
    /// [`SonaError::NoArm`]; errors of the tenant's file.
    pub(super) fn decide(
        &self,
        tenant: &Arc<str>,
        request: &str,
        embedder: &str,
        prompt: &Prompt<'_>,
        permitted: impl Fn(usize) -> bool,
    ) -> Result<(usize, Reason), SonaError> {
        let mut tenants = self.tenants.lock();
        let dim = prompt.embedding.len();
        let state = match self.known(&mut tenants, tenant)? {
            Some(state) if state.router.embedder() == embedder && state.router.embedding_dim() == dim => {
                state
            }
            Some(_) => {
                // Directions of another embedding model mean nothing.
                tenants.remove(tenant);
                self.set_aside(tenant, "another embedding model")?;
                self.begin(&mut tenants, tenant, embedder, dim)?
            }
            None => self.begin(&mut tenants, tenant, embedder, dim)?,
        };
        state.is_changed = true;
        let decision = state.router.decide(request, prompt, permitted)?;
        Ok((decision.arm, decision.reason))
    }

    /// File of what a tenant has taught; `None` if nothing learns.
    fn file(&self, tenant: &str) -> Option<PathBuf> {
        Some(self.folder.as_deref()?.join(format!("{tenant}.router")))
    }

    /// The router of a tenant, in memory or from its file; `None` if it has taught nothing. A file
    /// of other settings or arms, or one that is damaged, is set aside.
    ///
    /// # Errors
    /// [`SonaError::File`].
    pub(super) fn known<'t>(
        &self,
        tenants: &'t mut Tenants,
        tenant: &str,
    ) -> Result<Option<&'t mut TenantState>, SonaError> {
        if !tenants.contains_key(tenant)
            && let Some(path) = self.file(tenant)
        {
            let read = SavedTenantRouter::read(&path);
            let loaded = read.and_then(|saved| {
                let load = |saved: SavedTenantRouter| {
                    let settings = self.settings_for(saved.embedding_dim());
                    TenantRouter::load(tenant, settings, self.bandit_arms(), saved)
                };
                saved.map(load).transpose()
            });
            match loaded {
                Ok(Some(router)) => {
                    tenants.insert(tenant.into(), TenantState { router, is_changed: false });
                }
                Ok(None) => {}
                Err(error @ SonaError::File { .. }) => return Err(error),
                Err(error) => self.set_aside(tenant, &with_sources(&error))?,
            }
        }
        Ok(tenants.get_mut(tenant))
    }

    fn settings_for(&self, embedding_dim: usize) -> RouterSettings {
        RouterSettings { embedding_dim, ..self.settings.clone() }
    }

    /// Begins the router of a tenant.
    fn begin<'t>(
        &self,
        tenants: &'t mut Tenants,
        tenant: &Arc<str>,
        embedder: &str,
        dim: usize,
    ) -> Result<&'t mut TenantState, SonaError> {
        if let Some(folder) = &self.folder {
            let mut builder = DirBuilder::new();
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            let made = builder.recursive(true).create(folder);
            made.map_err(|error| SonaError::File { path: folder.clone(), error })?;
        }
        let router = TenantRouter::new(&**tenant, embedder, self.settings_for(dim), self.bandit_arms())?;
        let state = TenantState { router, is_changed: false };
        Ok(tenants.entry(Arc::clone(tenant)).insert_entry(state).into_mut())
    }

    /// Renames the file of a tenant, whose router is begun anew.
    fn set_aside(&self, tenant: &str, reason: &str) -> Result<(), SonaError> {
        let Some(path) = self.file(tenant) else { return Ok(()) };
        let kept = path.with_extension("before");
        match fs::rename(&path, &kept) {
            Ok(()) => {
                let kept = kept.display();
                tracing::warn!(router = &*self.name, tenant, reason, %kept, "a router learns anew");
                Ok(())
            }
            // It was not saved yet.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(SonaError::File { path, error }),
        }
    }

    /// Learns from the outcome of a request, -1 to 1; each counts once. `None` for a request
    /// without a decision that waits for one.
    ///
    /// # Errors
    /// [`SonaError::Input`] for an outcome out of range.
    pub(crate) fn learn(
        &self,
        tenant: &str,
        request: &str,
        outcome: f64,
    ) -> Result<Option<ArmReward>, SonaError> {
        let mut tenants = self.tenants.lock();
        let Some(state) = self.known(&mut tenants, tenant)? else { return Ok(None) };
        let rewarded = state.router.learn(request, outcome)?;
        state.is_changed |= rewarded.is_some();
        Ok(rewarded.map(|rewarded| ArmReward {
            router: Arc::clone(&self.name),
            arm: Arc::clone(&self.arms[rewarded.arm].name),
            reward: rewarded.reward,
        }))
    }

    /// The router as a tenant sees it.
    ///
    /// # Errors
    /// [`SonaError::File`].
    pub(crate) fn figures(&self, tenant: &str) -> Result<RouterFigures, SonaError> {
        let mut tenants = self.tenants.lock();
        let router = self.known(&mut tenants, tenant)?.map(|state| &state.router);
        let figures =
            |index: usize| router.map_or_else(ArmFigures::default, |router| router.figures()[index]);
        Ok(RouterFigures {
            arms: self.arms.iter().enumerate().map(|(index, arm)| (arm.clone(), figures(index))).collect(),
            default: Arc::clone(&self.default_arm().name),
            policies: router.map_or(0, TenantRouter::policies),
        })
    }

    /// Logs that a tenant's file cannot be used.
    pub(super) fn fault(&self, tenant: &str, error: &SonaError) {
        let error = with_sources(error);
        tracing::error!(router = &*self.name, tenant, error, "the file of a router cannot be used");
    }

    pub(super) fn forget(&self, tenant: &str) -> Result<(), SonaError> {
        let Some(path) = self.file(tenant) else { return Ok(()) };
        let _files = self.files.lock();
        self.tenants.lock().remove(tenant);
        for path in ["router", "before", "part"].map(|extension| path.with_extension(extension)) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(SonaError::File { path, error });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the routers of tenants that have changed. A fault is logged; the next call tries
    /// again.
    pub(super) fn save(&self) {
        let _files = self.files.lock();
        let is_changed = |(_, state): &(&Arc<str>, &mut TenantState)| state.is_changed;
        let mut tenants = self.tenants.lock();
        let changed = tenants.iter_mut().filter(is_changed).map(|(tenant, state)| {
            state.is_changed = false;
            (Arc::clone(tenant), state.router.save())
        });
        let changed: Vec<_> = changed.collect();
        // Requests do not wait for the disk.
        drop(tenants);
        for (tenant, saved) in changed {
            let Some(path) = self.file(&tenant) else { continue };
            if let Err(error) = saved.write(&path) {
                self.fault(&tenant, &error);
                let mut tenants = self.tenants.lock();
                tenants.get_mut(&tenant).into_iter().for_each(|state| state.is_changed = true);
            }
        }
    }
}

impl Drop for ModelRouter {
    fn drop(&mut self) {
        self.save();
    }
}

/// Ends of calls: the time of an answer is part of its arm's reward.
impl Observer for Routers {
    fn ended(&self, ticket: &Ticket) {
        let Some(Routed { router, learns: true, .. }) = &ticket.routed else { return };
        let Some(router) = self.find(router) else { return };
        let (request, observed) = (ticket.request_id.as_str(), &ticket.observed);
        if let Some(state) = router.tenants.lock().get_mut(&ticket.caller.tenant) {
            if observed.is_complete {
                state.router.finish(request, observed.started.elapsed());
            } else {
                state.router.abandon(request);
            }
            state.is_changed = true;
        }
    }
}
