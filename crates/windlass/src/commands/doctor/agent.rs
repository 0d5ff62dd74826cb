//! The agent on this node: is it ready, and does it serve its sockets?

use std::{os::unix::net::UnixStream, path::Path, time::Duration};

use tokio::time::timeout;
use windlass_config::Config;
use windlass_core::finding::Finding;
use windlass_node::{Probe, probe_agent};

use super::kubelet;

const AREA: &str = "agent";
/// Time for an answer.
const LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn check(config: &Config, socket: Option<&Path>) -> Vec<Finding> {
    let mut findings = sockets(&config.places.kubelet_dir.join("device-plugins"));
    findings.push(match socket {
        None => {
            Finding::skipped(AREA, "readiness", "--probe-socket names the socket of its probes")
        }
        Some(socket) => readiness(socket).await,
    });
    findings
}

async fn readiness(socket: &Path) -> Finding {
    const SUBJECT: &str = "readiness";
    match timeout(LIMIT, probe_agent(socket, Probe::Readiness)).await {
        Err(_) => Finding::problem(AREA, SUBJECT, format!("no answer within {LIMIT:?}"))
            .remedy("restart the agent; its pods keep their devices"),
        Ok(Err(error)) => Finding::problem(AREA, SUBJECT, windlass_host::causes(&error))
            .remedy("start the agent, or name its socket"),
        Ok(Ok(answer)) => {
            let report = answer.report.trim_end().replace('\n', "; ");
            if answer.is_ok {
                Finding::ok(AREA, SUBJECT, report)
            } else {
                Finding::problem(AREA, SUBJECT, report)
                    .remedy("docs/troubleshooting.md has each reason; the agent's log says more")
            }
        }
    }
}

/// Sockets of our plugins on which nobody answers are those of an agent that is gone.
fn sockets(plugins: &Path) -> Vec<Finding> {
    let mut names = kubelet::sockets(plugins);
    names.retain(|name| name.starts_with("windlass-"));
    if names.is_empty() {
        let finding = Finding::problem(AREA, "plugins", "no agent serves this node");
        return vec![
            finding.remedy("start it: `windlass node`, or the DaemonSet (docs/install.md)"),
        ];
    }
    let finding = |name: String| match UnixStream::connect(plugins.join(&name)) {
        Ok(_) => Finding::ok(AREA, format!("plugin {name}"), "serves"),
        Err(error) => Finding::problem(AREA, format!("plugin {name}"), error.to_string())
            .remedy("the agent that made it is gone: start it"),
    };
    names.into_iter().map(finding).collect()
}
