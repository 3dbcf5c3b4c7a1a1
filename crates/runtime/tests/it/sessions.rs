//! Sessions: state by tenant and id, forks, expiry, quotas, similarity, and restarts.

use std::time::{Duration, SystemTime};

use ruvllm::{
    Engine, EngineOptions, Error, GenerateRequest, Message, PrefixCaching, Prompt, SessionError, Tenant,
};

use crate::common::{base, complete, family_path, greedy, load, tiny, tiny_options, tiny_path};

fn options() -> EngineOptions {
    tiny_options().with_prefixes(PrefixCaching::Memory)
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| 3 + i * 7 % 400).collect()
}

fn request(tokens: Vec<u32>, id: &str) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens), 8).with_ignore_eos(true).with_session(id)
}

fn tenant(engine: &Engine, path: &str) -> Tenant {
    engine.kv_store().pool().tenant(path).expect("a name")
}

fn session_error(error: Error) -> SessionError {
    match error {
        Error::Session(error) => error,
        other => panic!("expected an error of sessions, found {other:?}"),
    }
}

#[test]
fn a_session_goes_on_where_it_ended() {
    for prefixes in [PrefixCaching::Off, PrefixCaching::Memory] {
        let engine = load(tiny_path(), &tiny_options().with_prefixes(prefixes));
        let root = Tenant::root();
        let first = complete(&engine, &request(prompt(75), "chat"));
        let session = engine.sessions().get(&root, "chat").expect("it was made");
        // The last token was sampled and not computed.
        let known: Vec<u32> = prompt(75).into_iter().chain(first.tokens.clone()).take(82).collect();
        assert_eq!((&*session.tokens, session.id.as_str()), (&known[..], "chat"));
        let mut next = session.tokens.to_vec();
        next.extend([11, 12, 13]);
        let second = complete(&engine, &request(next.clone(), "chat"));
        assert_eq!(second.cached_tokens, 82);
        assert_eq!(
            second.tokens,
            complete(tiny(), &greedy(Prompt::Tokens(next), 8).with_ignore_eos(true)).tokens
        );
        assert_eq!(engine.sessions().list(&root).len(), 1);
        assert!(engine.sessions().remove(&root, "chat") && !engine.sessions().remove(&root, "chat"));
        assert!(engine.sessions().get(&root, "chat").is_none());
    }
}

#[test]
fn tenants_see_their_own_sessions_only() {
    let engine = load(tiny_path(), &options());
    let (a, b) = (tenant(&engine, "a"), tenant(&engine, "b"));
    complete(&engine, &request(prompt(40), "x").with_tenant(a.clone()));
    let sessions = engine.sessions();
    assert!(sessions.get(&a, "x").is_some() && sessions.get(&b, "x").is_none());
    assert!(sessions.list(&b).is_empty() && sessions.list(&Tenant::root()).is_empty());
    assert!(!sessions.remove(&b, "x"));
    assert!(matches!(
        session_error(sessions.fork(&b, "x", "y").expect_err("unknown")),
        SessionError::Unknown { id } if id == "x"
    ));
    assert!(sessions.similar(&b, "text", 9).expect("embeddings").is_empty());
    // Equal ids of two tenants are two sessions.
    complete(&engine, &request(prompt(50), "x").with_tenant(b.clone()));
    assert_ne!(sessions.get(&a, "x").map(|one| one.tokens), sessions.get(&b, "x").map(|one| one.tokens));
}

#[test]
fn forks_go_on_independently() {
    let engine = load(tiny_path(), &options());
    let (root, sessions) = (Tenant::root(), engine.sessions());
    complete(&engine, &request(prompt(70), "one"));
    sessions.fork(&root, "one", "two").expect("a fork");
    let [one, two] = ["one", "two"].map(|id| sessions.get(&root, id).expect("a session").tokens);
    assert_eq!(one, two);
    let next: Vec<u32> = two.iter().copied().chain([5, 6]).collect();
    assert_eq!(complete(&engine, &request(next, "two")).cached_tokens, two.len());
    assert_eq!(sessions.get(&root, "one").expect("unchanged").tokens, one);
    assert_ne!(sessions.get(&root, "two").expect("changed").tokens, two);
    let error = session_error(sessions.fork(&root, "one", "two").expect_err("it exists"));
    assert!(matches!(error, SessionError::Exists { .. }), "{error:?}");
    for id in [String::new(), "x".repeat(257)] {
        let error = sessions.fork(&root, "one", &id).expect_err("the length");
        assert!(matches!(error, Error::IdLength { of: "session", .. }), "{error:?}");
        let error = engine.generate(request(prompt(9), &id)).expect_err("the length");
        assert!(matches!(error, Error::IdLength { of: "session", .. }), "{error:?}");
    }
}

#[test]
fn sessions_expire_and_count_against_a_quota() {
    let ttl = Duration::from_secs(3600);
    let engine = load(tiny_path(), &options().with_session_ttl(ttl).with_session_quota(2));
    let (root, sessions) = (Tenant::root(), engine.sessions());
    for id in ["a", "b", "a"] {
        complete(&engine, &request(prompt(40), id));
    }
    let error = session_error(engine.generate(request(prompt(40), "c")).expect_err("the quota"));
    assert!(matches!(error, SessionError::Quota { quota: 2, .. }), "{error:?}");
    assert!(sessions.fork(&root, "a", "c").is_err());
    complete(&engine, &request(prompt(40), "c").with_tenant(tenant(&engine, "other")));
    let now = SystemTime::now();
    assert_eq!(sessions.expire(now), 0);
    assert_eq!(sessions.expire(now + ttl + Duration::from_secs(60)), 3);
    assert!(sessions.list(&root).is_empty());
    complete(&engine, &request(prompt(40), "c"));
    sessions.set_quota(&root, 3);
    complete(&engine, &request(prompt(40), "d"));
    assert_eq!(sessions.list(&root).len(), 2);

    // Without time to live a session is gone at once, and makes room for the next.
    let engine = load(tiny_path(), &options().with_session_ttl(Duration::ZERO).with_session_quota(1));
    for id in ["a", "b"] {
        complete(&engine, &request(prompt(40), id));
        assert!(engine.sessions().get(&root, id).is_none());
    }
}

