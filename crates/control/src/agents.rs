//! Client for the nodes' agents, through the API server's pod proxy.

use std::{path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use tokio::time::timeout;

use crate::{
    access::{self, NoAccess},
    labels,
};

/// Deadline of each request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Access to the agents of a cluster.
#[expect(missing_debug_implementations, reason = "a client of kube has none")]
#[derive(Clone)]
pub struct AgentClient {
    client: Client,
    namespace: String,
}

/// Reason why a request to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No agent runs on the node.
    #[error(
        "no agent of Windlass runs on node {node} in namespace {namespace}: `windlass cluster doctor` has the reason"
    )]
    NoAgent {
        /// The node.
        node: String,
        /// The namespace that was searched.
        namespace: String,
    },
    /// The agent's pod has no port named `http`.
    #[error("the agent {0} has no port named http: give it --listen and the port")]
    NoPort(String),
    /// The user lacks the right to get `pods/proxy`.
    #[error("may not ask the agent {0}: the right to get pods/proxy is needed")]
    Forbidden(String, #[source] Box<kube::Error>),
    /// The API server cannot reach the pod, or the agent refuses.
    #[error(
        "the API server could not ask the agent {0}: is it ready, and does a network policy admit the API server to its \
         port?"
    )]
    Unreachable(String, #[source] Box<kube::Error>),
    /// The agent did not answer in time.
    #[error("the agent {0} did not answer within {REQUEST_TIMEOUT:?}")]
    RequestTimedOut(String),
    /// The API server did not list pods in time.
    #[error("the API server did not list the agents within {REQUEST_TIMEOUT:?}")]
    ListTimedOut,
    /// Pods cannot be listed.
    #[error("cannot list the agents")]
    List(#[source] Box<kube::Error>),
    /// The node's name is invalid.
    #[error("{0:?} is not a valid node name")]
    InvalidNode(String),
}

// === impl AgentClient ===

impl AgentClient {
    /// Connects with this kubeconfig; `None` searches for credentials as kubectl does.
    ///
    /// # Errors
    ///
    /// No credentials.
    pub async fn connect(kubeconfig: Option<PathBuf>, namespace: &str) -> Result<Self, NoAccess> {
        let mut config = access::load_kube_config(kubeconfig).await?;
        // The user must see that an agent is not ready. With kube's retries the request would end at the deadline.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(access::no_access)?;
        Ok(Self::new(client, namespace))
    }

    /// Agents of one namespace. In other namespaces any user could label a pod as an agent.
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// The state document of a node's agent, as JSON.
    ///
    /// # Errors
    ///
    /// The node has no agent, or the agent cannot be reached.
    pub async fn state(&self, node: &str) -> Result<String, AgentError> {
        let is_valid = |it: char| it.is_ascii_alphanumeric() || "-.".contains(it);
        if node.is_empty() || !node.chars().all(is_valid) {
            return Err(AgentError::InvalidNode(node.to_owned()));
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let parameters = ListParams::default()
            .labels(&labels::agent_selector())
            .fields(&format!("spec.nodeName={node}"));
        let list = timeout(REQUEST_TIMEOUT, pods.list(&parameters))
            .await
            .map_err(|_| AgentError::ListTimedOut)?;
        let list = list.map_err(|error| AgentError::List(Box::new(error)))?;
        let is_running = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
        };
        let pod = list.items.into_iter().find(is_running);
        let pod = pod.ok_or_else(|| {
            let (node, namespace) = (node.to_owned(), self.namespace.clone());
            AgentError::NoAgent { node, namespace }
        })?;
        let name = pod.metadata.name.clone().unwrap_or_default();
        let port = http_port(&pod).ok_or_else(|| AgentError::NoPort(name.clone()))?;
        let namespace = &self.namespace;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/page/state");
        let request =
            http::Request::get(path).body(Vec::new()).expect("Kubernetes names are valid in a URI");
        match timeout(REQUEST_TIMEOUT, self.client.request_text(request)).await {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(error)) if is_forbidden(&error) => {
                Err(AgentError::Forbidden(name, Box::new(error)))
            }
            Ok(Err(error)) => Err(AgentError::Unreachable(name, Box::new(error))),
            Err(_) => Err(AgentError::RequestTimedOut(name)),
        }
    }
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

fn http_port(pod: &Pod) -> Option<i32> {
    let containers = pod.spec.as_ref()?.containers.iter();
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.find(|port| port.name.as_deref() == Some("http")).map(|port| port.container_port)
}
