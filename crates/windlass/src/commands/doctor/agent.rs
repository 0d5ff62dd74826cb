//! Checks of the agent on this node: its readiness, and the sockets that it serves.

use std::{path::Path, time::Duration};

use tokio::time::timeout;
use windlass_config::Config;
use windlass_core::finding::{Finding, Severity};
use windlass_kubelet_api::{deviceplugin::PLUGIN_DIR, pluginregistration::REGISTRY_DIR};
use windlass_node::{Probe, probe_agent};

use super::kubelet;

const AREA: &str = "agent";
/// Time limit for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn check(config: &Config, socket: Option<&Path>) -> Vec<Finding> {
    let mut findings = sockets(&config.places.kubelet_dir).await;
    let readiness = match socket {
        None => {
            Finding::skipped(AREA, "readiness", "give the agent's probe socket with --probe-socket")
        }
        Some(socket) => readiness(socket).await,
    };
    if findings.is_empty() && readiness.severity == Severity::Skipped {
        findings.push(
            Finding::warning(AREA, "plugins", "no agent serves this node, or it offers nothing")
                .with_remedy("start it: `windlass node`, or the DaemonSet (docs/install.md)"),
        );
    }
    findings.push(readiness);
    findings
}

async fn readiness(socket: &Path) -> Finding {
    const SUBJECT: &str = "readiness";
    match timeout(ANSWER_LIMIT, probe_agent(socket, Probe::Readiness)).await {
        Err(_) => Finding::problem(AREA, SUBJECT, format!("no answer within {ANSWER_LIMIT:?}"))
            .with_remedy("restart the agent; its pods keep their devices"),
        Ok(Err(error)) => Finding::problem(AREA, SUBJECT, windlass_host::causes(&error))
            .with_remedy("start the agent, or name its socket"),
        Ok(Ok(answer)) => {
            let report = answer.report.trim_end().replace('\n', "; ");
            if answer.is_ok {
                Finding::ok(AREA, SUBJECT, report)
            } else {
                Finding::problem(AREA, SUBJECT, report).with_remedy(
                    "docs/troubleshooting.md has each reason; the agent's log says more",
                )
            }
        }
    }
}

/// Checks the sockets of Windlass's device plugins and DRA driver. A socket that accepts no connection is a problem.
async fn sockets(kubelet_dir: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in [PLUGIN_DIR, REGISTRY_DIR] {
        let folder = kubelet_dir.join(folder);
        for name in kubelet::sockets(&folder).into_iter().filter(|name| name.contains("windlass")) {
            let subject = format!("plugin {name}");
            findings.push(match super::socket::connect(&folder.join(&name)).await {
                Ok(()) => Finding::ok(AREA, subject, "serves"),
                Err(error) => Finding::problem(AREA, subject, error.to_string())
                    .with_remedy("the agent that created it has ended or hangs: restart it"),
            });
        }
    }
    findings
}
