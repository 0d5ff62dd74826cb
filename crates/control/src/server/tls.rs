//! TLS of the server. The certificate is reloaded when its file changes, because issuers renew certificates.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
    server::TlsStream,
};
use windlass_host::{causes, shared::Shared};

/// TLS files of the server, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate with its intermediates.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// CA certificates for clients; `None` requires no client certificate.
    pub client_ca: Option<PathBuf>,
}

/// TLS files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file holds no certificates or no key.
    #[error("cannot read {0} as PEM")]
    Pem(PathBuf, #[source] rustls::pki_types::pem::Error),
    /// Certificate and key do not match, or have an unsupported type.
    #[error("cannot use certificate {0} with its key")]
    Identity(PathBuf, #[source] rustls::Error),
    /// The CA certificates for clients cannot be used.
    #[error("cannot use {0} as CA certificates for clients")]
    ClientCa(PathBuf, #[source] rustls::server::VerifierBuilderError),
}

/// Acceptor of TLS connections, with the newest certificate.
#[derive(Debug)]
pub(crate) struct ReloadingAcceptor {
    files: TlsFiles,
    current: Shared<LoadedConfig>,
}

#[derive(Debug)]
struct LoadedConfig {
    config: Arc<ServerConfig>,
    modified: Option<SystemTime>,
}

// === impl ReloadingAcceptor ===

impl ReloadingAcceptor {
    /// Reads the files.
    pub(crate) fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let modified = modified(&files.certificate);
        let current = Shared::new(LoadedConfig { config: files.read()?, modified });
        Ok(Self { files, current })
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config()).accept(stream).await
    }

    fn config(&self) -> Arc<ServerConfig> {
        let modified = modified(&self.files.certificate);
        self.current.with_lock(|current| {
            if modified.is_some() && modified != current.modified {
                match self.files.read() {
                    Ok(config) => *current = LoadedConfig { config, modified },
                    // The issuer may still be writing the files. The next connection reads them again.
                    Err(error) => {
                        tracing::warn!(error = causes(&error), "new certificate not used yet");
                    }
                }
            }
            current.config.clone()
        })
    }
}

// === impl TlsFiles ===

impl TlsFiles {
    fn read(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| TlsError::Pem(self.key.clone(), error))?;
        let builder = match &self.client_ca {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(certificates(path)?);
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
                let verifier = verifier.map_err(|error| TlsError::ClientCa(path.clone(), error))?;
                ServerConfig::builder().with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key);
        config.map(Arc::new).map_err(|error| TlsError::Identity(self.certificate.clone(), error))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let result = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    result.map_err(|error| TlsError::Pem(path.to_owned(), error))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|it| it.modified()).ok()
}