#[test]
fn a_refused_request_makes_no_session() {
    let engine = load(tiny_path(), &options().with_context(64));
    assert!(engine.generate(request(prompt(65), "long")).is_err());
    assert!(engine.sessions().list(&Tenant::root()).is_empty());
}

#[test]
fn sessions_are_found_by_their_last_message() {
    let engine = base();
    let (root, sessions) = (tenant(engine, "similarity"), engine.sessions());
    let texts = [
        "A cat and a dog played in the garden.",
        "Add two numbers and divide the sum by three.",
        "The ship sailed over the sea in a storm.",
    ];
    for (index, text) in texts.iter().enumerate() {
        let prompt = Prompt::chat([Message::user(*text)]);
        let request = greedy(prompt, 1).with_session(format!("s{index}")).with_tenant(root.clone());
        complete(engine, &request);
    }
    for (index, text) in texts.iter().enumerate() {
        let found = sessions.similar(&root, text, 2).expect("embeddings");
        assert_eq!((found.len(), found[0].0.id.as_str()), (2, format!("s{index}").as_str()));
        assert!((found[0].1 - 1.0).abs() < 1e-5 && found[1].1 < found[0].1, "{found:?}");
        assert_eq!(&*found[0].0.last_message, *text);
    }
    assert!(sessions.similar(&root, texts[0], 0).expect("embeddings").is_empty());
}

#[test]
fn sessions_are_restored_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sessions");
    let team = |engine: &Engine| tenant(engine, "team");
    let saved = {
        let engine = load(tiny_path(), &options());
        complete(&engine, &request(prompt(90), "root"));
        complete(&engine, &request(prompt(70), "team").with_tenant(team(&engine)));
        for _ in 0..2 {
            engine.sessions().save(&path).expect("saved");
        }
        engine.sessions().get(&Tenant::root(), "root").expect("a session")
    };
    let engine = load(tiny_path(), &options());
    assert_eq!(engine.sessions().restore(&path).expect("restored"), 2);
    assert_eq!(engine.sessions().restore(&path).expect("they exist"), 0);
    let found = engine.sessions().get(&Tenant::root(), "root").expect("a session");
    assert_eq!((&found.tokens, &found.last_message), (&saved.tokens, &saved.last_message));
    let drift = found.last_used.duration_since(saved.last_used).unwrap_or_else(|error| error.duration());
    assert!(drift < Duration::from_millis(2));
    // 97 of 98 tokens were computed: three whole blocks of 32 are back.
    let next: Vec<u32> = found.tokens.iter().copied().chain([5, 6]).collect();
    let second = complete(&engine, &request(next.clone(), "root"));
    assert_eq!(second.cached_tokens, 96);
    let alone = complete(tiny(), &greedy(Prompt::Tokens(next), 8).with_ignore_eos(true));
    assert_eq!(second.tokens, alone.tokens);
    assert!(engine.sessions().get(&team(&engine), "team").is_some());

    // Without a prefix cache, or with another KV policy, keys and values are computed again.
    let other = options().with_kv("f16".parse::<ruvllm::KvPolicy>().expect("a policy"));
    for options in [tiny_options().with_prefixes(PrefixCaching::Off), other] {
        let engine = load(tiny_path(), &options);
        assert_eq!(engine.sessions().restore(&path).expect("restored"), 2);
        assert_eq!(complete(&engine, &request(prompt(90), "root")).cached_tokens, 0);
    }
    // Sessions whose time is over stay away.
    let engine = load(tiny_path(), &options().with_session_ttl(Duration::ZERO));
    assert_eq!(engine.sessions().restore(&path).expect("nothing left"), 0);
}

#[test]
fn other_models_and_damage_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = load(tiny_path(), &options());
    complete(&engine, &request(prompt(70), "one"));
    engine.sessions().save(folder.path()).expect("saved");

    let other = load(family_path("qwen2"), &options());
    let error = session_error(other.sessions().restore(folder.path()).expect_err("another model"));
    assert!(matches!(error, SessionError::Model { .. }), "{error:?}");

    let index = folder.path().join("sessions.json");
    let bytes = std::fs::read(&index).expect("the index");
    std::fs::write(&index, &bytes[..bytes.len() / 2]).expect("written");
    let fresh = load(tiny_path(), &options());
    let error = session_error(fresh.sessions().restore(folder.path()).expect_err("damaged"));
    assert!(matches!(error, SessionError::Damaged { .. }), "{error:?}");
    assert!(fresh.sessions().list(&Tenant::root()).is_empty());
    // Damaged keys and values are computed again.
    std::fs::write(&index, &bytes).expect("written");
    for entry in walk(&folder.path().join("prefixes")) {
        std::fs::write(entry, b"damaged").expect("written");
    }
    assert_eq!(fresh.sessions().restore(folder.path()).expect("the index is whole"), 1);
    assert_eq!(complete(&fresh, &request(prompt(70), "one")).cached_tokens, 0);

    let missing = folder.path().join("missing");
    let error = session_error(fresh.sessions().restore(&missing).expect_err("no folder"));
    assert!(matches!(error, SessionError::File { action: "read", .. }), "{error:?}");
}

/// All files below a folder.
fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
