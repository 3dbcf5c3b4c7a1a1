//! Keys, scopes and rate limits of requests.

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use ruvllm_server::auth::{KeyFile, Moment, Scope};
use tracing_subscriber::fmt::MakeWriter as _;

use crate::support::TestServer;

/// A keys file and the settings that name it.
struct Keys {
    folder: tempfile::TempDir,
    file: KeyFile,
}

impl Keys {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), file: KeyFile::default() }
    }

    fn add(&mut self, name: &str, scopes: &[Scope], expires: Option<Duration>) -> String {
        let now = Moment::new(SystemTime::now());
        let expires = expires.map(|after| now.after(after));
        let scopes = scopes.iter().copied().collect();
        let secret = self.file.add(name, name, scopes, now, expires).unwrap();
        self.save();
        format!("authorization: Bearer {}\r\n", secret.reveal())
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("keys.toml")
    }

    fn save(&self) {
        std::fs::write(self.path(), self.file.to_text()).unwrap();
    }

    fn settings(&self, rest: &str) -> String {
        format!("[keys]\nfile = '{}'\n{rest}", self.path().display())
    }
}

#[test]
fn requests_need_a_key_with_the_scope() {
    let mut keys = Keys::new();
    let plain = keys.add("plain", &[Scope::Inference], None);
    let metrics = keys.add("metrics", &[Scope::Metrics], None);
    let admin = keys.add("admin", &[Scope::Admin], None);
    let expired = keys.add("expired", &[Scope::Inference], Some(Duration::ZERO));
    let disabled = keys.add("disabled", &[Scope::Inference], None);
    keys.file.keys[4].disabled = true;
    keys.save();
    let server = TestServer::start(&keys.settings(""));
    let status = |path: &str, key: &str| server.request("GET", path, key, "").status();
    assert_eq!(status("/health", ""), 200);
    for (key, count, metric) in [(&plain, 200, 403), (&metrics, 403, 200), (&admin, 200, 200)] {
        assert_eq!((status("/v1/count", key), status("/metrics", key)), (count, metric), "{key}");
    }
    let missing = server.request("GET", "/v1/count", "", "");
    assert_eq!((missing.status(), missing.header("www-authenticate")), (401, Some("Bearer")));
    assert!(missing.error()["message"].as_str().unwrap().contains("no API key was sent"));
    let unknown = "x-api-key: rk-unknown\r\n".to_owned();
    let mut bodies = Vec::new();
    for key in [&expired, &disabled, &unknown] {
        let refused = server.request("GET", "/v1/count", key, "");
        assert_eq!((refused.status(), refused.error()["code"].as_str()), (401, Some("invalid_api_key")));
        bodies.push(refused.error());
    }
    assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]), "{bodies:?}");
    assert_eq!(status("/v1/count", &plain.replace("authorization: Bearer", "x-api-key:")), 200);
    assert_eq!(status("/no-such-path", ""), 401);
}

#[test]
fn rotation_and_limits_need_no_restart() {
    let mut keys = Keys::new();
    let former = keys.add("one", &[Scope::Inference], None);
    let config = keys.folder.path().join("server.toml");
    std::fs::write(&config, format!("[listen]\nport = 0\n{}", keys.settings(""))).unwrap();
    let loaded = ruvllm_server::config::Config::load(Some(&config), [], Vec::new()).unwrap();
    let server = TestServer::with_config(loaded);
    let status = |key: &str| server.request("POST", "/v1/echo", key, "").status();
    assert_eq!(status(&former), 200);
    let now = Moment::new(SystemTime::now());
    let next = keys.file.rotate("one", now, Duration::ZERO).unwrap();
    let next = format!("authorization: Bearer {}\r\n", next.reveal());
    assert_eq!((status(&former), status(&next)), (200, 401));
    keys.save();
    let limited = keys.settings("[tenants.one]\nrequests_per_minute = 2");
    std::fs::write(&config, format!("[listen]\nport = 0\n{limited}")).unwrap();
    server.reload.reload().unwrap();
    assert_eq!([status(&former), status(&next), status(&next), status(&next)], [401, 200, 200, 429]);
    // Faults keep the former state.
    std::fs::write(keys.path(), "keys = 1").unwrap();
    std::fs::write(&config, "[limits]\nheaders = 1").unwrap();
    assert!(server.reload.reload().is_err());
    assert_eq!(server.request("GET", "/v1/count", &next, "").status(), 200);
    assert_eq!(status(&next), 429);
}

