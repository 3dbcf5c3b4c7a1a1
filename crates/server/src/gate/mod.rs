//! Layer in front of all handlers: callers, scopes, limits (ADR-0064).
//!
//! A request that passes has the extensions [`Caller`], [`BodyLimits`] and, if it counts among the
//! tenant's requests, `Arc<`[`Permit`](limits::Permit)`>`.

mod cors;
mod host;
mod need;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::{Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use parking_lot::RwLock;
use tower::{Layer as _, ServiceExt as _};
use tower_http::cors::CorsLayer;

use self::need::{Need, need};
use crate::api_error::ApiError;
use crate::auth::{Caller, Forbidden, Keys, KeysError, Scope, Unauthorized, permission_warning};
use crate::body::BodyLimits;
use crate::config::Config;
use crate::limits::{self, Limited, Tenants};

/// Keys and limits of a server, all of which may be replaced while it runs.
#[derive(Debug)]
pub(crate) struct Gate {
    keys: Keys,
    tenants: Tenants,
    body: RwLock<BodyLimits>,
    /// Layer that lets pages of the configured origins call the server; `None` without any.
    cors: RwLock<Option<CorsLayer>>,
    hosts: Vec<String>,
}

impl Gate {
    /// The gate of a configuration.
    ///
    /// # Errors
    /// A keys file that cannot be read.
    pub(crate) fn new(config: &Config) -> Result<Self, KeysError> {
        let keys = match &config.keys.file {
            Some(path) => Keys::read(path)?,
            None => Keys::none(),
        };
        let (tenants, body) = (Tenants::new(config), RwLock::new(BodyLimits::new(config)));
        Ok(Self {
            keys,
            tenants,
            body,
            cors: RwLock::new(cors::layer(&config.cors.origins)),
            hosts: config.listen.hosts.clone(),
        })
    }

    /// Replaces limits and origins, and reads the keys file again.
    ///
    /// # Errors
    /// A keys file that cannot be read; its keys are then those from before, all else is new.
    pub(crate) fn reload(&self, config: &Config) -> Result<(), KeysError> {
        self.tenants.reload(config, Instant::now());
        *self.body.write() = BodyLimits::new(config);
        *self.cors.write() = cors::layer(&config.cors.origins);
        self.keys.reload()
    }

    /// Warning for a keys file that other users can read.
    pub(crate) fn warning(config: &Config) -> Option<String> {
        config.keys.file.as_deref().and_then(permission_warning)
    }

    /// The caller of a request; `None` where none is needed.
    fn caller(&self, request: &Request, need: Need) -> Result<Option<Caller>, ApiError> {
        let scope = match need {
            Need::Nothing => return Ok(None),
            Need::Scope(scope) => scope,
            Need::Admission => Scope::Inference,
        };
        let caller = Caller::of(request.headers(), &self.keys, &self.tenants, SystemTime::now())?;
        caller.require(scope)?;
        Ok(Some(caller))
    }
}

/// Layer that lets pages of the configured origins read responses.
pub(crate) async fn share(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let cors = gate.cors.read().clone();
    match cors {
        Some(cors) => match cors.layer(next).oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        None => next.run(request).await,
    }
}

/// Layer that identifies callers and admits requests.
pub(crate) async fn admit(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let limits = *gate.body.read();
    request.extensions_mut().insert(limits);
    if !gate.keys.are_needed() && !host::is_expected(&request, &gate.hosts) {
        let message = "a server without API keys answers to addresses and local names alone; list this name in \
                       listen.hosts, or use keys";
        return ApiError::forbidden(message).with_code("unexpected_host").into_response();
    }
    let need = need(request.method(), request.uri().path());
    let caller = match gate.caller(&request, need) {
        Ok(caller) => caller,
        Err(error) => return refusal(error),
    };
    let Some(caller) = caller else { return next.run(request).await };
    let tenant = Arc::clone(&caller.limits);
    request.extensions_mut().insert(caller);
    if need != Need::Admission {
        return next.run(request).await;
    }
    let mut response = match tenant.admit(Instant::now()) {
        Ok(permit) => {
            // Handlers of streams keep it longer than the request.
            let permit = Arc::new(permit);
            request.extensions_mut().insert(Arc::clone(&permit));
            let response = next.run(request).await;
            drop(permit);
            response
        }
        Err(limited) => ApiError::from(limited).into_response(),
    };
    limits::insert(&tenant.state(Instant::now()), response.headers_mut());
    response
}

/// Response to a request without a valid key.
fn refusal(error: ApiError) -> Response {
    let is_unknown = error.status == StatusCode::UNAUTHORIZED;
    let mut response = error.into_response();
    if is_unknown {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

impl From<Limited> for ApiError {
    fn from(limited: Limited) -> Self {
        let retry_after = Some(limited.retry_after());
        match limited {
            Limited::Overloaded { .. } => Self::overloaded(limited.to_string(), retry_after),
            _ => Self::rate_limited(limited.to_string(), retry_after),
        }
    }
}

impl From<Unauthorized> for ApiError {
    fn from(error: Unauthorized) -> Self {
        Self::unauthorized(error.to_string())
    }
}

impl From<Forbidden> for ApiError {
    fn from(error: Forbidden) -> Self {
        Self::forbidden(error.to_string())
    }
}

impl BodyLimits {
    fn new(config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            bytes: limits.body_bytes.len(),
            time: limits.body_timeout_s.duration(),
            depth: limits.json_depth,
        }
    }
}
