//! gRPC beside the HTTP API (ADR-0070): the same gate, accounts and generations, with messages of
//! protocol buffers. Its socket is that of `[grpc]`.

mod deadline;
mod events;
mod request;
mod service;
mod status;
mod transfer;
mod worker;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_reflection::server::Builder as Reflection;
use tower::{Service, ServiceExt as _};

use self::deadline::Arriving;
use self::proto::inference_server::{InferenceServer, SERVICE_NAME};
use self::proto::worker_server::{SERVICE_NAME as WORKER_NAME, WorkerServer};
use crate::app::App;
use crate::body::BodyLimits;
use crate::gate::{self, Gate};
use crate::request_id;
use crate::telemetry::access;

/// Messages and services of `proto/ruvllm/v1/inference.proto`; `cargo xtask grpc --update` writes
/// them.
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic)]
mod proto {
    include!("generated/ruvllm.v1.rs");
}

/// The same as descriptors, for reflection.
const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptor.bin");

/// All services behind a gate. `health` has the states that the health service tells.
pub(crate) fn router(app: &Arc<App>, gate: Arc<Gate>, health: &HealthReporter) -> Router {
    let service = Arc::new(service::Inference::new(Arc::clone(app)));
    let inference = move |request: Request| {
        let service = Arc::clone(&service);
        async move {
            let limits = *request.extensions().get::<BodyLimits>().unwrap_or(&BodyLimits::DEFAULT);
            let server = InferenceServer::from_arc(service).max_decoding_message_size(limits.bytes);
            call(server, request.map(|body| Body::new(Arriving::new(body, limits.time)))).await
        }
    };
    let worker = Arc::new(worker::Worker::new(Arc::clone(app)));
    let worker = move |request: Request| call(WorkerServer::from_arc(Arc::clone(&worker)), request);
    let health = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let health = move |request: Request| call(health.clone(), request);
    let mut routes = Router::new();
    for method in ["Generate", "Embed", "Tokenize", "Detokenize"] {
        routes = routes.route(&format!("/{SERVICE_NAME}/{method}"), post(inference.clone()));
    }
    for method in ["DescribeModel", "WatchModel", "PlanImport", "ExportPrefix", "ImportPrefix"] {
        routes = routes.route(&format!("/{WORKER_NAME}/{method}"), post(worker.clone()));
    }
    routes
        .route("/grpc.health.v1.Health/{method}", post(health))
        .merge(reflection())
        .fallback(|| async { status::response(tonic::Status::unimplemented("there is no such method")) })
        .layer(Extension(Arc::new(app.observers())))
        .layer(from_fn_with_state(gate, gate::admit))
        .layer(from_fn(status::render))
        .layer(from_fn_with_state(Arc::clone(&app.metrics), access::observe))
        .layer(from_fn(request_id::set))
}

/// Passes a request to a service of `tonic`.
async fn call<S, B>(service: S, request: Request) -> Response
where
    S: Service<Request, Response = axum::http::Response<B>, Error = std::convert::Infallible>,
    B: http_body::Body<Data = axum::body::Bytes, Error = tonic::Status> + Send + 'static,
{
    match service.oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}

/// Both versions of the reflection service: clients of the former one are common.
fn reflection() -> Router {
    let builder = || {
        Reflection::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut routes = Router::new();
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(current), Ok(former)) => {
            let current = move |request: Request| call(current.clone(), request);
            let former = move |request: Request| call(former.clone(), request);
            routes = routes
                .route("/grpc.reflection.v1.ServerReflection/{method}", post(current))
                .route("/grpc.reflection.v1alpha.ServerReflection/{method}", post(former));
        }
        (Err(error), _) | (_, Err(error)) => tracing::error!(error = %error, "gRPC has no reflection"),
    }
    routes
}

/// Tells clients of the health service that requests are served.
pub(crate) async fn set_serving(health: &HealthReporter) {
    health.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
}

/// Tells watchers of the health service that the server shuts down, and ends their streams: they
/// would hold their connections until the time to drain is over.
pub(crate) async fn end_watches(mut health: HealthReporter) {
    for service in ["", SERVICE_NAME] {
        health.set_service_status(service, ServingStatus::NotServing).await;
        health.clear_service_status(service).await;
    }
}
