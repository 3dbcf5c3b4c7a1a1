//! Prompts that one server computes and another goes on with.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use ruvllm::{EngineOptions, FolderKey};
use ruvllm_server::Config;
use ruvllm_server::auth::Scope;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::proto::generate_request::Prompt;
use crate::proto::import_prefix_request::Request as Part;
use crate::proto::prefix_part::Part as Sent;
use crate::proto::worker_client::WorkerClient;
use crate::proto::{
    ExportPrefixRequest, GenerateRequest, ImportPlan, ImportPrefixRequest, ImportedPrefix, PlanImportRequest,
    PrefixOffer, PrefixPart, PrefixTarget, TokenIds,
};
use crate::support::{Keys, Messages, Output, TestServer, with_key};

/// Tokens of a block.
const BLOCK: usize = 32;

fn config(settings: &str) -> Config {
    let mut config = Config::from_toml(&format!("[grpc]\nport = 0\ntransfers = true\n{settings}")).unwrap();
    config.listen.port = 0;
    config
}

fn server(policy: &str) -> TestServer {
    let policy: ruvllm::KvPolicy = policy.parse().unwrap();
    TestServer::with_options(config(""), EngineOptions::default().with_kv(policy))
}

/// Token ids, another text for each seed.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 300 + (i * 53 + seed * 31 * (i + 1)) % 900).collect()
}

fn request(tokens: &[u32], max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: Some(Prompt::Tokens(TokenIds { ids: tokens.to_vec() })),
        max_tokens: Some(max_tokens),
        temperature: Some(0.8),
        seed: Some(7),
        logprobs: Some(3),
        ignore_eos: Some(true),
        ..GenerateRequest::default()
    }
}

fn generate(server: &TestServer, tokens: &[u32]) -> Output {
    server.output(request(tokens, 8)).unwrap().remove(0)
}

/// Tokens, and bits of all log-probabilities.
fn bits(output: &Output) -> (Vec<u32>, Vec<u64>) {
    let all = output.logprobs.iter().flat_map(|one| one.token.iter().chain(&one.top));
    (output.tokens.clone(), all.map(|one| one.logprob.to_bits()).collect())
}

fn plan(server: &TestServer, tokens: &[u32]) -> ImportPlan {
    let request = PlanImportRequest { model: None, tokens: tokens.to_vec() };
    let mut client = WorkerClient::new(server.channel());
    server.run(client.plan_import(request)).unwrap().into_inner()
}

/// All parts of an export.
fn export(server: &TestServer, tokens: &[u32], skip_blocks: u32) -> Vec<Sent> {
    let request = ExportPrefixRequest { model: None, tokens: tokens.to_vec(), skip_blocks };
    let mut client = WorkerClient::new(server.channel());
    server.run(async {
        let mut parts = client.export_prefix(request).await.unwrap().into_inner();
        let mut all = Vec::new();
        while let Some(PrefixPart { part }) = parts.message().await.unwrap() {
            all.push(part.unwrap());
        }
        all
    })
}

/// Messages of an import.
fn messages(tokens: &[u32], parts: Vec<Sent>) -> Vec<Part> {
    let target = Part::Target(PrefixTarget { model: None, tokens: tokens.to_vec() });
    let parts = parts.into_iter().map(|part| Part::Part(PrefixPart { part: Some(part) }));
    std::iter::once(target).chain(parts).collect()
}

fn import(server: &TestServer, messages: Vec<Part>) -> Result<ImportedPrefix, Status> {
    let messages: Vec<_> =
        messages.into_iter().map(|part| ImportPrefixRequest { request: Some(part) }).collect();
    let mut client = WorkerClient::new(server.channel());
    server.run(client.import_prefix(Messages::new(messages))).map(tonic::Response::into_inner)
}

