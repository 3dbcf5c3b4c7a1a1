//! Pages of other origins (CORS): off unless origins are configured.

use std::time::Duration;

use axum::http::{HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// Time for which browsers keep a permission.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The layer for these origins; `None` without any. Cookies are not allowed: a key is sent by the
/// page itself.
pub(super) fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let origin = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any)
        .max_age(MAX_AGE);
    Some(layer)
}
