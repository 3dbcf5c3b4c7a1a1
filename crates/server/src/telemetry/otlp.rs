//! Export of request spans with OTLP over HTTP, as protobuf.
//!
//! Addresses, headers and time limits come from the environment variables of the OpenTelemetry
//! specification. Spans are sent from a thread of the SDK, so that requests do not wait.

use std::pin::Pin;
use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use thiserror::Error;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use super::logging::{BoxedLayer, stderr_layer};
use crate::config::Log;

/// Longest time of one export.
const SEND_TIME: Duration = Duration::from_secs(10);

/// Longest reply of a collector that is read.
const MOST_REPLY_BYTES: u64 = 1 << 20;

/// Reason that traces cannot be exported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The address of the collector or another setting of the environment is not valid.
    #[error("traces cannot be exported: check the variables OTEL_EXPORTER_OTLP_*")]
    Settings(#[from] ExporterBuildError),
    /// The process has a subscriber already.
    #[error("the log of this process is set up already")]
    Subscriber(#[from] TryInitError),
}

/// The export of spans. [`close`](Self::close) sends what is left.
#[derive(Debug)]
pub struct TraceExport {
    provider: SdkTracerProvider,
}

impl TraceExport {
    /// An export to a URL, or to the collector that the environment names.
    fn new(url: Option<&str>) -> Result<Self, ExporterBuildError> {
        let agent = ureq::Agent::config_builder().timeout_global(Some(SEND_TIME)).http_status_as_error(false);
        let exporter = SpanExporter::builder().with_http().with_http_client(Client(agent.build().into()));
        let exporter = match url {
            Some(url) => exporter.with_endpoint(url),
            None => exporter,
        };
        let resource = Resource::builder().with_service_name("ruvllm").build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter.build()?);
        Ok(Self { provider: provider.with_resource(resource).build() })
    }

    /// The layer that hands spans of the server to the export.
    fn layer(&self) -> BoxedLayer {
        let layer = tracing_opentelemetry::layer().with_tracer(self.provider.tracer("ruvllm"));
        let layer = layer.with_location(false).with_threads(false).with_tracked_inactivity(false);
        layer.with_filter(Targets::new().with_target("ruvllm_server", LevelFilter::INFO)).boxed()
    }

    /// Sends the spans that have ended and ends the export.
    pub fn close(self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "spans were not exported");
        }
    }
}

/// Sends the log of this process to standard error and its spans to a collector.
///
/// # Errors
/// [`TraceError`].
pub fn init(log: &Log) -> Result<TraceExport, TraceError> {
    let export = TraceExport::new(None)?;
    tracing_subscriber::registry().with(vec![stderr_layer(log), export.layer()]).try_init()?;
    Ok(export)
}

/// Makes a span part of the trace that the header `traceparent` names.
pub(super) fn set_parent(span: &Span, headers: &HeaderMap) {
    let context = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    // Fails only without an export.
    let _ = span.set_parent(context);
}

/// HTTP client of the exporter; its thread may block.
#[derive(Debug)]
struct Client(ureq::Agent);

impl Client {
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let reply = self.0.run(Request::from_parts(parts, &*body))?;
        let (parts, mut body) = reply.into_parts();
        let bytes = body.with_config().limit(MOST_REPLY_BYTES).read_to_vec()?;
        Ok(Response::from_parts(parts, bytes.into()))
    }
}

impl HttpClient for Client {
    fn send_bytes<'c, 'f>(
        &'c self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'c: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(request) })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use axum::http::HeaderValue;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;
    use crate::testing::{app, request, router_of};

    /// Reads one request and accepts it; returns its request line and its body.
    fn accept(stream: &TcpStream) -> (String, Vec<u8>) {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let (first, mut length) = (line.trim().to_owned(), 0);
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            match line.trim().to_ascii_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        (&*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        (first, body)
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                return value;
            }
        }
    }

    /// Contents of the fields with a number, in a protobuf message; only those with a length.
    fn fields(mut message: &[u8], number: u64) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while !message.is_empty() {
            let tag = varint(&mut message);
            let length = match tag & 7 {
                0 => {
                    varint(&mut message);
                    continue;
                }
                1 => 8,
                2 => varint(&mut message) as usize,
                5 => 4,
                kind => panic!("wire type {kind}"),
            };
            let (content, rest) = message.split_at(length);
            if tag == number << 3 | 2 {
                found.push(content);
            }
            message = rest;
        }
        found
    }

    /// The one field on a path of field numbers.
    fn field<'m>(message: &'m [u8], path: &[u64]) -> &'m [u8] {
        path.iter().fold(message, |message, &number| fields(message, number)[0])
    }

    #[test]
    fn the_span_of_a_request_reaches_a_collector() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let collector = std::thread::spawn(move || accept(&listener.accept().unwrap().0));
        let export = TraceExport::new(Some(&url)).unwrap();
        let subscriber = tracing_subscriber::registry().with(export.layer());
        tracing::subscriber::with_default(subscriber, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let body = json!({"prompt": "PLUGH is a secret text", "max_tokens": 2});
            let mut request = request("POST", "/v1/completions", Some(body));
            let trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
            request.headers_mut().insert("traceparent", HeaderValue::from_static(trace));
            let reply = runtime.block_on(router_of(app()).oneshot(request)).unwrap();
            assert_eq!(reply.status(), 200);
        });
        export.close();
        let (line, export) = collector.join().unwrap();
        assert_eq!(line, "POST /v1/traces HTTP/1.1");
        // ExportTraceServiceRequest.resource_spans.scope_spans.spans
        let span = field(&export, &[1, 2, 2]);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(field(span, &[1]), 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes());
        assert_eq!(field(span, &[4]), 0x0123_4567_89ab_cdef_u64.to_be_bytes());
        assert_eq!(text(field(span, &[5])), "request");
        let attributes: Vec<_> = fields(span, 9)
            .into_iter()
            .map(|attribute| (text(field(attribute, &[1])), fields(field(attribute, &[2]), 1)))
            .collect();
        let endpoint = attributes.iter().find(|(name, _)| name == "endpoint").unwrap();
        assert_eq!(endpoint.1, [b"completions"]);
        for name in ["request_id", "status", "model", "output_tokens"] {
            assert!(attributes.iter().any(|(attribute, _)| attribute == name), "{name}: {attributes:?}");
        }
        assert!(!export.windows(5).any(|window| window == b"PLUGH"));
    }
}
