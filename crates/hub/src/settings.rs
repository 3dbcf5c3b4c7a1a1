//! Client settings: endpoint, token, certificates, timeouts and retries.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::address::shown;
use crate::error::{Error, Result, shortened};
use crate::files;

/// The hub of a client whose environment names no other.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Variables that name a file with the certificates to trust, in the order in which they are tried.
const CERTIFICATES: [&str; 3] = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// Longest file of certificates, in bytes.
const MAX_CERTIFICATES_BYTES: u64 = 16 << 20;

/// Longest file of a token, in bytes.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// Settings of a [`Hub`](crate::Hub).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HubSettings {
    /// Scheme, host and perhaps a port and a path, without a slash at the end. A name and password
    /// before the host are refused: the address stands in manifests and messages, and who asks is
    /// said by [`Self::token`].
    pub endpoint: String,
    /// Access token of the caller. Sent to scheme, host and port of the endpoint alone, never to
    /// where it redirects.
    pub token: Option<Token>,
    /// Places searched for a token, for messages.
    pub token_hint: String,
    /// True if downloads are forbidden.
    pub offline: bool,
    /// True if `ALL_PROXY`, `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` of the environment apply.
    pub proxy_of_environment: bool,
    /// Certificates to trust, as PEM; absent for those that are compiled in (Mozilla's).
    pub certificates: Option<Vec<u8>>,
    /// Requests at the same time for one file.
    pub connections: usize,
    /// Bytes of one request's range.
    pub piece_bytes: u64,
    /// Attempts in a row that may fail, the first included.
    pub attempts: u32,
    /// Time before the second attempt; it doubles with each further one.
    pub first_wait: Duration,
    /// The longest time to wait before an attempt, also when the server asks for more.
    pub longest_wait: Duration,
    /// The longest time without a single byte.
    pub silence: Duration,
    /// An answer that brings less than [`Self::slow_bytes`] in this time is broken off and asked
    /// for again.
    pub slow_after: Duration,
    /// See [`Self::slow_after`].
    pub slow_bytes: u64,
    /// Hears of each request that will be made again, before the wait.
    pub on_retry: OnRetry,
}

/// A request that failed and will be made again.
#[derive(Debug)]
#[non_exhaustive]
pub struct Retry<'a> {
    /// Failure of the last attempt.
    pub error: &'a Error,
    /// Time before the next one.
    pub wait: Duration,
    /// The next attempt, counted from 1 since there was progress.
    pub attempt: u32,
    /// Attempts in a row that may fail.
    pub attempts: u32,
}

/// Function of an [`OnRetry`].
type Listener = dyn Fn(&Retry<'_>) + Send + Sync;

/// Function that hears of retries; requests of one file call it from several threads. The default
/// does nothing.
#[derive(Clone, Default)]
pub struct OnRetry(Option<Arc<Listener>>);

impl OnRetry {
    /// Calls `function` for each.
    pub fn new(function: impl Fn(&Retry<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(function)))
    }

    pub(crate) fn call(&self, retry: &Retry<'_>) {
        if let Some(function) = &self.0 {
            function(retry);
        }
    }
}

impl fmt::Debug for OnRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OnRetry(..)" } else { "OnRetry(none)" })
    }
}

impl HubSettings {
    /// Settings for an endpoint, without token, proxy and certificates of its own.
    ///
    /// # Errors
    /// [`Error::Setting`] when the endpoint is not `http://` or `https://` and a host, or holds a
    /// name and password.
    pub fn new(endpoint: &str) -> Result<Self> {
        let trimmed = check_endpoint(endpoint)?;
        Ok(Self {
            endpoint: trimmed.to_owned(),
            token: None,
            token_hint: "none was given".to_owned(),
            offline: false,
            proxy_of_environment: false,
            certificates: None,
            connections: 8,
            piece_bytes: 64 << 20,
            attempts: 6,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(300),
            silence: Duration::from_secs(30),
            slow_after: Duration::from_secs(30),
            slow_bytes: 30 << 10,
            on_retry: OnRetry::default(),
        })
    }

    /// The settings that the environment asks for, in the variables that other clients of the hub
    /// read too: `HF_ENDPOINT`; `HF_TOKEN`, else the file `HF_TOKEN_PATH`, else `token` in
    /// `HF_HOME`; `HF_HUB_OFFLINE`; `ALL_PROXY`, `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`;
    /// `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE`.
    ///
    /// # Errors
    /// [`Error::Setting`] for a value that cannot be used.
    pub fn from_env() -> Result<Self> {
        let mut settings =
            Self::new(&variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()))?;
        settings.offline = variable("HF_HUB_OFFLINE")
            .is_some_and(|value| matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"));
        (settings.token, settings.token_hint) = token_of_environment()?;
        settings.proxy_of_environment = true;
        settings.certificates = CERTIFICATES
            .into_iter()
            .find_map(|name| Some((name, env::var_os(name).filter(|value| !value.is_empty())?)))
            .map(|(variable, path)| {
                let path = PathBuf::from(path);
                let failed = |error| format!("cannot read {}: {error}", path.display());
                read_setting(&path, MAX_CERTIFICATES_BYTES)
                    .map_err(|error| Error::Setting { variable, reason: failed(error) })
            })
            .transpose()?;
        Ok(settings)
    }
}

