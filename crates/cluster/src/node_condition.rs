//! A condition in the status of this node's Node object.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_host::{causes, clock::Clock, deadline, or_pending, watch::changed};

use super::{Client, ClusterError, request_backoff::RequestBackoff};

/// Content of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Status of the condition.
    pub status: ConditionStatus,
    /// Reason as one word, in camel case.
    pub reason: &'static str,
    /// Reason for people, with the remedy.
    pub message: String,
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition applies to the node.
    True,
    /// The condition does not apply to the node.
    False,
    /// The status is not known.
    Unknown,
}

/// The condition and its writer.
pub struct ConditionWriter {
    /// Type of the condition.
    pub kind: &'static str,
    /// Content of the condition; `None` until it is known.
    pub condition: watch::Receiver<Option<Arc<NodeCondition>>>,
    /// Content that the agent writes when it stops.
    pub final_condition: NodeCondition,
    /// Access to the API server.
    pub client: Client,
    /// Time of changes.
    pub clock: Clock,
}

/// Field manager of conditions. It differs from the manager of labels, because an apply removes the manager's fields
/// that it does not contain.
const CONDITION_MANAGER: &str = "windlass-conditions";

/// Deadline of the last write, shorter than the agent's deadline for the end of its tasks.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// The condition of the last write.
struct LastWrite {
    condition: Arc<NodeCondition>,
    /// Time of the change. Later writes of the same condition repeat this time, so they change nothing.
    last_transition: Timestamp,
    /// Time of the next write of an unchanged condition.
    next_write: Instant,
}

// === impl ConditionWriter ===

impl ConditionWriter {
    /// Writes the condition and keeps it up to date until `stop`. Then writes `final_condition`, unless there was no
    /// condition.
    ///
    /// # Flow
    ///
    /// The condition is applied server-side when it changes, and every
    /// [`ClientTimeouts::apply_interval`](super::ClientTimeouts), in case the Node was recreated. Other conditions are
    /// unchanged. A killed agent leaves its condition as it is.
    pub async fn run(self, stop: CancellationToken) {
        let mut backoff = RequestBackoff::new("condition of the Node", &self.client);
        let mut condition = self.condition.clone();
        let writes = Box::pin(self.write_changes(&mut condition, &mut backoff));
        stop.run_until_cancelled(writes).await;
        if self.condition.borrow().is_none() {
            return;
        }
        let final_write = Box::pin(self.write(&self.final_condition, self.clock.now()));
        let error = match deadline::timeout(FINAL_WRITE_TIMEOUT, final_write).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => causes(&error),
            Err(_) => format!("no answer within {FINAL_WRITE_TIMEOUT:?}"),
        };
        tracing::warn!(condition = self.kind, error, "condition of the Node stays as it was");
    }

    async fn write_changes(
        &self,
        condition: &mut watch::Receiver<Option<Arc<NodeCondition>>>,
        backoff: &mut RequestBackoff,
    ) {
        let mut written: Option<LastWrite> = None;
        loop {
            let desired = condition.borrow_and_update().clone();
            let unchanged =
                written.as_ref().filter(|write| Some(&write.condition) == desired.as_ref());
            let is_due = unchanged.is_none_or(|write| write.next_write <= Instant::now());
            if let Some(desired) = desired.filter(|_| is_due) {
                let last_transition =
                    unchanged.map_or_else(|| self.clock.now(), |write| write.last_transition);
                if let Err(error) = self.write(&desired, last_transition).await {
                    sleep(backoff.record_failure(&error)).await;
                    continue;
                }
                backoff.record_success();
                if unchanged.is_none() {
                    let NodeCondition { status, reason, message } = &*desired;
                    tracing::info!(
                        condition = self.kind,
                        ?status,
                        reason,
                        message,
                        "condition of the Node written"
                    );
                }
                let next_write = Instant::now() + self.client.timeouts().apply_interval;
                written = Some(LastWrite { condition: desired, last_transition, next_write });
            }
            let next_write = written.as_ref().map(|written| written.next_write);
            tokio::select! {
                () = changed(condition) => {}
                () = or_pending(next_write.map(sleep_until)) => {}
            }
        }
    }

    async fn write(
        &self,
        condition: &NodeCondition,
        changed_at: Timestamp,
    ) -> Result<(), ClusterError> {
        let connection = self.client.connect().await?;
        let name = self.client.node();
        // Only the conditions are read: a deserialiser for a whole Node would add 0.1 MB of code.
        let kind = ApiResource::erase::<Node>(&());
        let nodes: Api<DynamicObject> = Api::all_with(connection.kube.clone(), &kind);
        let context = || format!("cannot read Node {name}");
        let node = connection.call(context, nodes.get(name)).await?;
        let document = self.document(&node, condition, changed_at);
        // The agent owns the condition: it overwrites changes by others.
        let params = PatchParams::apply(CONDITION_MANAGER).force();
        let patch = Patch::Apply(&document);
        let context = || format!("cannot write the status of Node {name}");
        connection.call(context, nodes.patch_status(name, &params, &patch)).await.map(drop)
    }

    /// The document to apply. It has the UID, so the API server does not create a missing Node.
    fn document(
        &self,
        node: &DynamicObject,
        condition: &NodeCondition,
        changed_at: Timestamp,
    ) -> Value {
        let status = condition.status.as_str();
        let mut conditions = node.data["status"]["conditions"].as_array().into_iter().flatten();
        let previous = conditions
            .find(|condition| condition["type"] == self.kind && condition["status"] == status);
        let last_transition =
            previous.and_then(|condition| condition["lastTransitionTime"].as_str()?.parse().ok());
        let last_transition = last_transition.unwrap_or(changed_at);
        let time = |timestamp: Timestamp| timestamp.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.client.node(), "uid": node.metadata.uid},
            "status": {"conditions": [{
                "type": self.kind,
                "status": status,
                "reason": condition.reason,
                "message": condition.message,
                "lastHeartbeatTime": time(changed_at),
                "lastTransitionTime": time(last_transition),
            }]},
        })
    }
}

impl std::fmt::Debug for ConditionWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConditionWriter").field("kind", &self.kind).finish_non_exhaustive()
    }
}

// === impl ConditionStatus ===

impl ConditionStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}
