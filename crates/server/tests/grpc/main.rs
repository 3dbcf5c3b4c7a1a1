//! gRPC over real sockets, with the client of `tonic`.

mod calls;
mod connections;
mod generated;
mod refusals;
mod services;
mod support;
mod transfer;
mod worker;

/// Messages and client, generated.
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic)]
mod proto {
    include!("../../src/grpc/generated/ruvllm.v1.rs");
}