#[test]
fn limits_of_requests_and_origins_need_no_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.toml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write("[listen]\nport = 0");
    let config = ruvllm_server::config::Config::load(Some(&path), [], Vec::new()).unwrap();
    let server = TestServer::with_api_of(config);
    let origin = "origin: https://chat.example.org\r\n";
    let shared =
        || server.request("GET", "/health", origin, "").header("access-control-allow-origin").is_some();
    let preflight = || {
        let headers = format!("{origin}access-control-request-method: POST\r\n");
        server.request("OPTIONS", "/v1/completions", &headers, "").status()
    };
    let choices = || {
        let body = r#"{"prompt": "Once upon", "max_tokens": 1, "n": 3}"#;
        server.request("POST", "/v1/completions", "content-type: application/json\r\n", body).status()
    };
    assert_eq!((shared(), preflight() == 200, choices()), (false, false, 200));
    write("[cors]\norigins = ['https://chat.example.org']\n[limits]\nchoices = 2");
    server.reload.reload().unwrap();
    assert_eq!((shared(), preflight(), choices()), (true, 200, 400));
    write("[listen]\nport = 0");
    server.reload.reload().unwrap();
    assert_eq!((shared(), preflight() == 200, choices()), (false, false, 200));
}

#[test]
fn rate_limits_are_in_the_headers() {
    let server = TestServer::start("[tenants.default]\nrequests_per_minute = 2\ntokens_per_minute = 1000");
    let first = server.request("POST", "/v1/echo", "", "");
    assert_eq!(first.status(), 200);
    for (name, value) in [
        ("x-ratelimit-limit-requests", "2"),
        ("x-ratelimit-remaining-requests", "1"),
        ("x-ratelimit-limit-tokens", "1000"),
        ("x-ratelimit-remaining-tokens", "1000"),
        ("x-ratelimit-reset-tokens", "0s"),
    ] {
        assert_eq!(first.header(name), Some(value), "{name}");
    }
    assert_eq!(server.request("POST", "/v1/echo", "", "").status(), 200);
    let refused = server.request("POST", "/v1/echo", "", "");
    assert_eq!((refused.status(), refused.error()["code"].as_str()), (429, Some("rate_limit_exceeded")));
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), Some("0"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait));
    assert!(refused.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
    // Reads are not limited.
    assert_eq!(server.request("GET", "/v1/count", "", "").status(), 200);
}

/// True if the server has answered on a connection.
fn has_answer(connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).unwrap();
    let answered = connection.peek(&mut [0]).is_ok_and(|n| n > 0);
    connection.set_nonblocking(false).unwrap();
    answered
}

#[test]
fn a_busy_server_answers_503() {
    let server = TestServer::start("[limits]\nrequests = 1");
    let begin = || {
        let mut slow = server.connect();
        slow.write_all(b"POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n").unwrap();
        slow
    };
    let mut slow = begin();
    crate::support::eventually("no request runs", || {
        let is_busy = server.request("POST", "/v1/echo", "", "").status() == 503;
        // One that came while the other ran was refused itself.
        if !is_busy && has_answer(&slow) {
            slow = begin();
        }
        is_busy
    });
    let refused = server.request("POST", "/v1/echo", "", "");
    assert_eq!((refused.status(), refused.header("retry-after")), (503, Some("1")));
    slow.write_all(b"12345").unwrap();
    assert_eq!(crate::support::read_response(&mut slow).status(), 200);
    crate::support::eventually("the place is not free", || {
        server.request("POST", "/v1/echo", "", "").status() == 200
    });
}

#[test]
fn pages_of_other_origins_are_served_only_if_configured() {
    let preflight = "origin: https://a.example\r\naccess-control-request-method: POST\r\n";
    let allowed = |settings: &str, origin: &str| {
        let server = TestServer::start(settings);
        let headers = preflight.replace("https://a.example", origin);
        let preflight = server.request("OPTIONS", "/v1/echo", &headers, "");
        let request = server.request("POST", "/v1/echo", &format!("origin: {origin}\r\n"), "");
        let allowed = preflight.header("access-control-allow-origin").map(str::to_owned);
        assert_eq!(request.header("access-control-allow-origin").map(str::to_owned), allowed);
        allowed
    };
    let configured = "[cors]\norigins = ['https://a.example']";
    assert_eq!(allowed("", "https://a.example"), None);
    assert_eq!(allowed(configured, "https://b.example"), None);
    assert_eq!(allowed(configured, "https://a.example").as_deref(), Some("https://a.example"));
    assert_eq!(allowed("[cors]\norigins = ['*']", "https://b.example").as_deref(), Some("*"));
}

#[test]
fn no_log_line_has_a_key() {
    static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(|| LINES.make_writer())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let mut keys = Keys::new();
    let valid = keys.add("logged-key", &[Scope::Inference], None);
    let server = TestServer::start(&keys.settings(""));
    let wrong = "authorization: Bearer rk-wrong-key\r\n";
    assert_eq!(server.request("GET", "/v1/count", &valid, "").status(), 200);
    assert_eq!(server.request("GET", "/v1/count", wrong, "").status(), 401);
    std::fs::write(keys.path(), "[[keys]]\nhash = 'rk-in-the-file'").unwrap();
    assert!(server.reload.reload().is_err());
    drop(server);
    let text = String::from_utf8(LINES.lock().unwrap().clone()).unwrap();
    assert!(text.contains("reload"), "{text}");
    let secret = valid.trim().rsplit(' ').next().unwrap();
    for hidden in [secret, "rk-wrong-key", "rk-in-the-file"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
}
