//! What can be typed to the embedded kubelet.

use std::time::Duration;

use anyhow::Result;
use windlass_host::causes;
use windlass_kubelet_sim::{
    Admission, Kubelet, NodeStatus, Pod, PodPhase, Registration, Rejection,
};

use super::pod_argument;
use crate::screen::{Table, line};

/// A conversation with one kubelet.
pub(super) struct Session<'a> {
    kubelet: &'a Kubelet,
}

/// Whether the conversation goes on.
pub(super) enum Then {
    GoOn,
    End,
}

const HELP: &str = "\
run NAME RESOURCE=N [RESOURCE=N ...]   admit a pod with one container
delete NAME                            delete a pod
pods                                   list pods and what they hold
resources                              list resources, devices and health
restart                                restart the kubelet
quit                                   end";

// === impl Session ===

impl<'a> Session<'a> {
    pub(super) fn new(kubelet: &'a Kubelet) -> Self {
        Self { kubelet }
    }

    /// Admits a pod once each of its resources has that many allocatable devices.
    pub(super) async fn admit_when_possible(&mut self, pod: Pod, limit: Duration) -> Result<()> {
        let wanted: Vec<_> = pod.containers.iter().flat_map(|one| one.limits.clone()).collect();
        let enough = |status: &NodeStatus| {
            wanted.iter().all(|(resource, count)| {
                let allocatable = status.counts(resource).map_or(0, |(_, allocatable)| allocatable);
                allocatable as u64 >= *count
            })
        };
        if self.kubelet.wait_for(enough, limit).await.is_err() {
            line(format!("! pod {}: its resources did not come within {limit:?}", pod.name))?;
        }
        self.admit(pod).await
    }

    /// Carries out one line. What is wrong is said, and the conversation goes on.
    pub(super) async fn carry_out(&mut self, text: &str) -> Result<Then> {
        let words: Vec<_> = text.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            ["quit" | "exit"] => return Ok(Then::End),
            ["help"] => line(HELP)?,
            ["run", name, limits @ ..] if !limits.is_empty() => {
                match pod_argument::pod(name, limits.iter().copied()) {
                    Ok(pod) => self.admit(pod).await?,
                    Err(error) => line(format!("! {error:#}"))?,
                }
            }
            ["delete", name] => self.delete(name).await?,
            ["pods"] => self.pods()?,
            ["resources"] => self.resources()?,
            ["restart"] => match self.kubelet.restart().await {
                Ok(()) => line("kubelet restarted")?,
                Err(error) => line(format!("! {}", causes(&error)))?,
            },
            _ => line(format!("! not understood: {text}\n{HELP}"))?,
        }
        Ok(Then::GoOn)
    }

    async fn admit(&mut self, pod: Pod) -> Result<()> {
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        match self.kubelet.admit(pod).await {
            Ok(admission) => {
                told(&name, &admission)?;
                if let Err(error) = self.kubelet.start_container(&uid, "main").await {
                    line(format!("! pod {name} does not start: {}", causes(&error)))?;
                }
            }
            Err(Rejection { reason, message }) => {
                // The kubelet's own message begins as this line does.
                let why = message.strip_prefix("Pod was rejected: ").unwrap_or(&message);
                line(format!("! pod {name} was rejected: {reason}: {why}"))?;
            }
        }
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let node = self.kubelet.node();
        match node.pods.iter().find(|(_, pod)| pod.name == name) {
            Some((uid, _)) => {
                self.kubelet.delete(uid).await;
                line(format!("pod {name} deleted"))?;
            }
            None => line(format!("! there is no pod {name}"))?,
        }
        Ok(())
    }

    fn pods(&self) -> Result<()> {
        let mut table = Table::new(["POD", "PHASE", "CONTAINER", "RESOURCE", "DEVICES"]);
        for pod in self.kubelet.node().pods.values() {
            for (container, status) in &pod.containers {
                for (resource, devices) in &status.devices {
                    let ids: Vec<_> = devices.values().flatten().cloned().collect();
                    table.row([
                        pod.name.clone(),
                        phase(&pod.phase),
                        container.clone(),
                        resource.clone(),
                        ids.join(" "),
                    ]);
                }
            }
        }
        Ok(table.lines("").into_iter().try_for_each(line)?)
    }

    fn resources(&self) -> Result<()> {
        let node = self.kubelet.node();
        let mut table = Table::new(["RESOURCE", "PLUGIN", "DEVICE", "HEALTH", "NUMA", "USE"]);
        for (resource, status) in &node.resources {
            let plugin = match node.registrations.get(resource) {
                Some(Registration::Connected { .. }) => "connected",
                Some(Registration::Stopped { .. }) | None => "gone",
            };
            for (id, device) in &status.devices {
                let numa = device.nodes().iter().map(ToString::to_string).collect::<Vec<_>>();
                let used = if status.in_use.contains(id) { "in use" } else { "free" };
                table.row([
                    resource.clone(),
                    plugin.to_owned(),
                    id.clone(),
                    device.health.clone(),
                    numa.join(","),
                    used.to_owned(),
                ]);
            }
        }
        Ok(table.lines("").into_iter().try_for_each(line)?)
    }
}

fn told(name: &str, admission: &Admission) -> Result<()> {
    line(format!("pod {name} admitted"))?;
    for container in &admission.containers {
        for (resource, allotment) in &container.resources {
            let ids = allotment.ids().into_iter().collect::<Vec<_>>().join(" ");
            line(format!("  {} gets {resource}: {ids}", container.name))?;
            let grant = &allotment.grant;
            for (key, value) in &grant.envs {
                line(format!("    env    {key}={value}"))?;
            }
            for device in &grant.devices {
                let (inside, host) = (&device.container_path, &device.host_path);
                line(format!("    device {inside} (host {host}, {})", device.permissions))?;
            }
            for mount in &grant.mounts {
                line(format!("    mount  {} (host {})", mount.container_path, mount.host_path))?;
            }
            for cdi in &grant.cdi_devices {
                line(format!("    cdi    {cdi}"))?;
            }
        }
    }
    Ok(())
}

fn phase(phase: &PodPhase) -> String {
    match phase {
        PodPhase::Pending => "Pending".to_owned(),
        PodPhase::Admitted => "Admitted".to_owned(),
        PodPhase::Succeeded => "Succeeded".to_owned(),
        PodPhase::Failed { reason, .. } => format!("Failed ({reason})"),
    }
}
