//! The client of a hub: requests with the token, redirects, ranges and the meaning of statuses.

use std::fmt::Write;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use ureq::Agent;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};

use crate::address::shown;
use crate::error::{Error, Result, shortened};
use crate::limits::{MAX_FILE_BYTES, MAX_LISTING_BYTES};
use crate::listing::{Listing, RemoteFile};
use crate::reference::ModelReference;
use crate::settings::{HubSettings, check_endpoint};

mod redirect;
mod retry;
mod retry_after;

pub(crate) use retry::{Failure, Retries};

/// Redirects that are followed for one request.
const MAX_REDIRECTS: usize = 8;

/// A client of one hub. Cheap to clone; clones share their connections.
///
/// Nothing is requested before it is needed, so a client for an endpoint that does not exist can be
/// made.
#[derive(Debug, Clone)]
pub struct Hub {
    agent: Agent,
    settings: Arc<HubSettings>,
}

/// Kind of request: the reader of its answer differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// A list of files.
    List,
    /// Facts of a file.
    Head,
    /// A file or a range of it.
    File,
}

/// The answer of the last server of a chain of redirects.
pub(crate) struct Answer {
    /// Status line, headers and body.
    pub(crate) response: Response<ureq::Body>,
    /// Headers of the hub's own answer, before it redirected to the storage.
    pub(crate) linked: Linked,
}

/// Headers in which the hub describes a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Linked {
    /// `X-Linked-Etag`, or the `ETag` of the hub's own answer, without quotes.
    pub(crate) etag: Option<String>,
    /// The ETag stands for equal meaning, not for equal bytes (RFC 9110, section 8.8.1).
    pub(crate) is_weak: bool,
    /// `X-Linked-Size`, or the length of the answer.
    pub(crate) bytes: Option<u64>,
    /// `X-Repo-Commit`.
    pub(crate) commit: Option<String>,
}

/// Metadata of a file, from the hub before the download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileFacts {
    /// Length of the file.
    pub(crate) bytes: u64,
    /// Names this version of the file.
    pub(crate) etag: Option<String>,
    /// The ETag is weak: other bytes may have the same.
    pub(crate) is_weak: bool,
    /// SHA-256 of the file in hexadecimal; the hub knows it of large files only.
    pub(crate) sha256: Option<String>,
}

impl FileFacts {
    /// True if a file may be assembled from ranges of several responses: its SHA-256 is checked at
    /// the end, or every response carries the ETag of these bytes. `If-Range` would reach the
    /// storage after the redirect, whose ETags differ.
    pub(crate) fn allow_ranges(&self) -> bool {
        self.sha256.is_some() || (self.etag.is_some() && !self.is_weak)
    }

    /// True if other versions of the file cannot be told from this one.
    pub(crate) fn are_unverified(&self) -> bool {
        self.sha256.is_none() && self.etag.is_none()
    }
}

