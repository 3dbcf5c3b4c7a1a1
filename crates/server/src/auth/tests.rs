use std::time::{Duration, UNIX_EPOCH};

use axum::http::HeaderValue;

use super::*;

const NOW: Duration = Duration::from_secs(1_800_000_000);

fn now() -> SystemTime {
    UNIX_EPOCH + NOW
}

fn bearer(secret: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {secret}")).unwrap());
    headers
}

/// A file in a folder, and the keys in it.
struct Fixture {
    folder: tempfile::TempDir,
    file: KeyFile,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), file: KeyFile::default() }
    }

    fn add(&mut self, name: &str, expires: Option<Duration>) -> String {
        let scopes = [Scope::Inference].into_iter().collect();
        let expires = expires.map(|after| Moment::new(UNIX_EPOCH).after(after));
        let secret = self.file.add(name, "team", scopes, Moment::new(now()), expires).unwrap();
        secret.reveal().to_owned()
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("keys.toml")
    }

    fn keys(&self) -> Keys {
        std::fs::write(self.path(), self.file.to_text()).unwrap();
        Keys::read(&self.path()).unwrap()
    }
}

#[test]
fn keys_identify_by_both_headers() {
    let mut fixture = Fixture::new();
    let (one, two) = (fixture.add("one", None), fixture.add("two", None));
    let keys = fixture.keys();
    let found = keys.identify(&bearer(&two), now()).unwrap();
    assert_eq!((found.key.as_deref(), &*found.tenant), (Some("two"), "team"));
    assert!(found.scopes.allow(Scope::Inference) && !found.scopes.allow(Scope::Metrics));
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", HeaderValue::from_str(&one).unwrap());
    assert_eq!(keys.identify(&headers, now()).unwrap().key.as_deref(), Some("one"));
    headers.insert("authorization", HeaderValue::from_static("Basic abc"));
    assert_eq!(keys.identify(&headers, now()).unwrap().key.as_deref(), Some("one"));
    assert_eq!(keys.identify(&HeaderMap::new(), now()), Err(Unauthorized::Missing));
    assert_eq!(keys.identify(&bearer(""), now()), Err(Unauthorized::Missing));
}

#[test]
fn unknown_disabled_and_expired_keys_are_one_case() {
    let mut fixture = Fixture::new();
    let disabled = fixture.add("disabled", None);
    fixture.file.keys[0].disabled = true;
    let expired = fixture.add("expired", Some(NOW));
    let valid = fixture.add("valid", Some(NOW + Duration::from_secs(1)));
    let keys = fixture.keys();
    for secret in [&disabled, &expired, "rk-unknown", "\u{7f}", &valid[..valid.len() - 1]] {
        let headers = match HeaderValue::from_str(&format!("Bearer {secret}")) {
            Ok(_) => bearer(secret),
            Err(_) => bearer("x"),
        };
        assert_eq!(keys.identify(&headers, now()), Err(Unauthorized::Incorrect), "{secret}");
    }
    assert!(keys.identify(&bearer(&valid), now()).is_ok());
}

#[test]
fn a_rotated_key_overlaps_and_ends() {
    let mut fixture = Fixture::new();
    let former = fixture.add("one", None);
    let overlap = Duration::from_secs(60);
    let next = fixture.file.rotate("one", Moment::new(now()), overlap).unwrap();
    let keys = fixture.keys();
    for (secret, after, accepted) in
        [(former.as_str(), 59, true), (former.as_str(), 60, false), (next.reveal(), 60, true)]
    {
        let at = now() + Duration::from_secs(after);
        assert_eq!(keys.identify(&bearer(secret), at).is_ok(), accepted, "{after}");
    }
    fixture.file.rotate("one", Moment::new(now()), Duration::ZERO).unwrap();
    assert!(fixture.keys().identify(&bearer(next.reveal()), now()).is_err());
    assert!(matches!(fixture.file.rotate("two", Moment::new(now()), overlap), Err(KeysError::Absent { .. })));
}

#[test]
fn a_reload_swaps_all_keys_and_a_broken_file_keeps_them() {
    let mut fixture = Fixture::new();
    let one = fixture.add("one", None);
    let keys = fixture.keys();
    std::fs::write(fixture.path(), "[[keys]]\nname = ").unwrap();
    assert!(keys.reload().unwrap_err().to_string().contains("line 2"));
    assert!(keys.identify(&bearer(&one), now()).is_ok());
    fixture.file.remove("one").unwrap();
    let two = fixture.add("two", None);
    std::fs::write(fixture.path(), fixture.file.to_text()).unwrap();
    keys.reload().unwrap();
    assert_eq!(keys.identify(&bearer(&one), now()), Err(Unauthorized::Incorrect));
    assert!(keys.identify(&bearer(&two), now()).is_ok());
}

#[test]
fn without_a_file_every_caller_is_the_default_tenant() {
    let found = Keys::none().identify(&bearer("anything"), now()).unwrap();
    assert_eq!((found.key, &*found.tenant), (None, "default"));
    assert!(Scope::ALL.iter().all(|scope| found.scopes.allow(*scope)));
}

#[test]
fn files_with_faults_are_refused_without_showing_them() {
    let hash = KeyHash::of("x");
    let entry = |name: &str, hash: &str, rest: &str| {
        format!(
            "[[keys]]\nname = '{name}'\nhash = '{hash}'\nscopes = ['inference']\n\
             created = 2026-01-01T00:00:00Z\n{rest}\n"
        )
    };
    let good = entry("a", &hash.to_string(), "");
    assert_eq!(KeyFile::parse(&good).unwrap().keys[0].tenant, "default");
    for (text, piece) in [
        (entry("a", "rk-secret", ""), "line 3"),
        (entry("a b", &hash.to_string(), ""), "letters"),
        (format!("{good}{good}"), "twice"),
        (entry("a", &hash.to_string(), "extra = 1"), "extra"),
        (good.replace("inference", "root"), "there are inference"),
        (good.replace("2026-01-01T00:00:00Z", "1"), "line 5"),
    ] {
        let error = KeyFile::parse(&text).unwrap_err().to_string();
        assert!(error.contains(piece) && !error.contains("rk-secret"), "{error}");
    }
    let file = KeyFile::parse(&good).unwrap();
    assert_eq!(KeyFile::parse(&file.to_text()).unwrap(), file);
}

#[test]
fn debug_output_shows_no_hash_and_no_key() {
    let mut fixture = Fixture::new();
    let secret = fixture.add("one", None);
    let keys = fixture.keys();
    let shown = format!("{keys:?} {:?}", fixture.file);
    let hash = fixture.file.keys[0].hash.to_string();
    assert!(shown.contains("one") && !shown.contains(&secret) && !shown.contains(&hash[7..]), "{shown}");
}

#[cfg(unix)]
#[test]
fn readable_keys_files_are_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::new();
    fixture.keys();
    for (mode, warned) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
        std::fs::set_permissions(fixture.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let warning = permission_warning(&fixture.path());
        assert_eq!(warning.is_some(), warned, "{mode:o}");
        assert!(warning.is_none_or(|text| text.contains("chmod 600")));
    }
}

#[test]
fn admin_allows_every_scope() {
    let admin: Scopes = [Scope::Admin].into_iter().collect();
    assert!(Scope::ALL.iter().all(|scope| admin.allow(*scope)));
    assert!(!Scopes::default().allow(Scope::Inference));
    assert!("root".parse::<Scope>().unwrap_err().contains("inference, adapters"));
}
