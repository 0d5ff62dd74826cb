//! The page of the extender: over TLS, for readers with a token or for all.

use std::{io, net::SocketAddr, path::Path, sync::Arc};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};
use windlass_control::{Config, PageConfig, TlsFiles};

use crate::rig::{Answer, Extender, TIMEOUT, TestCluster};

/// An extender with a page.
struct ExtenderWithPage {
    extender: Extender,
    page_address: SocketAddr,
}

/// Certificate and key of `localhost`, valid until 2126, for tests only.
fn files() -> TlsFiles {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let certificate = folder.join("server.pem");
    // No client has a certificate of this CA.
    let client_ca = Some(certificate.clone());
    TlsFiles { certificate, key: folder.join("server.key"), client_ca }
}

/// A free port of an address that other tests do not use.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind(("127.0.0.2", 0)).expect("a free port");
    listener.local_addr().expect("bound")
}

// === impl ExtenderWithPage ===

impl ExtenderWithPage {
    async fn start(cluster: &TestCluster, allows_anonymous: bool) -> Self {
        let page_address = free_address();
        let page = Some(PageConfig { listen: page_address, allows_anonymous });
        let config = Config { page, tls: Some(files()), ..cluster.config("one") };
        Self { extender: Extender::start(config).await, page_address }
    }

    /// The page's answer over TLS.
    async fn get(&self, path: &str) -> Answer {
        let mut stream =
            connect_with_tls(self.page_address).await.expect("no client certificate is required");
        let answer = timeout(TIMEOUT, get(&mut stream, path)).await.expect("in time");
        Answer::parse(&answer.expect("an answer"))
    }
}

async fn connect_with_tls(address: SocketAddr) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    let mut roots = RootCertStore::empty();
    let server_certificate =
        CertificateDer::from_pem_file(files().certificate).expect("a certificate");
    roots.add(server_certificate).expect("a certificate");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Requests a path, with `Connection: close`.
async fn get(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn an_open_page_is_served_over_tls_to_browsers_without_a_certificate() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    let extender = ExtenderWithPage::start(&cluster, true).await;
    let wait = async {
        loop {
            let Answer { code, head, body } = extender.get("/state").await;
            if code == 200 {
                return serde_json::from_str::<Value>(&body).expect("JSON");
            }
            assert!(code == 503 && head.contains("retry-after: 2"), "{code} {head}");
        }
    };
    let state = timeout(TIMEOUT, wait).await.expect("all objects are seen in time");
    assert_eq!(state["nodes"][0]["name"], json!("a"));
    assert_eq!(extender.get("/").await.code, 200);
    // The extender does not forward requests to agents: they would have the extender's rights.
    let Answer { code, body, .. } = extender.get("/node/a/state").await;
    let expected = "details of a node are served only by `windlass cluster page`\n";
    assert_eq!((code, body.as_str()), (404, expected));
    // Without TLS there is no answer.
    let mut plain = TcpStream::connect(extender.page_address).await.expect("connected");
    let answer = timeout(TIMEOUT, get(&mut plain, "/")).await.expect("in time");
    assert!(answer.is_err() || answer.is_ok_and(|text| !text.starts_with("HTTP")));
    // kube-scheduler's listener requires a client certificate, which this client lacks.
    let request =
        async { get(&mut connect_with_tls(extender.extender.address).await?, "/healthz").await };
    timeout(TIMEOUT, request).await.expect("in time").expect_err("no certificate");
    extender.extender.stop().await;
}

#[tokio::test]
async fn a_protected_page_serves_its_files_to_all_and_its_state_only_with_a_token() {
    let cluster = TestCluster::start();
    let extender = ExtenderWithPage::start(&cluster, false).await;
    assert_eq!(extender.get("/").await.code, 200);
    let Answer { code, head, body } = extender.get("/state").await;
    assert_eq!((code, body.as_str()), (401, "a token of this cluster is needed\n"));
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    extender.extender.stop().await;
}