impl Hub {
    /// A client with these settings.
    ///
    /// # Errors
    /// [`Error::Setting`] for certificates that are not PEM, and an endpoint that
    /// [`HubSettings::new`] would refuse.
    pub fn new(settings: HubSettings) -> Result<Self> {
        check_endpoint(&settings.endpoint)?;
        let roots = settings.certificates.as_deref().map_or(Ok(RootCerts::WebPki), roots)?;
        let proxy = if settings.proxy_of_environment { ureq::Proxy::try_from_env() } else { None };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections_per_host(settings.connections)
            .proxy(proxy)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_resolve(Some(settings.silence))
            .timeout_connect(Some(settings.silence))
            .timeout_recv_response(Some(settings.silence))
            .timeout_per_read(Some(settings.silence))
            .timeout_per_write(Some(settings.silence))
            .user_agent(concat!("ruvllm/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self { agent: Agent::new_with_config(config), settings: Arc::new(settings) })
    }

    /// A client with the settings of the environment: see [`HubSettings::from_env`].
    ///
    /// # Errors
    /// As [`HubSettings::from_env`] and [`Self::new`].
    pub fn from_env() -> Result<Self> {
        Self::new(HubSettings::from_env()?)
    }

    /// The settings.
    pub fn settings(&self) -> &HubSettings {
        &self.settings
    }

    /// The files of the repository at the reference's revision.
    ///
    /// # Errors
    /// A repository or revision that does not exist or is closed, a connection that fails again and
    /// again, an answer that is not understood.
    pub fn list(&self, reference: &ModelReference) -> Result<Listing> {
        let revision = encoded(reference.revision(), false);
        let url = format!(
            "{}/api/models/{}/revision/{revision}?blobs=true",
            self.settings.endpoint,
            reference.repo()
        );
        Retries::brief(&self.settings).run(|| {
            let mut answer = self.request(Method::List, &url, None)?;
            let mut text = Vec::new();
            let read =
                answer.response.body_mut().as_reader().take(MAX_LISTING_BYTES + 1).read_to_end(&mut text);
            if let Err(source) = read {
                let bytes = text.len() as u64;
                return Err(Failure::passing(Error::Interrupted { url: shown(&url), bytes, source }));
            }
            if text.len() as u64 > MAX_LISTING_BYTES {
                let reason = format!("the list of files is longer than {MAX_LISTING_BYTES} bytes");
                return Err(Failure::lasting(Error::Answer { url: shown(&url), reason }));
            }
            Listing::from_json(&text).map_err(|error| {
                let reason = error.to_string();
                Failure::lasting(Error::Answer { url: shown(&url), reason })
            })
        })
    }

    /// URL of a file of a repository.
    pub(crate) fn file_url(&self, repo: &str, commit: &str, path: &str) -> String {
        format!(
            "{}/{repo}/resolve/{}/{}",
            self.settings.endpoint,
            encoded(commit, false),
            encoded(path, true)
        )
    }

    /// Requests length, version and checksum of a file; fails if it may not be read.
    pub(crate) fn file_facts(&self, repo: &str, commit: &str, file: &RemoteFile) -> Result<FileFacts> {
        let url = self.file_url(repo, commit, &file.path);
        let linked =
            Retries::new(&self.settings).run(|| Ok(self.request(Method::Head, &url, None)?.linked))?;
        let unexpected = |reason: String| Error::Answer { url: shown(&url), reason };
        if let Some(other) = linked.commit.as_ref().filter(|other| *other != commit) {
            return Err(unexpected(format!("it is of the revision {}, not {commit}", shortened(other))));
        }
        let told = linked.etag.as_deref().filter(|etag| crate::digest::is_sha256(etag)).map(str::to_owned);
        if let (Some(told), Some(listed)) = (&told, &file.sha256)
            && told != listed
        {
            return Err(unexpected(format!("the checksum {told} differs from that of the list, {listed}")));
        }
        let bytes = linked.bytes.or(file.bytes).ok_or_else(|| unexpected("it has no length".to_owned()))?;
        if let Some(listed) = file.bytes.filter(|&listed| listed != bytes) {
            return Err(unexpected(format!("the length {bytes} differs from that of the list, {listed}")));
        }
        if bytes > MAX_FILE_BYTES {
            return Err(unexpected(format!("the length {bytes} is more than {MAX_FILE_BYTES}")));
        }
        let Linked { etag, is_weak, .. } = linked;
        Ok(FileFacts { bytes, etag, is_weak, sha256: file.sha256.clone().or(told) })
    }

    /// Requests a range of a file. The server may send the whole file.
    pub(crate) fn range(&self, url: &str, range: &Range<u64>) -> Result<Answer, Failure> {
        self.request(Method::File, url, Some(range))
    }

    /// Requests a file.
    pub(crate) fn whole(&self, url: &str) -> Result<Answer, Failure> {
        self.request(Method::File, url, None)
    }

    /// One request with its redirects.
    fn request(&self, method: Method, url: &str, range: Option<&Range<u64>>) -> Result<Answer, Failure> {
        let mut linked = Linked::default();
        let mut target = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let at_hub = redirect::is_below(&target, &self.settings.endpoint);
            let response =
                self.send(method, &target, range, at_hub).map_err(|error| connection_failure(url, error))?;
            linked.learn(response.headers(), response.status().is_success(), at_hub);
            if response.status().is_success() {
                return Ok(Answer { response, linked });
            }
            if !response.status().is_redirection() {
                return Err(self.refusal(url, &response));
            }
            // A file that lies elsewhere is described by the hub itself.
            let is_described = linked.bytes.is_some() && linked.etag.is_some();
            let location = header(response.headers(), "location").unwrap_or_default();
            let next = redirect::resolve(&target, location).ok_or_else(|| {
                let reason = format!("it redirects to `{}`", shortened(&shown(location)));
                Failure::lasting(Error::Answer { url: shown(url), reason })
            })?;
            if method == Method::Head && is_described && !redirect::is_below(&next, &self.settings.endpoint) {
                return Ok(Answer { response, linked });
            }
            target = next;
        }
        let reason = format!("more than {MAX_REDIRECTS} redirects");
        Err(Failure::lasting(Error::Answer { url: shown(url), reason }))
    }

    fn send(
        &self,
        method: Method,
        url: &str,
        range: Option<&Range<u64>>,
        at_hub: bool,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let mut request = match method {
            Method::List | Method::File => self.agent.get(url),
            Method::Head => self.agent.head(url),
        };
        // Lengths and ranges count the bytes of the file, not those of a compressed form.
        request = request.header("Accept-Encoding", "identity");
        if let Some(range) = range {
            request = request.header("Range", format!("bytes={}-{}", range.start, range.end - 1));
        }
        if let Some(token) = self.settings.token.as_ref().filter(|_| at_hub) {
            request = request.header("Authorization", token.header());
        }
        if method != Method::File {
            // Whoever copies a file watches its speed; a list comes at once or not at all.
            request = request.config().timeout_recv_body(Some(self.settings.silence * 4)).build();
        }
        request.call()
    }

    /// Failure for a status that is neither success nor redirect.
    fn refusal(&self, url: &str, response: &Response<ureq::Body>) -> Failure {
        let status = response.status().as_u16();
        let said = header(response.headers(), "x-error-message").filter(|text| !text.trim().is_empty());
        let message = said.map(|text| format!(": {}", shortened(text.trim()))).unwrap_or_default();
        let url = shown(url);
        match status {
            401 => {
                let hint = self.settings.token_hint.clone();
                Failure::lasting(Error::Unauthorized { url, hint })
            }
            403 => Failure::lasting(Error::Forbidden { url, message }),
            404 => Failure::lasting(Error::NotFound { url, message }),
            408 | 429 | 500..=599 => {
                let longest = self.settings.longest_wait;
                match retry_after::retry_after(response.headers()) {
                    Some(wait) if wait > longest => {
                        Failure::lasting(Error::WaitTooLong { url, seconds: wait.as_secs() })
                    }
                    wait => Failure { wait, ..Failure::passing(Error::Status { url, status, message }) },
                }
            }
            _ => Failure::lasting(Error::Status { url, status, message }),
        }
    }
}

impl Linked {
    /// Adds headers of one response of a redirect chain that earlier ones lacked.
    fn learn(&mut self, headers: &HeaderMap, is_final: bool, at_hub: bool) {
        let number = |name| header(headers, name).and_then(|text| text.trim().parse().ok());
        let own_etag = || header(headers, "etag").filter(|_| is_final && at_hub);
        self.etag = self.etag.take().or_else(|| {
            let etag = header(headers, "x-linked-etag").filter(|_| at_hub).or_else(own_etag)?;
            self.is_weak = etag.starts_with("W/");
            Some(etag.trim_start_matches("W/").trim_matches('"').to_owned())
        });
        self.bytes = self
            .bytes
            .or_else(|| number("x-linked-size").filter(|_| at_hub))
            .or_else(|| number("content-length").filter(|_| is_final));
        self.commit = self
            .commit
            .take()
            .or_else(|| header(headers, "x-repo-commit").filter(|_| at_hub).map(str::to_owned));
    }
}

/// Failure of a connection without an answer.
fn connection_failure(url: &str, error: ureq::Error) -> Failure {
    // An error of TLS comes as it is, or as data that the connection does not understand.
    let is_tls = match &error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::InvalidData,
        _ => false,
    };
    let (url, source) = (shown(url), error.into_io());
    if is_tls {
        Failure::lasting(Error::Tls { url, source })
    } else {
        Failure::passing(Error::Connection { url, source })
    }
}

/// A header's text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The certificates of a PEM text.
fn roots(pem: &[u8]) -> Result<RootCerts> {
    let certificates: Vec<Certificate<'static>> = ureq::tls::parse_pem(pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        let reason = "the file holds no certificates in PEM form".to_owned();
        return Err(Error::Setting { variable: "SSL_CERT_FILE", reason });
    }
    Ok(RootCerts::from(certificates))
}

/// `text` as part of an address; slashes stay as they are when `keep_slashes`.
fn encoded(text: &str, keep_slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slashes && byte == b'/') {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encoded("sub/a b+c.gguf", true), "sub/a%20b%2Bc.gguf");
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encoded("\u{e9}", true), "%C3%A9");
    }

    #[test]
    fn certificates_that_are_none_are_refused() {
        let mut settings = HubSettings::new("https://host").unwrap();
        settings.certificates = Some(b"no certificate".to_vec());
        assert!(matches!(Hub::new(settings), Err(Error::Setting { .. })));
    }
}
