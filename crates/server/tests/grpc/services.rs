//! Health and reflection.

use prost::Message as _;
use ruvllm_server::auth::Scope;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1alpha;

use crate::support::{Keys, Messages, TestServer, with_key};

const SERVICE: &str = "ruvllm.v1.Inference";

fn check(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[test]
fn the_probe_needs_no_key_and_watchers_learn_of_the_end() {
    let mut keys = Keys::new();
    let key = keys.add("valid", Scope::Inference);
    let server = TestServer::start(&keys.settings("[limits]\ndrain_timeout_s = 600"));
    let mut client = HealthClient::new(server.channel());
    for service in ["", SERVICE] {
        let reply = server.run(client.check(check(service))).unwrap().into_inner();
        assert_eq!(reply.status(), ServingStatus::Serving);
    }
    assert_eq!(server.run(client.check(check("other"))).unwrap_err().code(), Code::NotFound);
    assert_eq!(server.run(client.watch(check(""))).unwrap_err().code(), Code::Unauthenticated);
    let mut watch = server.run(client.watch(with_key(check(SERVICE), &key))).unwrap().into_inner();
    let first = server.run(watch.message()).unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    server.shutdown.drain();
    // The stream ends, so that the server need not wait for it.
    let mut last = first;
    while let Ok(Some(next)) = server.run(watch.message()) {
        last = next;
    }
    assert_eq!(last.status(), ServingStatus::NotServing);
}

fn file_of(server: &TestServer, message: MessageRequest) -> Option<MessageResponse> {
    let mut client = ServerReflectionClient::new(server.channel());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let mut replies =
        server.run(client.server_reflection_info(Messages::new(vec![request]))).unwrap().into_inner();
    server.run(replies.message()).unwrap()?.message_response
}

#[test]
fn reflection_lists_the_services_and_their_messages() {
    let server = TestServer::start("");
    let list = file_of(&server, MessageRequest::ListServices(String::new()));
    let Some(MessageResponse::ListServicesResponse(list)) = list else { panic!("{list:?}") };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&SERVICE) && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    let file = file_of(&server, MessageRequest::FileContainingSymbol(SERVICE.to_owned()));
    let Some(MessageResponse::FileDescriptorResponse(file)) = file else { panic!("{file:?}") };
    assert!(file.file_descriptor_proto[0].windows(15).any(|name| name == b"GenerateRequest"));
    // Clients of the former version are common.
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(server.channel());
    let message = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let mut replies =
        server.run(client.server_reflection_info(Messages::new(vec![request]))).unwrap().into_inner();
    assert!(server.run(replies.message()).unwrap().unwrap().encoded_len() > SERVICE.len());
}

#[test]
fn unknown_methods_are_unimplemented() {
    let server = TestServer::start("");
    let mut grpc = tonic::client::Grpc::new(server.channel());
    let path = tonic::codegen::http::uri::PathAndQuery::from_static("/ruvllm.v1.Inference/Nothing");
    let status = server.run(async {
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
        grpc.unary(tonic::Request::new(check("")), path, codec).await.unwrap_err()
    });
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
}
