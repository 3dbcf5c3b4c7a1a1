//! How the client reaches a hub: endpoint, token, certificates, patience.

use std::env;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};

/// The hub of a client whose environment names no other.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Variables that name a file with the certificates to trust, in the order in which they are tried.
const CERTIFICATES: [&str; 3] = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// Settings of a [`Hub`](crate::Hub).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HubSettings {
    /// Scheme, host and perhaps a port and a path, without a slash at the end.
    pub endpoint: String,
    /// Who asks. Sent to the endpoint alone, never to where it redirects.
    pub token: Option<Token>,
    /// Where a token would have been looked for; messages say it.
    pub token_hint: String,
    /// Whether downloads are forbidden.
    pub offline: bool,
    /// Whether `ALL_PROXY`, `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` of the environment apply.
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
}

impl HubSettings {
    /// Settings for an endpoint, without token, proxy and certificates of its own.
    ///
    /// # Errors
    /// [`Error::Setting`] when the endpoint is not `http://` or `https://` and a host.
    pub fn new(endpoint: &str) -> Result<Self> {
        let trimmed = endpoint.trim_end_matches('/');
        let host = trimmed.strip_prefix("https://").or_else(|| trimmed.strip_prefix("http://"));
        if !host.is_some_and(|host| !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic())) {
            let reason =
                format!("`{}` is not http:// or https:// and a host", crate::error::shortened(endpoint));
            return Err(Error::Setting { variable: "HF_ENDPOINT", reason });
        }
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
                fs::read(&path).map_err(|error| Error::Setting { variable, reason: failed(error) })
            })
            .transpose()?;
        Ok(settings)
    }
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
    match fs::read_to_string(&path) {
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

/// The file that holds the token of this user.
fn token_path() -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    path("HF_TOKEN_PATH").or_else(|| {
        let cache = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
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
    fn tokens_are_trimmed_and_secret() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(token.header(), "Bearer hf_secret");
        assert!(!format!("{token:?}").contains("secret"));
        for text in ["", " \n", "two words", "line\nbreak", "\u{e9}"] {
            assert!(Token::new(text).is_none(), "{text:?}");
        }
    }
}
