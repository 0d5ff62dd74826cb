//! Scheduling cycle for one pod with an extender, as in kube-scheduler: filter, prioritize, bind.
//!
//! The extender is called as with `nodeCacheCapable`: with the names of nodes. Not modelled: the plugins of
//! kube-scheduler (so every node is a candidate, and only the extender's scores decide), sampling of nodes, preemption
//! and queues.

use std::{collections::BTreeMap, net::SocketAddr};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinSet};

/// Scheduler that calls one extender over one connection.
#[derive(Debug)]
pub struct Scheduler {
    extender: SocketAddr,
    nodes: Vec<String>,
    sender: Option<SendRequest<Full<Bytes>>>,
    connection: JoinSet<()>,
}

/// Outcome of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CycleOutcome {
    /// The extender has bound the pod.
    Bound {
        /// Name of its node.
        node: String,
    },
    /// No node passes the filter.
    Unschedulable {
        /// Text of the event `FailedScheduling`.
        message: String,
    },
}

/// Error of a cycle. kube-scheduler would retry.
#[derive(Debug, thiserror::Error)]
pub enum CycleError {
    /// The extender cannot be reached, or closed the connection.
    #[error("the extender at {address} does not answer")]
    Unreachable {
        /// Its address.
        address: SocketAddr,
        /// Reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The extender returned an error or an invalid document.
    #[error("{verb}: {reason}")]
    Refused {
        /// Verb of the request.
        verb: &'static str,
        /// Reason.
        reason: String,
    },
}

/// Response of filter. An extender in Go omits empty lists or writes them as null.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FilterResponse {
    node_names: Option<Vec<String>>,
    failed_nodes: Option<BTreeMap<String, String>>,
    failed_and_unresolvable_nodes: Option<BTreeMap<String, String>>,
    #[serde(default)]
    error: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostPriority {
    host: String,
    score: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BindResult {
    #[serde(default)]
    error: String,
}

// === impl Scheduler ===

impl Scheduler {
    /// Creates a scheduler for these nodes.
    pub fn new(extender: SocketAddr, nodes: Vec<String>) -> Self {
        Self { extender, nodes, sender: None, connection: JoinSet::new() }
    }

    /// Switches to another extender, and closes the connection to the current one.
    pub fn switch_to(&mut self, extender: SocketAddr) {
        self.extender = extender;
        self.disconnect();
    }

    /// Finds a node for the pod, and lets the extender bind it.
    ///
    /// # Errors
    ///
    /// The extender is unreachable, or answers with an error.
    pub async fn schedule(&mut self, pod: &Pod) -> Result<CycleOutcome, CycleError> {
        let args = json!({"Pod": pod, "Nodes": null, "NodeNames": self.nodes});
        let filter_response: FilterResponse = self.call("filter", &args).await?;
        check_error("filter", &filter_response.error)?;
        let candidates = filter_response.node_names.unwrap_or_default();
        // kube-scheduler does not prioritize a single candidate.
        let node = match candidates.as_slice() {
            [] => {
                let reasons =
                    [filter_response.failed_nodes, filter_response.failed_and_unresolvable_nodes];
                let reasons = reasons.into_iter().flatten().flatten().map(|(_, reason)| reason);
                return Ok(CycleOutcome::Unschedulable {
                    message: message(self.nodes.len(), reasons),
                });
            }
            [node] => node.clone(),
            _ => {
                let args = json!({"Pod": pod, "Nodes": null, "NodeNames": candidates});
                let scores: Vec<HostPriority> = self.call("prioritize", &args).await?;
                let best_score = scores.into_iter().max_by_key(|score| score.score);
                best_score.map_or_else(|| candidates[0].clone(), |best_score| best_score.host)
            }
        };
        let metadata = &pod.metadata;
        let args = json!({
            "PodName": metadata.name, "PodNamespace": metadata.namespace, "PodUID": metadata.uid, "Node": node,
        });
        let bind_result: BindResult = self.call("bind", &args).await?;
        check_error("bind", &bind_result.error)?;
        Ok(CycleOutcome::Bound { node })
    }

    async fn call<T: DeserializeOwned>(
        &mut self,
        verb: &'static str,
        args: &Value,
    ) -> Result<T, CycleError> {
        let response = self.post(verb, args).await;
        let (status, body) = response.map_err(|source| {
            self.disconnect();
            CycleError::Unreachable { address: self.extender, source }
        })?;
        let refusal_error = |problem| CycleError::Refused { verb, reason: problem };
        if status != StatusCode::OK {
            let text = String::from_utf8_lossy(&body);
            return Err(refusal_error(format!("{status}: {text}")));
        }
        serde_json::from_slice(&body).map_err(|error| refusal_error(error.to_string()))
    }

    async fn post(
        &mut self,
        verb: &str,
        args: &Value,
    ) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let sender = match &mut self.sender {
            Some(sender) => sender,
            unconnected => {
                let stream = TcpStream::connect(self.extender).await?;
                stream.set_nodelay(true)?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
                self.connection.spawn(async move { drop(connection.await) });
                unconnected.insert(sender)
            }
        };
        sender.ready().await?;
        let request = Request::post(format!("/{verb}"))
            .header(header::HOST, self.extender.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(args.to_string()))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    fn disconnect(&mut self) {
        self.sender = None;
        self.connection.abort_all();
    }
}

fn check_error(verb: &'static str, error: &str) -> Result<(), CycleError> {
    if error.is_empty() {
        return Ok(());
    }
    Err(CycleError::Refused { verb, reason: error.to_owned() })
}

/// Message with the number of nodes by reason: `0/3 nodes are available: 1 no GPU, 2 too small.`
fn message(nodes: usize, reasons: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut clauses: Vec<_> =
        counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    clauses.sort();
    format!("0/{nodes} nodes are available: {}.", clauses.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reasons_are_counted_as_kube_scheduler_does() {
        let reasons = ["too small", "no GPU", "too small"].map(str::to_owned);
        let text = message(3, reasons.into_iter());
        assert_eq!(text, "0/3 nodes are available: 1 no GPU, 2 too small.");
    }
}
