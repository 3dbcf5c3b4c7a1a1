//! Built-in web page (ADR-0067): files compiled into the program, with strict headers.
//!
//! The page needs no key: its files hold nothing of the server's state. Requests of the page to the
//! API carry the key that the user gives it.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};

use crate::hex::hex;

/// Scripts, styles and requests of the same origin only; no text becomes HTML or script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; object-src 'none'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of every file. Browsers ask each time whether a file changed: a page never runs modules
/// of two versions of the program.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    body: &'static [u8],
}

/// Every file: path in URLs, content type, name in `assets`.
macro_rules! assets {
    ($($path:literal $content_type:ident $file:literal,)*) => {
        [$(Asset {
            path: $path,
            content_type: $content_type,
            body: include_bytes!(concat!("assets/", $file)),
        }),*]
    };
}

static ASSETS: [Asset; 15] = assets![
    "/" HTML "index.html",
    "/ui/icon.svg" SVG "icon.svg",
    "/ui/style.css" CSS "style.css",
    "/ui/api.js" JAVASCRIPT "api.js",
    "/ui/app.js" JAVASCRIPT "app.js",
    "/ui/dom.js" JAVASCRIPT "dom.js",
    "/ui/feedback.js" JAVASCRIPT "feedback.js",
    "/ui/live.js" JAVASCRIPT "live.js",
    "/ui/markdown.js" JAVASCRIPT "markdown.js",
    "/ui/messages.js" JAVASCRIPT "messages.js",
    "/ui/schema.js" JAVASCRIPT "schema.js",
    "/ui/session.js" JAVASCRIPT "session.js",
    "/ui/settings.js" JAVASCRIPT "settings.js",
    "/ui/store.js" JAVASCRIPT "store.js",
    "/ui/theme.js" JAVASCRIPT "theme.js",
];

/// Entity tags of [`ASSETS`]: the first 16 bytes of the SHA-256 of the content, in hexadecimal.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |asset: &Asset| {
        let digest = Sha256::digest(asset.body);
        let digits = hex(&digest[..16]);
        HeaderValue::from_str(&format!("\"{digits}\"")).expect("hexadecimal digits fit into a header")
    };
    ASSETS.iter().map(tag).collect()
});

/// Routes of the page: `/` and its files below `/ui`.
pub(crate) fn routes<S>() -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    ASSETS.iter().zip(TAGS.iter()).fold(Router::new(), |router, (asset, tag)| {
        router.route(
            asset.path,
            get(move |request: Request| async move { respond(asset, tag, request.headers()) }),
        )
    })
}

/// The file, or 304 if the client has it.
fn respond(asset: &'static Asset, tag: &'static HeaderValue, request: &HeaderMap) -> Response {
    let mut response = if has_current(request, tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, asset.content_type)], asset.body).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    headers.extend(HEADERS);
    response
}

/// True if `If-None-Match` names the tag (weak comparison, RFC 9110 section 13.1.2).
fn has_current(request: &HeaderMap, tag: &HeaderValue) -> bool {
    let tag = tag.as_bytes();
    let values = request.get_all(header::IF_NONE_MATCH).iter();
    let mut candidates =
        values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    candidates.any(|candidate| candidate == b"*" || candidate.strip_prefix(b"W/").unwrap_or(candidate) == tag)
}

#[cfg(test)]
mod tests;
