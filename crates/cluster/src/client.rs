//! Access to the API server. Credentials are read and connections are opened on demand.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use windlass_config::{ClusterAccess, PodIdentity};
use windlass_core::name::is_subdomain;
use windlass_host::{
    blocking, deadline,
    files::{self, Symlinks},
};

use super::ClusterError;

/// Source of the API server's address and credentials, and the node's name. Creating a client does no I/O.
#[derive(Clone, Debug)]
pub struct Client {
    kubeconfig: Option<PathBuf>,
    namespace: Option<String>,
    node: String,
    pod: Option<PodIdentity>,
    timeouts: ClientTimeouts,
}

/// Time limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// Deadline of an answer.
    pub response_timeout: Duration,
    /// First pause after a failure; it doubles with each further failure. Also the shortest time between two watches.
    pub retry_min: Duration,
    /// Longest pause after a failure.
    pub retry_max: Duration,
    /// Interval in which labels are applied again, in case another writer changed them.
    pub apply_interval: Duration,
    /// Longest duration of a watch.
    pub watch_timeout: Duration,
    /// Duration of a lease without renewal.
    pub lease_duration: Duration,
}

/// Text that is not a valid node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be the name of a node: give it with --node-name or NODE_NAME, as \
     `kubectl get nodes` shows it"
)]
pub struct InvalidNodeName(String);

/// Text that is not a kubeconfig.
#[derive(Debug, thiserror::Error)]
enum InvalidKubeconfig {
    #[error(transparent)]
    Yaml(#[from] serde_saphyr::Error),
    #[error("no kubeconfig")]
    Fields(#[from] serde_json::Error),
    #[error(transparent)]
    Merge(#[from] KubeconfigError),
}

/// Client of the API server with credentials, and the deadline of its answers.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) kube: kube::Client,
    response_timeout: Duration,
}

/// Size limit of a kubeconfig, enough for hundreds of clusters.
const MAX_BYTES: u64 = 1 << 20;

// === impl Client ===

impl Client {
    /// A client for the configured node, or else for the node with this machine's name.
    pub fn new(access: &ClusterAccess) -> Result<Self, InvalidNodeName> {
        let node = node_name(access.node_name.as_deref());
        // A valid name is also safe in a path.
        if !is_subdomain(&node) {
            return Err(InvalidNodeName(node));
        }
        let (kubeconfig, namespace) = (access.kubeconfig.clone(), access.namespace.clone());
        let pod = access.pod.clone();
        Ok(Self { kubeconfig, namespace, node, pod, timeouts: ClientTimeouts::default() })
    }

    /// Replaces the timeouts.
    #[must_use]
    pub fn with_timeouts(self, timeouts: ClientTimeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// Name of this node's Node object.
    pub fn node(&self) -> &str {
        &self.node
    }

    pub(super) fn timeouts(&self) -> ClientTimeouts {
        self.timeouts
    }

    /// Namespace for namespaced objects: the configured one, else the one of the credentials.
    pub(super) fn namespace(&self, connection: &Connection) -> String {
        let default = || connection.kube.default_namespace().to_owned();
        self.namespace.clone().unwrap_or_else(default)
    }

    /// The agent's pod, if it is in this namespace.
    pub(super) fn pod_in(&self, namespace: &str) -> Option<&PodIdentity> {
        self.pod.as_ref().filter(|pod| pod.namespace == namespace)
    }

    /// Reads the credentials. The first request contacts the API server.
    pub(super) async fn connect(&self) -> Result<Connection, ClusterError> {
        let mut config = self.config().await?;
        // This crate's own back-off retries, and logs failures.
        config.default_retry = false;
        config.connect_timeout = Some(self.timeouts.response_timeout);
        // Without TLS, as behind `kubectl proxy`, the certificates that this machine trusts need not be parsed: some
        // 140, at each connection.
        if config.cluster_url.scheme_str() == Some("http") {
            config.root_cert.get_or_insert_default();
        }
        let kube = kube::Client::try_from(config).map_err(access_error)?;
        Ok(Connection { kube, response_timeout: self.timeouts.response_timeout })
    }

    async fn config(&self) -> Result<kube::Config, ClusterError> {
        let Some(path) = self.kubeconfig.clone() else {
            return blocking(kube::Config::incluster).await.map_err(access_error);
        };
        let read = move || {
            // kube's own reader would block on a pipe without a writer.
            let read = files::read_regular_text(&path, Symlinks::Followed, MAX_BYTES);
            let text = read.map_err(|source| unreadable(&path, &source))?;
            parse(&text, path.parent().unwrap_or(&path)).map_err(access_error)
        };
        let options = KubeConfigOptions::default();
        kube::Config::from_custom_kubeconfig(blocking(read).await?, &options)
            .await
            .map_err(access_error)
    }
}

/// Parses a kubeconfig. Relative paths are relative to the file's folder, as in kubectl. A command without a slash is
/// searched in `PATH`.
fn parse(text: &str, folder: &Path) -> Result<Kubeconfig, InvalidKubeconfig> {
    let mut file = read_documents(text.trim_start_matches('\u{feff}'))?;
    let clusters = file.clusters.iter_mut().filter_map(|entry| entry.cluster.as_mut());
    let mut paths: Vec<_> = clusters.map(|cluster| &mut cluster.certificate_authority).collect();
    for user in file.auth_infos.iter_mut().filter_map(|entry| entry.auth_info.as_mut()) {
        paths.extend([&mut user.client_certificate, &mut user.client_key, &mut user.token_file]);
        let command = user.exec.as_mut().map(|exec| &mut exec.command);
        let has_slash = |command: &String| command.contains('/');
        paths.extend(command.filter(|command| command.as_ref().is_some_and(has_slash)));
    }
    for path in paths.into_iter().flatten() {
        if let Some(absolute) = folder.join(&path).to_str() {
            absolute.clone_into(path);
        }
    }
    Ok(file)
}

/// Merges the documents of a file, as [`Kubeconfig::from_yaml`] does. Conversion goes through JSON, as in kubectl, so a
/// number is not accepted for a string. A YAML deserialiser for these types would add 0.3 MB of code.
fn read_documents(text: &str) -> Result<Kubeconfig, InvalidKubeconfig> {
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(text)?;
    documents.into_iter().try_fold(Kubeconfig::default(), |merged, document| {
        Ok(merged.merge(serde_json::from_value(document)?)?)
    })
}

fn unreadable(path: &Path, source: &io::Error) -> ClusterError {
    let message = format!("cannot read kubeconfig {}: {source}", path.display());
    access_error(io::Error::new(source.kind(), message))
}

fn access_error(error: impl std::error::Error + Send + Sync + 'static) -> ClusterError {
    ClusterError::NoAccess(Box::new(error))
}

/// The node's name as configured, or else the kubelet's default: the machine's name in lower case.
pub fn node_name(configured: Option<&str>) -> String {
    let machine_name = || rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    configured.map_or_else(machine_name, str::to_owned)
}

// === impl ClientTimeouts ===

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_secs(15),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(5 * 60),
            // An apply without changes is cheap: the API server does not store it.
            apply_interval: Duration::from_secs(10 * 60),
            // As in client-go: a dead connection is noticed within this time.
            watch_timeout: Duration::from_secs(5 * 60),
            // Longer than an update of the agent. When a node dies, its leased devices are unavailable for this time.
            lease_duration: Duration::from_secs(2 * 60),
        }
    }
}