#[test]
fn output_after_a_transfer_is_that_of_one_server() {
    for policy in ["f16", "q8"] {
        let (prefill, decode, alone) = (server(policy), server(policy), server(policy));
        let prompt = tokens(1, 200);
        prefill.output(request(&prompt, 1)).unwrap();
        let advice = plan(&decode, &prompt);
        assert_eq!((advice.known_blocks, advice.missing_blocks, advice.is_worthwhile), (0, 6, true));
        let parts = export(&prefill, &prompt, 0);
        let imported = import(&decode, messages(&prompt, parts)).unwrap();
        assert_eq!((imported.blocks, imported.bytes, imported.cached_tokens), (6, advice.bytes, 192));
        let output = generate(&decode, &prompt);
        assert_eq!(output.finish().usage.as_ref().unwrap().cached_tokens, 192);
        assert_eq!(bits(&output), bits(&generate(&alone, &prompt)), "{policy}");
        // The next prompt needs only what is new.
        let longer = [&prompt[..], &output.tokens, &tokens(2, 60)].concat();
        prefill.output(request(&longer, 1)).unwrap();
        let advice = plan(&decode, &longer);
        let parts = export(&prefill, &longer, advice.known_blocks);
        let more = import(&decode, messages(&longer, parts)).unwrap();
        assert_eq!((advice.known_blocks, more.blocks, more.cached_tokens), (6, 2, 256));
        assert_eq!(bits(&generate(&decode, &longer)), bits(&generate(&alone, &longer)), "{policy}");
        let value = |server: &TestServer, name: &str, label: &str| {
            server.metric(&format!("ruvllm_prefix_{name}_total{{model=\"base\",{label}}}"))
        };
        let sent = |server, name, direction| value(server, name, &format!("direction=\"{direction}\""));
        for name in ["transfer_blocks", "transfer_bytes"] {
            assert_eq!(sent(&prefill, name, "exported"), sent(&decode, name, "imported"), "{name}");
        }
        assert_eq!(sent(&decode, "transfer_blocks", "imported"), 8.0);
        assert_eq!(value(&decode, "imports", "outcome=\"imported\""), 2.0);
    }
}

/// Bytes of all entries of an export.
fn data(parts: &[Sent]) -> Vec<u8> {
    let bytes = |part: &Sent| match part {
        Sent::Data(bytes) => bytes.clone(),
        Sent::Offer(_) => Vec::new(),
    };
    parts.iter().flat_map(bytes).collect()
}

fn with_offer(parts: &[Sent], change: impl FnOnce(&mut PrefixOffer)) -> Vec<Sent> {
    let mut parts = parts.to_vec();
    let Some(Sent::Offer(offer)) = parts.first_mut() else { panic!("an export without an offer") };
    change(offer);
    parts
}

fn with_data(parts: &[Sent], change: impl FnOnce(&mut Vec<u8>)) -> Vec<Sent> {
    let mut bytes = data(parts);
    change(&mut bytes);
    [parts[0].clone()]
        .into_iter()
        .chain(bytes.chunks(100_000).map(|part| Sent::Data(part.to_vec())))
        .collect()
}

