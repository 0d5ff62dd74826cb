//! Diagnosis of a cluster: agents, nodes, slices, claims, the cluster half, and pods that wait for devices.

mod nodes;
mod pods;
mod slices;
mod workloads;

use std::path::PathBuf;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::Api;
use windlass_core::finding::{Finding, Severity};

use crate::{
    access::{self, NoAccess},
    labels,
    objects::Objects,
};

/// Everything that the checks look at.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Objects that placement looks at.
    pub objects: Objects,
    /// Agents and the cluster half; `None` in a recording, or where they may not be listed.
    pub workloads: Option<Workloads>,
    /// Findings about the API server.
    findings: Vec<Finding>,
}

/// Objects by which agents and cluster half run.
#[derive(Clone, Debug, Default)]
pub struct Workloads {
    /// Agents.
    pub daemon_sets: Vec<DaemonSet>,
    /// The cluster half.
    pub deployments: Vec<Deployment>,
}

const AREA: &str = "API server";

// === impl Evidence ===

impl Evidence {
    /// Objects of a recording, without those that a recording lacks.
    pub fn recorded(objects: Objects) -> Self {
        Self { objects, ..Self::default() }
    }

    /// Reads the cluster. An object that cannot be read becomes a finding.
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
                let why = windlass_host::causes(&error);
                findings.push(Finding::problem(AREA, "version", why).remedy(
                    "`kubectl version` should answer: check the kubeconfig and the network",
                ));
                return Ok(Self { findings, ..Self::default() });
            }
        }
        let objects =
            match Objects::of(client.clone()).await {
                Ok(objects) => objects,
                Err(error) => {
                    let why = windlass_host::causes(&error);
                    findings.push(Finding::problem(AREA, "objects", why).remedy(
                        "an account that may list nodes, pods and resource.k8s.io is needed",
                    ));
                    Objects::default()
                }
            };
        let workloads = match workloads(client).await {
            Ok(workloads) => Some(workloads),
            Err(error) => {
                let why = windlass_host::causes(&error);
                findings.push(
                    Finding::warning(AREA, "workloads", why)
                        .remedy("an account that may list daemonsets and deployments is needed"),
                );
                None
            }
        };
        Ok(Self { objects, workloads, findings })
    }

    /// All findings.
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
    let ours = kube::api::ListParams::default().labels(&labels::all());
    let daemon_sets: Api<DaemonSet> = Api::all(client.clone());
    let deployments: Api<Deployment> = Api::all(client);
    Ok(Workloads {
        daemon_sets: daemon_sets.list(&ours).await?.items,
        deployments: deployments.list(&ours).await?.items,
    })
}

#[cfg(test)]
mod tests;
