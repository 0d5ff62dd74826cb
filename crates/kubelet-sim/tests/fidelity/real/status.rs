//! Status of pods from the kubelet's read-only port, and the node's counts from the kubelet's log.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::super::node::Outcome;

/// Status of a pod.
pub(super) struct PodStatus(Value);

/// The status of the pod with this UID, if the kubelet knows it.
pub(super) async fn of(uid: &str) -> Option<PodStatus> {
    let pods = pods().await?;
    let mut pods = pods["items"].as_array()?.iter();
    let pod = pods.find(|pod| pod["metadata"]["uid"] == uid)?;
    Some(PodStatus(pod["status"].clone()))
}

/// All pods that the kubelet knows. In HTTP 1.0, the end of the connection marks the end of the answer.
async fn pods() -> Option<Value> {
    let mut stream = TcpStream::connect("127.0.0.1:10255").await.ok()?;
    stream.write_all(b"GET /pods HTTP/1.0\r\n\r\n").await.ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.ok()?;
    let (_, body) = response.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

// === impl PodStatus ===

impl PodStatus {
    /// Outcome of the pod; `None` while its containers are being started.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if self.0["phase"] == "Failed" {
            let (reason, message) = (text(&self.0["reason"]), text(&self.0["message"]));
            return Some(Outcome::Rejected { reason, message });
        }
        let failed_start = self.containers().find_map(|container| {
            let waiting = &container["state"]["waiting"];
            let (reason, message) = (text(&waiting["reason"]), text(&waiting["message"]));
            let container = text(&container["name"]);
            reason.ends_with("Error").then_some(Outcome::Waiting { container, reason, message })
        });
        let app_containers = self.0["containerStatuses"].as_array().into_iter().flatten();
        let mut running = app_containers.map(|app| app["state"]["running"].is_object()).peekable();
        let all_run = running.peek().is_some() && running.all(|is_running| is_running);
        failed_start.or(all_run.then_some(Outcome::Running))
    }

    /// True if the container runs and was restarted.
    pub(super) fn is_restarted(&self, container: &str) -> bool {
        self.container(container).is_some_and(|status| {
            status["restartCount"] != 0 && status["state"]["running"].is_object()
        })
    }

    /// `allocatedResourcesStatus` of a container, as sorted lines `resource id health`.
    pub(super) fn health(&self, container: &str) -> Vec<String> {
        let status = self.container(container).map(|status| &status["allocatedResourcesStatus"]);
        let resources = status.and_then(Value::as_array).into_iter().flatten();
        let mut lines: Vec<_> = resources.flat_map(lines).collect();
        lines.sort();
        lines
    }

    fn container(&self, name: &str) -> Option<&Value> {
        self.containers().find(|container| container["name"] == name)
    }

    fn containers(&self) -> impl Iterator<Item = &Value> {
        let kinds = ["initContainerStatuses", "containerStatuses"];
        kinds.into_iter().flat_map(|kind| self.0[kind].as_array().into_iter().flatten())
    }
}

fn lines(resource: &Value) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let devices = resource["resources"].as_array().into_iter().flatten();
    let line = |device: &Value| {
        format!(
            "{} {} {}",
            word(&resource["name"]),
            word(&device["resourceID"]),
            word(&device["health"])
        )
    };
    devices.map(line).collect()
}

/// `(capacity, allocatable)` by resource, from the kubelet's log. The log has allocatable only where it
/// differs from capacity.
pub(super) fn counts(log: &str) -> BTreeMap<String, (u64, u64)> {
    let mut counts = BTreeMap::<String, (u64, u64)>::new();
    for line in log.lines() {
        if line.contains("\"Updated capacity for device plugin\"")
            && let (Some(resource), Some(count)) = (field(line, "plugin"), field(line, "capacity"))
        {
            let count = count.parse().expect("a number");
            counts.insert(resource.to_owned(), (count, count));
        }
        if line.contains("\"Updated allocatable\"")
            && let (Some(resource), Some(count)) =
                (field(line, "device"), field(line, "allocatable"))
        {
            let count = count.parse().expect("a number");
            counts.entry(resource.to_owned()).or_default().1 = count;
        }
    }
    counts
}

/// The value of `name=value` or `name="value"` in a line.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!(" {name}="))?;
    Some(rest.split_whitespace().next()?.trim_matches('"'))
}
