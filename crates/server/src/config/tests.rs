use super::*;

#[track_caller]
fn refused(text: &str, pieces: &[&str]) {
    let error = Config::from_toml(text).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    for piece in pieces {
        assert!(error.contains(piece), "{error} lacks {piece}");
    }
}

#[test]
fn an_empty_file_is_the_default() {
    let config = Config::from_toml("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!((config.listen.host.as_str(), config.listen.port), ("127.0.0.1", 8080));
    assert_eq!(config.limits.body_bytes, Bytes(32 << 20));
    assert!(!config.listen.allow_public && !config.needs_keys() && config.cors.origins.is_empty());
    assert!(!config.witness.text);
}

#[test]
fn the_defaults_are_a_valid_file() {
    let text = toml::to_string(&Config::default()).unwrap();
    assert_eq!(Config::from_toml(&text).unwrap().limits, Limits::default());
}

#[test]
fn every_section_is_read() {
    let text = r#"
        memory_limit = "8GiB"
        [listen]
        port = 0
        [tenants.team-a]
        requests_per_minute = 60
        kv_share = 0.5
        [tenants.default]
        concurrent_requests = 2
        [[models]]
        name = "small"
        aliases = ["gpt-4o"]
        kv = "q8"
        [models.adapters]
        poet = "poet.ruvlora"
        [log]
        format = "json"
        level = "debug"
        [witness]
        full_queue = "drop"
    "#;
    let config = Config::from_toml(text).unwrap();
    assert_eq!(config.memory_limit, Some(Bytes(8 << 30)));
    assert_eq!(config.tenant("team-a").requests_per_minute, Some(60));
    assert_eq!(config.tenant("other").concurrent_requests, Some(2));
    assert_eq!(config.models[0].adapters["poet"], "poet.ruvlora");
    assert_eq!((config.log.format, config.log.level), (LogFormat::Json, LogLevel::Debug));
    assert_eq!(config.witness.full_queue, FullQueue::Drop);
}

#[test]
fn faults_name_line_key_and_remedy() {
    refused("[listen]\nprot = 1", &["line 2", "`prot`", "`port`"]);
    refused("[listen]\nport = 70000", &["line 2", "70000"]);
    refused("[listen]\n\nport = \"x\"", &["line 3", "string"]);
    refused("listen = ", &["line 1"]);
    refused("[limits]\nheaders = 9\njson_depth = 10000", &["line 3", "limits.json_depth", "4 to 127"]);
    refused("[limits]\nidle_timeout_s = 0", &["line 2", "limits.idle_timeout_s", "above 0"]);
    refused("[limits]\nbody_bytes = \"1MB\"", &["line 2", "512MiB"]);
    refused("[tls]\ncertificate = 'c'", &["line 2", "tls.certificate", "set tls.key"]);
    refused("[tenants.a]\nkv_share = 2", &["line 2", "tenants.a.kv_share", "at most 1"]);
    refused("[learning]\nshare = 0", &["line 2", "learning.share", "above 0"]);
    let background = ["line 2", "learning.background_share", "between 0 and 1"];
    refused("[learning]\nbackground_share = 1.5", &background);
    refused("[learning]\nbackground_share = nan", &background);
    let lessons = ["line 2", "learning.consolidation_lessons", "at least 1"];
    refused("[learning]\nconsolidation_lessons = 0", &lessons);
    refused("[tenants.a]\nmemory = true", &["line 2", "tenants.a.memory", "learning.folder"]);
    refused("[tenants.a]\nmemory_similarity = 7", &["line 2", "memory_similarity", "0 to 1"]);
    refused("[tenants.'a b']", &["letters"]);
    refused("[cors]\norigins = ['https://a/b']", &["line 2", "cors.origins", "https://a/b"]);
    refused("[[models]]\nname='a'\n[[models]]\naliases=['a']", &["line 3", "models[1].name", "two models"]);
    let router = "[[routers]]\nname = 'auto'\ndefault = 'a'\n";
    let arm = "[routers.arms.a]\nmodel = 'base'\n";
    for (head, tail, pieces) in [
        ("[[routers]]\nname = 'a b'\n", arm, &["line 2", "routers[0].name", "letters"][..]),
        ("[[routers]]\nname = '..'\n", arm, &["line 2", "routers[0].name", "the first no `.`"]),
        (router, "", &["line 1", "routers[0].arms", "1 to 256", "[routers.arms.NAME]"]),
        (router, "[routers.arms.b]\nmodel = 'base'", &["line 3", "routers[0].default", "arms are b"]),
        (router, "[routers.arms.a]", &["line 4", "arms.a.model", "name a model"]),
        (router, "[routers.arms.a]\nmodel = 'x'\nkv = 'q17'", &["line 6", "arms.a.kv", "q17"]),
        (router, &format!("rules = [{{arm = 'b'}}]\n{arm}"), &["line 4", "rules[0].arm", "arms are a"]),
        (router, &format!("rules = [{{arm = 'a', tool = true}}]\n{arm}"), &["line 4", "tools"]),
        (router, &format!("latency_weight = nan\n{arm}"), &["line 4", "latency_weight", "0 to 1"]),
        (router, &format!("exploration_share = 2\n{arm}"), &["line 4", "exploration_share", "0 to 1"]),
        (router, &format!("target_latency_s = 0\n{arm}"), &["line 4", "target_latency_s", "above 0"]),
        (router, &format!("warm_up = 1000001\n{arm}"), &["line 4", "warm_up", "1000000"]),
        (router, &format!("{arm}{router}{arm}"), &["line 7", "routers[1].name", "two routers"]),
    ] {
        refused(&format!("{head}{tail}"), pieces);
    }
    refused("[witness]\nfull_queue = 'maybe'", &["line 2", "wait"]);
}

#[test]
fn flags_go_before_variables_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.toml");
    std::fs::write(&path, "[listen]\nport = 1\nhost = 'localhost'\n[limits]\nheaders = 20").unwrap();
    let variables = || {
        [
            ("RUVLLM_SERVER_LISTEN_PORT".to_owned(), "2".to_owned()),
            ("RUVLLM_SERVER_LIMITS_BODY_BYTES".to_owned(), "1MiB".to_owned()),
            ("RUVLLM_SERVER_CORS_ORIGINS".to_owned(), "http://a, http://b".to_owned()),
            ("RUVLLM_SERVER_LISTEN_ALLOW_PUBLIC".to_owned(), "true".to_owned()),
            ("OTHER".to_owned(), "3".to_owned()),
        ]
    };
    let flags = vec![Setting::new("listen.port", "--port", "4")];
    let config = Config::load(Some(&path), variables(), flags).unwrap();
    assert_eq!((config.listen.port, config.listen.host.as_str()), (4, "localhost"));
    assert_eq!((config.limits.body_bytes, config.limits.headers), (Bytes(1 << 20), 20));
    assert_eq!(config.cors.origins, ["http://a", "http://b"]);
    assert!(config.listen.allow_public);
    let config = Config::load(Some(&path), variables(), Vec::new()).unwrap();
    assert_eq!(config.listen.port, 2);
    std::fs::write(&path, "[limits]\nheaders = 30").unwrap();
    let config = config.reload().unwrap();
    assert_eq!((config.limits.headers, config.listen.port), (30, 2));
}