#[test]
fn what_cannot_be_used_is_refused_by_name_and_computed() {
    let (prefill, decode, alone) = (server("f16"), server("f16"), server("f16"));
    let other = tokens(99, 70);
    prefill.output(request(&other, 1)).unwrap();
    let foreign = data(&export(&prefill, &other, 0));
    type Change<'a> = &'a dyn Fn(&[u32], Vec<Sent>) -> Vec<Part>;
    let offer = |change: fn(&mut PrefixOffer)| {
        move |tokens: &[u32], parts: Vec<Sent>| messages(tokens, with_offer(&parts, change))
    };
    let bytes = |change: fn(&mut Vec<u8>)| {
        move |tokens: &[u32], parts: Vec<Sent>| messages(tokens, with_data(&parts, change))
    };
    // Name of the condition, and text of the message.
    let cases: [(Change<'_>, &str, &str); 19] = [
        (&|tokens, parts| messages(tokens, parts).split_off(1), "", "first message"),
        (&|tokens, parts| [&messages(tokens, parts)[..1]; 2].concat(), "", "a part of an export"),
        (&|tokens, parts| messages(tokens, parts[1..].to_vec()), "PREFIX_PARTS", "expected one offer"),
        (&|tokens, parts| messages(tokens, [&parts[..1]; 2].concat()), "PREFIX_PARTS", "expected one offer"),
        (&|tokens, _| messages(tokens, Vec::new()), "PREFIX_PARTS", "expected one offer"),
        (&offer(|offer| offer.fingerprint.truncate(31)), "", "has 31 bytes"),
        (&offer(|offer| offer.fingerprint[5] ^= 1), "OTHER_MODEL", "another model"),
        (&offer(|offer| offer.kv_format = "q8".into()), "OTHER_KV_FORMAT", "\"q8\", here \"f16\""),
        (&offer(|offer| offer.block_tokens = 64), "OTHER_BLOCK_TOKENS", "blocks of 64 tokens"),
        (&offer(|offer| offer.is_tagged = true), "OTHER_PREFIX_KEY", "prefix key"),
        (&offer(|offer| offer.blocks = u32::MAX), "PREFIX_PARTS", "after block 2"),
        (&offer(|offer| offer.first_block = 1), "PREFIX_GAP", "begin at block 1"),
        (&bytes(|all| all[20] ^= 1), "PREFIX_ENTRY", "refused block 0: it is of another model"),
        (&bytes(|all| *all.last_mut().unwrap() ^= 1), "PREFIX_ENTRY", "block 1: the checksum"),
        (
            &bytes(|all| {
                let half = all.len() / 2;
                all.rotate_left(half);
            }),
            "PREFIX_ENTRY",
            "does not follow",
        ),
        (
            &|tokens, parts| messages(tokens, with_data(&parts, |all| all.clone_from(&foreign))),
            "PREFIX_ENTRY",
            "other tokens",
        ),
        (&bytes(|all| all.truncate(all.len() - 1)), "PREFIX_INCOMPLETE", "1 of 2 blocks"),
        (&bytes(|all| all.push(0)), "PREFIX_PARTS", "after block 2"),
        (&bytes(|all| all.fill(0)), "PREFIX_ENTRY", "not a stored prefix"),
    ];
    for (seed, (change, reason, text)) in (10..).zip(cases) {
        let prompt = tokens(seed, 70);
        prefill.output(request(&prompt, 1)).unwrap();
        let messages = change(&prompt, export(&prefill, &prompt, 0));
        let status = import(&decode, messages).expect_err(text);
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        let found = status.get_details_error_info().unwrap().reason;
        assert!(reason.is_empty() || found == reason, "{text}: {found}");
        assert!(status.message().contains(text), "{text}: {status}");
        assert_eq!(bits(&generate(&decode, &prompt)), bits(&generate(&alone, &prompt)), "{text}");
    }
    let unknown = Part::Target(PrefixTarget { model: Some("other".to_owned()), tokens: vec![1] });
    assert_eq!(import(&decode, vec![unknown]).unwrap_err().code(), Code::NotFound);
    let status = import(&decode, messages(&[u32::MAX], Vec::new())).unwrap_err();
    assert!(status.message().starts_with("tokens: "), "{status}");
}

#[test]
fn servers_of_other_policies_and_keys_refuse_each_other() {
    let with_key = |byte| {
        let key = FolderKey::new(&[byte; 32]).unwrap();
        TestServer::with_options(config(""), EngineOptions::default().with_prefix_key(key))
    };
    let prompt = tokens(1, 70);
    let (plain, keyed) = (server("f16"), with_key(1));
    for source in [&plain, &keyed] {
        source.output(request(&prompt, 1)).unwrap();
    }
    let expected = bits(&generate(&plain, &prompt));
    for (source, target, reason) in [
        (&plain, server("q8"), "OTHER_KV_FORMAT"),
        (&plain, with_key(1), "OTHER_PREFIX_KEY"),
        (&keyed, server("f16"), "OTHER_PREFIX_KEY"),
        (&keyed, with_key(2), "PREFIX_ENTRY"),
    ] {
        let status = import(&target, messages(&prompt, export(source, &prompt, 0))).unwrap_err();
        assert_eq!(status.get_details_error_info().unwrap().reason, reason, "{status}");
        let output = generate(&target, &prompt);
        assert_eq!(output.finish().usage.as_ref().unwrap().cached_tokens, 0);
        // Another policy has an output of its own.
        assert!(bits(&output) == expected || reason == "OTHER_KV_FORMAT", "{reason}");
    }
    let target = with_key(1);
    import(&target, messages(&prompt, export(&keyed, &prompt, 0))).unwrap();
    assert_eq!(bits(&generate(&target, &prompt)), expected);
}

#[test]
fn transfers_need_a_setting_and_a_key_with_the_scope() {
    let off = TestServer::start("");
    let status = import(&off, messages(&[1, 2], Vec::new())).unwrap_err();
    assert_eq!(status.get_details_error_info().unwrap().reason, "TRANSFERS_OFF");
    assert!(status.message().contains("--grpc-transfers"), "{status}");
    let mut keys = Keys::new();
    let (metrics, other) = (keys.add("metrics", Scope::Metrics), keys.add("other", Scope::Inference));
    let (prefixes, admin) = (keys.add("prefixes", Scope::Prefixes), keys.add("admin", Scope::Admin));
    let server = TestServer::of(config(&keys.settings("")));
    let mut client = WorkerClient::new(server.channel());
    let request = || PlanImportRequest { model: None, tokens: tokens(1, 70) };
    assert_eq!(server.run(client.plan_import(request())).unwrap_err().code(), Code::Unauthenticated);
    for key in [&metrics, &other] {
        let denied = server.run(client.plan_import(with_key(request(), key))).unwrap_err();
        assert_eq!(denied.code(), Code::PermissionDenied);
        assert!(denied.message().contains("prefixes"), "{denied}");
    }
    for key in [&prefixes, &admin] {
        let plan = server.run(client.plan_import(with_key(request(), key))).unwrap().into_inner();
        assert_eq!(plan.missing_blocks, 2);
    }
    // Prefixes are those of the caller's tenant.
    server.output(with_key(self::request(&tokens(1, 70), 1), &admin)).unwrap();
    for (key, known) in [(&prefixes, 0), (&admin, 2)] {
        let plan = server.run(client.plan_import(with_key(request(), key))).unwrap().into_inner();
        assert_eq!(plan.known_blocks, known);
    }
}

/// Messages of a sender that stops after them without an end.
struct Stalled(Messages<ImportPrefixRequest>);

impl Stream for Stalled {
    type Item = ImportPrefixRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ImportPrefixRequest>> {
        match Pin::new(&mut self.0).poll_next(context) {
            Poll::Ready(None) => Poll::Pending,
            other => other,
        }
    }
}

#[test]
fn a_sender_that_stops_is_not_waited_for() {
    let prefill = server("f16");
    let decode = TestServer::of(config("[limits]\nbody_timeout_s = 0.3"));
    let prompt = tokens(1, 2 * BLOCK + 1);
    prefill.output(request(&prompt, 1)).unwrap();
    let mut parts = export(&prefill, &prompt, 0);
    parts.pop();
    let parts = messages(&prompt, parts).into_iter().map(|part| ImportPrefixRequest { request: Some(part) });
    let mut client = WorkerClient::new(decode.channel());
    let stalled = Stalled(Messages::new(parts.collect()));
    let status = decode.run(client.import_prefix(stalled)).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(decode.metric("ruvllm_prefix_imports_total{model=\"base\",outcome=\"incomplete\"}"), 1.0);
}
