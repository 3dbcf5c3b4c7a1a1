//! HTTP client of `object_store`: `ureq`, each request on a thread that may block.

use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use http_body::Body as _;
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpRequestBody, HttpResponse, HttpService,
};
use ureq::http::header::RANGE;
use ureq::http::{HeaderMap, Request, Response};

/// Maximum bytes of an answer to a request without a range: a page of a listing, credentials.
const MOST_BYTES: u64 = 16 << 20;

/// Maximum bytes of an answer beyond the range that was asked for: an error's text.
const ERROR_BYTES: u64 = 64 << 10;

/// Factor on the patience with an answer, after which its connection is closed. The answer counts
/// as late long before; the request of a long write may take as long.
const PATIENCES: u32 = 5;

/// Connections kept open for further requests.
const IDLE_CONNECTIONS: usize = 32;

/// Makes clients that give up a request some time after `limit`.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) limit: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http =
            options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .https_only(!allows_http)
            // Signatures are for one address.
            .max_redirects(0)
            .max_idle_connections(IDLE_CONNECTIONS)
            .max_idle_connections_per_host(IDLE_CONNECTIONS)
            .timeout_connect(Some(self.limit))
            .timeout_global(Some(self.limit * PATIENCES))
            .user_agent(concat!("ruvllm/", env!("CARGO_PKG_VERSION")));
        Ok(HttpClient::new(Client(config.build().into())))
    }
}

#[derive(Debug)]
struct Client(ureq::Agent);

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = collect(body).await?;
        let agent = self.0.clone();
        let exchange = move || exchange(&agent, Request::from_parts(parts, body));
        match tokio::task::spawn_blocking(exchange).await {
            Ok(answer) => answer,
            Err(error) => Err(HttpError::new(HttpErrorKind::Interrupted, error)),
        }
    }
}

/// Bytes of a request's body.
async fn collect(body: HttpRequestBody) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::with_capacity(body.content_length());
    let mut body = pin!(body);
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

/// One request and its whole answer.
fn exchange(agent: &ureq::Agent, request: Request<Vec<u8>>) -> Result<HttpResponse, HttpError> {
    let most_bytes = most_bytes(request.headers());
    let answer = if request.body().is_empty() && !matches!(request.method().as_str(), "PUT" | "POST") {
        agent.run(request.map(drop))
    } else {
        let (parts, body) = request.into_parts();
        agent.run(Request::from_parts(parts, body.as_slice()))
    };
    let (parts, body) = answer.map_err(failure)?.into_parts();
    // The reader refuses a body of just its limit: it reads on for the end.
    let bytes = body.into_with_config().limit(most_bytes.saturating_add(1)).read_to_vec().map_err(failure)?;
    Ok(Response::from_parts(parts, bytes.into()))
}

/// Maximum bytes of the answer to a request with these headers.
fn most_bytes(headers: &HeaderMap) -> u64 {
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes="));
    let bounds = range.and_then(|range| range.split_once('-'));
    let length = bounds
        .and_then(|(first, last)| last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1));
    length.map_or(MOST_BYTES, |length| length.max(ERROR_BYTES))
}

fn failure(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(error) => match error.kind() {
            std::io::ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
            std::io::ErrorKind::TimedOut => HttpErrorKind::Timeout,
            _ => HttpErrorKind::Interrupted,
        },
        ureq::Error::BodyExceedsLimit(_) | ureq::Error::Protocol(_) => HttpErrorKind::Decode,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_as_long_as_their_range() {
        let most = |range: Option<&str>| {
            let mut headers = HeaderMap::new();
            range.map(|range| headers.insert(RANGE, range.parse().expect("a header")));
            most_bytes(&headers)
        };
        assert_eq!(most(Some("bytes=0-1048575")), 1 << 20);
        assert_eq!(most(Some("bytes=0-0")), ERROR_BYTES);
        for other in [None, Some("bytes=9-1"), Some("bytes=-5"), Some("bytes=0-18446744073709551615")] {
            assert_eq!(most(other), MOST_BYTES);
        }
    }
}
