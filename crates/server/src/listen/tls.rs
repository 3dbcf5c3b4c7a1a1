//! TLS: certificate and private key, replaced without a restart.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::config::Config;
use crate::error::Error;

/// Certificate and key of new connections.
pub(crate) struct Certificate {
    files: (PathBuf, PathBuf),
    current: RwLock<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads the files of a configuration; `None` if it has no TLS.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub(crate) fn read(config: &Config) -> Result<Option<Arc<Self>>, Error> {
        let (Some(certificate), Some(key)) = (&config.tls.certificate, &config.tls.key) else {
            return Ok(None);
        };
        let current = RwLock::new(Arc::new(load(certificate, key)?));
        Ok(Some(Arc::new(Self { files: (certificate.clone(), key.clone()), current })))
    }

    /// Reads the files again. Open connections keep what they began with.
    ///
    /// # Errors
    /// [`Error::Tls`]; certificate and key are then those from before.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        let loaded = Arc::new(load(&self.files.0, &self.files.1)?);
        *self.current.write() = loaded;
        Ok(())
    }

    /// Settings of handshakes: TLS 1.2 and 1.3, and one protocol (ALPN).
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub(super) fn acceptor(self: &Arc<Self>, protocol: &[u8]) -> Result<tokio_rustls::TlsAcceptor, Error> {
        let failed = |error: rustls::Error| refused(&self.files.0, error.to_string());
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Arc::new(config).into())
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}

fn refused(path: &Path, reason: String) -> Error {
    Error::Tls { path: path.to_owned(), reason }
}

fn load(certificate: &Path, key: &Path) -> Result<CertifiedKey, Error> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refused(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(refused(certificate, "there is no certificate in it; PEM is expected".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| refused(key, error.to_string()))?;
    CertifiedKey::from_der(chain, private, &default_provider())
        .map_err(|error| refused(key, error.to_string()))
}
