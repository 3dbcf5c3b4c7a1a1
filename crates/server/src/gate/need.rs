//! Scopes and limits of paths. A path that is not named here needs a key for inference.

use axum::http::Method;

use crate::auth::Scope;

/// Reflection services of gRPC.
const REFLECTION: [&str; 2] =
    ["/grpc.reflection.v1.ServerReflection", "/grpc.reflection.v1alpha.ServerReflection"];

/// Methods of gRPC that exchange prefixes.
const TRANSFERS: [&str; 3] =
    ["/ruvllm.v1.Worker/PlanImport", "/ruvllm.v1.Worker/ExportPrefix", "/ruvllm.v1.Worker/ImportPrefix"];

/// Requirements of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// No key: the files of the web page, and probes of load balancers.
    Nothing,
    /// A key with a scope.
    Scope(Scope),
    /// A key for inference, and room within the limits of its tenant.
    Admission,
}

/// Requirements of a method and path.
pub(super) fn need(method: &Method, path: &str) -> Need {
    let below =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match path {
        "/" | "/health" | "/ready" | "/openapi.json" | "/favicon.ico" if reads => Need::Nothing,
        _ if reads && below("/ui") => Need::Nothing,
        // gRPC: the probe of load balancers. A watch and reflection hold their connections.
        "/grpc.health.v1.Health/Check" => Need::Nothing,
        _ if below("/grpc.health.v1.Health") => Need::Scope(Scope::Inference),
        _ if REFLECTION.iter().any(|service| below(service)) => Need::Scope(Scope::Inference),
        // Who imports a prefix decides what the model reads in it.
        _ if TRANSFERS.contains(&path) => Need::Scope(Scope::Prefixes),
        // A watch holds its connection, and no request of the tenant is behind it.
        _ if below("/ruvllm.v1.Worker") => Need::Scope(Scope::Metrics),
        _ if below("/metrics") || below("/v1/live") => Need::Scope(Scope::Metrics),
        _ if below("/v1/adapters") && !reads => Need::Scope(Scope::Adapters),
        _ if below("/v1/feedback") || below("/v1/sona") => Need::Scope(Scope::Learning),
        _ if below("/v1/sessions") => Need::Scope(Scope::Sessions),
        _ if reads || *method == Method::DELETE => Need::Scope(Scope::Inference),
        _ => Need::Admission,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_the_page_and_probes_needs_a_key() {
        for (method, path, expected) in [
            (Method::GET, "/", Need::Nothing),
            (Method::GET, "/ui/app.js", Need::Nothing),
            (Method::HEAD, "/health", Need::Nothing),
            (Method::POST, "/health", Need::Admission),
            (Method::GET, "/uix", Need::Scope(Scope::Inference)),
            (Method::GET, "/metrics", Need::Scope(Scope::Metrics)),
            (Method::GET, "/v1/live", Need::Scope(Scope::Metrics)),
            (Method::GET, "/v1/adapters", Need::Scope(Scope::Inference)),
            (Method::POST, "/v1/adapters", Need::Scope(Scope::Adapters)),
            (Method::DELETE, "/v1/adapters/poet", Need::Scope(Scope::Adapters)),
            (Method::POST, "/v1/feedback", Need::Scope(Scope::Learning)),
            (Method::GET, "/v1/sona/adapters", Need::Scope(Scope::Learning)),
            (Method::GET, "/v1/sessions/a", Need::Scope(Scope::Sessions)),
            (Method::GET, "/v1/models", Need::Scope(Scope::Inference)),
            (Method::POST, "/v1/chat/completions", Need::Admission),
            (Method::PUT, "/unknown", Need::Admission),
            (Method::POST, "/grpc.health.v1.Health/Check", Need::Nothing),
            (Method::POST, "/grpc.health.v1.Health/Watch", Need::Scope(Scope::Inference)),
            (
                Method::POST,
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                Need::Scope(Scope::Inference),
            ),
            (Method::POST, "/ruvllm.v1.Inference/Generate", Need::Admission),
            (Method::POST, "/ruvllm.v1.Inference/Tokenize", Need::Admission),
            (Method::POST, "/ruvllm.v1.Worker/WatchModel", Need::Scope(Scope::Metrics)),
            (Method::POST, "/ruvllm.v1.Worker/PlanImport", Need::Scope(Scope::Prefixes)),
            (Method::POST, "/ruvllm.v1.Worker/ExportPrefix", Need::Scope(Scope::Prefixes)),
            (Method::POST, "/ruvllm.v1.Worker/ImportPrefix", Need::Scope(Scope::Prefixes)),
        ] {
            assert_eq!(need(&method, path), expected, "{method} {path}");
        }
    }
}