/// The endpoint without slashes at its end.
///
/// # Errors
/// [`Error::Setting`], which shows no name, password or query that it may hold.
pub(crate) fn check_endpoint(endpoint: &str) -> Result<&str> {
    let refused = |reason| Error::Setting { variable: "HF_ENDPOINT", reason };
    let trimmed = endpoint.trim_end_matches('/');
    let rest =
        trimmed.strip_prefix("https://").or_else(|| trimmed.strip_prefix("http://")).unwrap_or_default();
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.contains('@') {
        let reason = "it holds a name or a password; give the address without them, and a token in HF_TOKEN";
        return Err(refused(reason.to_owned()));
    }
    let is_path = |byte: u8| byte.is_ascii_graphic() && !b"?#\\".contains(&byte);
    if host.is_empty() || !rest.bytes().all(is_path) {
        let shown = shortened(&shown(endpoint));
        return Err(refused(format!("`{shown}` is not http:// or https:// with a host and perhaps a path")));
    }
    Ok(trimmed)
}

/// An access token. Its text appears in no message.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token; white space around it is dropped. `None` when nothing is left, or something that
    /// cannot stand in a header.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_valid = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_valid.then(|| Self(text.to_owned()))
    }

    /// The value of the header that presents it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The token of the environment, and what a message says about it when the server wants another.
fn token_of_environment() -> Result<(Option<Token>, String)> {
    let invalid = |variable, what: String| {
        let reason =
            format!("{what} is not a token: it holds spaces or other characters that no header may have");
        Error::Setting { variable, reason }
    };
    if let Some(text) = variable("HF_TOKEN") {
        let token = Token::new(&text).ok_or_else(|| invalid("HF_TOKEN", "its value".to_owned()))?;
        return Ok((Some(token), "that in HF_TOKEN was refused".to_owned()));
    }
    let Some(path) = token_path() else {
        return Ok((None, "set HF_TOKEN".to_owned()));
    };
    match read_setting(&path, MAX_TOKEN_BYTES).map(|text| String::from_utf8_lossy(&text).into_owned()) {
        Ok(text) if text.trim().is_empty() => {
            Ok((None, format!("set HF_TOKEN ({} is empty)", path.display())))
        }
        Ok(text) => {
            let what = format!("the text of {}", path.display());
            let token = Token::new(&text).ok_or_else(|| invalid("HF_TOKEN_PATH", what))?;
            Ok((Some(token), format!("that in {} was refused", path.display())))
        }
        // A file that is absent is the usual case; one that cannot be read is no reason to fail for
        // public models.
        Err(_) => Ok((None, format!("set HF_TOKEN or write one to {}", path.display()))),
    }
}

/// A small file that the user's environment names: perhaps a link or a pipe.
fn read_setting(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    files::read_at_most(fs::File::open(path)?, limit)
}

/// The file that holds the token of this user.
fn token_path() -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    path("HF_TOKEN_PATH").or_else(|| {
        let cache = || {
            path("XDG_CACHE_HOME")
                .or_else(|| Some(path(if cfg!(windows) { "USERPROFILE" } else { "HOME" })?.join(".cache")))
        };
        let home = path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))?;
        Some(home.join("token"))
    })
}

/// A variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_hosts() {
        assert_eq!(HubSettings::new("http://localhost:8080/").unwrap().endpoint, "http://localhost:8080");
        assert_eq!(HubSettings::new("https://mirror/hub//").unwrap().endpoint, "https://mirror/hub");
        for endpoint in ["", "https://", "huggingface.co", "ftp://host", "http://a b", "http://h\r\nX: y"] {
            assert!(HubSettings::new(endpoint).is_err(), "{endpoint:?}");
        }
    }

    #[test]
    fn endpoints_hold_no_secrets() {
        for endpoint in [
            "https://me:SECRET@host",
            "https://SECRET@host/path",
            "http://me:SECRET@",
            "me:SECRET@host",
            "ftp://me:SECRET@host",
            "https://host?token=SECRET",
            "https://host/path#SECRET",
            "https://host\\@SECRET",
            "https://me:SECRET@host b",
        ] {
            let error = HubSettings::new(endpoint).expect_err(endpoint).to_string();
            assert!(error.starts_with("HF_ENDPOINT: ") && !error.contains("SECRET"), "{error}");
        }
        assert_eq!(HubSettings::new("https://host/a@b").unwrap().endpoint, "https://host/a@b");
    }

    #[test]
    fn files_of_the_environment_have_a_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for limit in [MAX_TOKEN_BYTES, MAX_CERTIFICATES_BYTES] {
            for (bytes, is_read) in [(limit, true), (limit + 1, false), (1 << 40, false)] {
                fs::File::create(&path).unwrap().set_len(bytes).unwrap();
                match read_setting(&path, limit) {
                    Ok(content) => assert!(is_read && content.len() as u64 == bytes),
                    Err(error) => assert!(!is_read && error.kind() == io::ErrorKind::FileTooLarge, "{error}"),
                }
            }
            #[cfg(unix)]
            assert!(read_setting(Path::new("/dev/zero"), limit).is_err());
        }
    }

    #[test]
    fn tokens_are_trimmed_and_secret() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(token.header(), "Bearer hf_secret");
        assert!(!format!("{token:?}").contains("secret"));
        for text in ["", " \n", "two words", "line\nbreak", "\u{e9}"] {
            assert!(Token::new(text).is_none(), "{text:?}");
        }
    }
}
