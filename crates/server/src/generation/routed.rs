//! Choice of a router among its arms, as the account of a call knows it.

use std::sync::{Arc, OnceLock};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

/// Header of a reply with the name of the arm that answers.
const ROUTER_ARM: HeaderName = HeaderName::from_static("x-router-arm");

/// Decision of a router.
#[derive(Debug, Clone)]
pub(crate) struct Routed {
    /// Name of the router.
    pub(crate) router: Arc<str>,
    /// Name of the arm.
    pub(crate) arm: Arc<str>,
    /// True if feedback on the answer teaches the router.
    pub(crate) learns: bool,
    /// Embedding of the prompt, where the choice needed one.
    pub(crate) embedding: Option<Arc<[f32]>>,
}

impl Routed {
    /// Names of router and arm, for records.
    pub(crate) fn label(&self) -> String {
        format!("{}/{}", self.router, self.arm)
    }
}

/// Place in the extensions of a request for the name of the arm that answers it.
#[derive(Clone, Default)]
pub(crate) struct ArmRecord(Arc<OnceLock<HeaderValue>>);

impl ArmRecord {
    pub(super) fn set(&self, routed: &Routed) {
        // Names of arms are plain ASCII.
        if let Ok(name) = HeaderValue::from_str(&routed.arm) {
            let _ = self.0.set(name);
        }
    }
}

/// Layer that names the arm in the reply.
pub(crate) async fn name_arm(mut request: Request, next: Next) -> Response {
    let record = ArmRecord::default();
    request.extensions_mut().insert(record.clone());
    let mut response = next.run(request).await;
    if let Some(name) = record.0.get() {
        response.headers_mut().insert(ROUTER_ARM, name.clone());
    }
    response
}