#[test]
fn faults_of_variables_and_flags_name_them() {
    let one = |name: &str, value: &str| {
        let error = Config::load(None, [(name.to_owned(), value.to_owned())], Vec::new()).unwrap_err();
        error.to_string()
    };
    assert!(one("RUVLLM_SERVER_LISTEN_PORT", "x").starts_with("RUVLLM_SERVER_LISTEN_PORT: "));
    assert!(one("RUVLLM_SERVER_LIMITS_HEADERS", "0").starts_with("RUVLLM_SERVER_LIMITS_HEADERS: "));
    assert!(one("RUVLLM_SERVER_LISTEN_PROT", "1").contains("RUVLLM_SERVER_LISTEN_PORT"));
    let flag = vec![Setting::new("listen.port", "--port", "99999")];
    assert!(Config::load(None, [], flag).unwrap_err().to_string().starts_with("--port: "));
    let missing = Config::load(Some(Path::new("/nonexistent.toml")), [], Vec::new());
    assert!(missing.unwrap_err().to_string().contains("/nonexistent.toml"));
}

#[test]
fn the_example_is_a_configuration() {
    let config = Config::from_toml(include_str!("../../../../deploy/server.toml")).unwrap();
    assert!(config.needs_keys() && config.tenant("team-a").requests_per_minute.is_some());
}

#[test]
fn the_page_lists_every_key_with_its_default() {
    let page = include_str!("../../../../docs/server-config.md");
    for (key, default) in Config::keys() {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/server-config.md lacks {key}"));
        let written = if default.is_empty() { "| - |".to_owned() } else { format!("| `{default}` |") };
        assert!(row.contains(&written), "{row} lacks the default {written}");
    }
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let key = row.split('`').nth(1).unwrap_or_default();
        assert!(Config::keys().iter().any(|(known, _)| known == key), "{key} is no key");
    }
}

#[test]
fn a_port_for_grpc_needs_the_feature() {
    let read = Config::from_toml("[grpc]\nport = 50051");
    match cfg!(feature = "grpc") {
        true => assert_eq!(read.unwrap().grpc.port, Some(50051)),
        false => {
            let error = read.unwrap_err().to_string();
            assert!(error.contains("grpc.port") && error.contains("--features grpc"), "{error}");
        }
    }
}

#[test]
fn transfers_of_prefixes_need_grpc() {
    let error = Config::from_toml("[grpc]\ntransfers = true").unwrap_err().to_string();
    assert!(error.contains("grpc.transfers") && error.contains("--grpc-port"), "{error}");
    let both = Config::from_toml("[grpc]\nport = 50051\ntransfers = true");
    assert_eq!(both.is_ok_and(|config| config.grpc.transfers), cfg!(feature = "grpc"));
}
