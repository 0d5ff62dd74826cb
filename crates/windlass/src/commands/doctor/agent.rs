//! The agent on this node: is it ready, and does it serve its sockets?

use std::{path::Path, time::Duration};

use tokio::time::timeout;
use windlass_config::Config;
use windlass_core::finding::{Finding, Severity};
use windlass_kubelet_api::{deviceplugin::PLUGIN_DIR, pluginregistration::REGISTRY_DIR};
use windlass_node::{Probe, probe_agent};

use super::kubelet;

const AREA: &str = "agent";
/// Time for an answer.
const LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn check(config: &Config, socket: Option<&Path>) -> Vec<Finding> {
    let mut findings = sockets(&config.places.kubelet_dir).await;
    let readiness = match socket {
        None => {
            Finding::skipped(AREA, "readiness", "--probe-socket names the socket of its probes")
        }
        Some(socket) => readiness(socket).await,
    };
    if findings.is_empty() && readiness.severity == Severity::Skipped {
        findings.push(
            Finding::warning(AREA, "plugins", "no agent serves this node, or it offers nothing")
                .remedy("start it: `windlass node`, or the DaemonSet (docs/install.md)"),
        );
    }
    findings.push(readiness);
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

/// Sockets of our plugins and claim drivers. One on which nobody answers is that of an agent that is gone.
async fn sockets(kubelet_dir: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in [PLUGIN_DIR, REGISTRY_DIR] {
        let folder = kubelet_dir.join(folder);
        for name in kubelet::sockets(&folder).into_iter().filter(|name| name.contains("windlass")) {
            let subject = format!("plugin {name}");
            findings.push(match super::socket::connect(&folder.join(&name)).await {
                Ok(()) => Finding::ok(AREA, subject, "serves"),
                Err(error) => Finding::problem(AREA, subject, error.to_string())
                    .remedy("the agent that made it is gone or hangs: start it anew"),
            });
        }
    }
    findings
}