// === impl Connection ===

impl Connection {
    /// Waits for an answer, up to the deadline. `context` says in errors what was requested: `cannot read Node n1`.
    pub(super) async fn call<T>(
        &self,
        context: impl Fn() -> String,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ClusterError> {
        match deadline::timeout(self.response_timeout, request).await {
            Ok(answer) => answer.map_err(|error| ClusterError::of(context(), error)),
            Err(_) => Err(ClusterError::DeadlineExceeded(context(), self.response_timeout)),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::config::AuthInfo;

    use super::*;

    fn client_for(name: &str) -> Result<Client, InvalidNodeName> {
        Client::new(&ClusterAccess { node_name: Some(name.to_owned()), ..ClusterAccess::default() })
    }

    #[test]
    fn a_node_name_is_one_that_the_api_server_accepts() {
        for name in ["n1", "ip-10-0-0-1.eu-west-1.compute.internal"] {
            assert_eq!(client_for(name).expect("valid").node(), name);
        }
        for name in ["", "N1", "a/../b", "a..b", "a?watch=1", &"x".repeat(254)] {
            let error = client_for(name).expect_err(name).to_string();
            assert!(error.contains("--node-name"), "{error}");
        }
    }

    #[test]
    fn a_kubeconfigs_paths_are_below_its_folder() {
        let text = "\u{feff}\
clusters: [{name: c, cluster: {server: https://c, certificate-authority: pki/ca.crt}}]
users:
- {name: a, user: {client-certificate: a.crt, client-key: /etc/a.key, tokenFile: ../token}}
- {name: b, user: {exec: {command: bin/login, interactiveMode: Never}}}
- {name: c, user: {exec: {command: aws, interactiveMode: Never}}}
";
        let file = parse(text, "/home/it".as_ref()).expect("valid");
        let cluster = file.clusters[0].cluster.as_ref().expect("a cluster");
        assert_eq!(cluster.certificate_authority.as_deref(), Some("/home/it/pki/ca.crt"));
        let users: Vec<_> =
            file.auth_infos.iter().filter_map(|user| user.auth_info.clone()).collect();
        let [a, b, c] = users.as_slice() else { panic!("{users:?}") };
        assert_eq!(a.client_certificate.as_deref(), Some("/home/it/a.crt"));
        assert_eq!(a.client_key.as_deref(), Some("/etc/a.key"));
        assert_eq!(a.token_file.as_deref(), Some("/home/it/../token"));
        let command = |user: &AuthInfo| user.exec.clone().and_then(|exec| exec.command);
        assert_eq!(command(b).as_deref(), Some("/home/it/bin/login"));
        assert_eq!(command(c).as_deref(), Some("aws"), "searched in PATH");
    }

    #[test]
    fn a_pod_owns_objects_of_its_own_namespace_only() {
        let (name, uid) = ("windlass-x".to_owned(), "u".to_owned());
        let pod = PodIdentity { namespace: "gpu".to_owned(), name, uid };
        let access = ClusterAccess {
            node_name: Some("n1".to_owned()),
            pod: Some(pod.clone()),
            ..ClusterAccess::default()
        };
        let client = Client::new(&access).expect("valid");
        assert_eq!(client.pod_in("gpu"), Some(&pod));
        assert_eq!(client.pod_in("kube-system"), None);
    }
}
