//! Diagnosis of a cluster (`windlass cluster doctor`): agents, nodes, slices, claims, extender, and pending pods.

mod nodes;
mod pods;
mod slices;
mod workloads;

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Event,
};
use kube::{Api, api::ListParams};
use windlass_core::finding::{Finding, Severity};

use crate::{
    access::{self, NoAccess},
    labels,
    objects::Objects,
};

/// Input of all checks.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Objects that placement reads.
    pub objects: Objects,
    /// Agents and the cluster half; `None` for a recording, or if they could not be listed.
    pub workloads: Option<Workloads>,
    /// Findings about the API server, from reading the cluster.
    findings: Vec<Finding>,
}

/// Workloads of Windlass.
#[derive(Clone, Debug, Default)]
pub struct Workloads {
    /// Agents.
    pub daemon_sets: Vec<DaemonSet>,
    /// The cluster half.
    pub deployments: Vec<Deployment>,
    /// Reasons for which the API server refused an agent's pod, such as Pod Security, by `namespace/name` of the
    /// `DaemonSet`.
    pub refused_pods: BTreeMap<String, String>,
}

const AREA: &str = "API server";

// === impl Evidence ===

impl Evidence {
    /// Evidence from a recording, which has no workloads.
    pub fn recorded(objects: Objects) -> Self {
        Self { objects, ..Self::default() }
    }

    /// Reads the cluster. A failed read becomes a finding.
    ///
    /// # Errors
    ///
    /// No credentials.
    pub async fn fetch(kubeconfig: Option<PathBuf>) -> Result<Self, NoAccess> {
        let client = access::client(kubeconfig).await?;
        let mut findings = Vec::new();
        match client.apiserver_version().await {
            Ok(version) => findings.push(Finding::ok(AREA, "version", version.git_version)),
            Err(error) => {
                let reason = windlass_host::causes(&error);
                findings.push(Finding::problem(AREA, "version", reason).with_remedy(
                    "`kubectl version` should answer: check the kubeconfig and the network",
                ));
                return Ok(Self { findings, ..Self::default() });
            }
        }
        let objects = match Objects::of(client.clone()).await {
            Ok(objects) => objects,
            Err(error) => {
                let reason = windlass_host::causes(&error);
                findings.push(Finding::problem(AREA, "objects", reason).with_remedy(
                    "an account that may list nodes, pods and resource.k8s.io is needed",
                ));
                Objects::default()
            }
        };
        let workloads =
            match workloads(client).await {
                Ok(workloads) => Some(workloads),
                Err(error) => {
                    let reason = windlass_host::causes(&error);
                    findings.push(Finding::warning(AREA, "workloads", reason).with_remedy(
                        "an account that may list daemonsets and deployments is needed",
                    ));
                    None
                }
            };
        Ok(Self { objects, workloads, findings })
    }

    /// Runs all checks. If reading the cluster found a problem, returns only the findings about the API server.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.findings.clone();
        if findings.iter().any(|finding| finding.severity == Severity::Problem) {
            return findings;
        }
        findings.extend(workloads::check(self.workloads.as_ref(), &self.objects));
        findings.extend(slices::check(&self.objects));
        let mut index = self.objects.to_index();
        findings.extend(nodes::check(&mut index));
        findings.extend(pods::check(&mut index));
        findings
    }
}

async fn workloads(client: kube::Client) -> kube::Result<Workloads> {
    let selector = ListParams::default().labels(&labels::windlass_selector());
    let daemon_sets: Api<DaemonSet> = Api::all(client.clone());
    let deployments: Api<Deployment> = Api::all(client.clone());
    Ok(Workloads {
        daemon_sets: daemon_sets.list(&selector).await?.items,
        deployments: deployments.list(&selector).await?.items,
        refused_pods: refused_pods(client).await,
    })
}

/// Messages of the events about pods that `DaemonSet`s could not create. Empty without the right to list events: the
/// finding then refers to `kubectl describe`.
async fn refused_pods(client: kube::Client) -> BTreeMap<String, String> {
    let selector =
        ListParams::default().fields("involvedObject.kind=DaemonSet,reason=FailedCreate");
    let events = Api::<Event>::all(client).list(&selector).await;
    let messages = events.into_iter().flatten().filter_map(|event| {
        let object = event.involved_object;
        let name = format!("{}/{}", object.namespace?, object.name?);
        let message = event.message?;
        // Repeated events have another text before it.
        let reason = message.split_once("Error creating: ").map(|(_, reason)| reason.to_owned());
        Some((name, reason.unwrap_or(message)))
    });
    messages.collect()
}

#[cfg(test)]
mod tests;
