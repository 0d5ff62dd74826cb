//! Shares of GPUs by amounts: names of their CDI documents, and the channel to the task that chooses their GPUs.

use std::collections::BTreeSet;

use tokio::sync::{mpsc, oneshot};
use windlass_core::{cdi::Kind, name::digest, resource::ResourceName};
use windlass_host::AGENT_ENDS;

/// CDI kind of shares.
pub const SHARE_KIND: Kind = Kind::new("share");

/// Sender of requests to bind a share to a GPU.
#[derive(Clone, Debug)]
pub struct ShareHandle(mpsc::Sender<BindRequest>);

/// Request to choose the GPUs of a share before its container starts.
#[derive(Debug)]
pub struct BindRequest {
    /// Resource of the ids.
    pub resource: ResourceName,
    /// Ids that the kubelet allocated to the container.
    pub ids: BTreeSet<String>,
    /// Channel of the outcome. The caller may have been cancelled.
    pub reply: oneshot::Sender<Result<(), String>>,
}

/// Capacity of the request channel: one start per container.
const MAX_REQUESTS: usize = 64;

/// Name of a share's CDI device. The order of the ids does not matter.
pub fn share_name<'a>(resource: &str, ids: impl IntoIterator<Item = &'a String>) -> String {
    let ids: BTreeSet<&str> = ids.into_iter().map(String::as_str).collect();
    let ids: Vec<_> = ids.into_iter().collect();
    format!("{:016x}", digest(&format!("{resource}={}", ids.join(","))))
}

// === impl ShareHandle ===

impl ShareHandle {
    /// Creates a handle and the receiver of its requests.
    pub fn new() -> (Self, mpsc::Receiver<BindRequest>) {
        let (sender, requests) = mpsc::channel(MAX_REQUESTS);
        (Self(sender), requests)
    }

    /// Binds a share. Returns once its CDI document is written, or with the reason why it cannot be bound.
    pub(crate) async fn bind(&self, resource: &ResourceName, ids: &[String]) -> Result<(), String> {
        let (reply, outcome) = oneshot::channel();
        let ids = ids.iter().cloned().collect();
        // A task that has ended drops the reply.
        let _ = self.0.send(BindRequest { resource: resource.clone(), ids, reply }).await;
        outcome.await.unwrap_or_else(|_| Err(AGENT_ENDS.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shares_name_depends_on_its_resource_and_ids_alone() {
        let name = |resource: &str, ids: &[&str]| {
            share_name(resource, &ids.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(name("a/b", &["1", "0"]), name("a/b", &["0", "1"]));
        assert_ne!(name("a/b", &["0", "1"]), name("a/c", &["0", "1"]));
        assert_ne!(name("a/b", &["0", "1"]), name("a/b", &["01"]));
    }
}
