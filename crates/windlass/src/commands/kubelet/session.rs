//! Interactive commands of the embedded kubelet.

use std::time::Duration;

use anyhow::Result;
use windlass_host::causes;
use windlass_kubelet_sim::{
    Admission, Kubelet, NodeStatus, PluginStatus, Pod, PodPhase, Rejection,
};

use super::pod_argument;
use crate::screen::{Table, print_line};

pub(super) struct Session<'a> {
    kubelet: &'a Kubelet,
}

/// Effect of a command on the session.
pub(super) enum Flow {
    Continue,
    End,
}

const HELP: &str = "\
run NAME RESOURCE=N [RESOURCE=N ...]   admit a pod with one container
delete NAME                            delete a pod
pods                                   list pods and what they hold
resources                              list resources, devices and health
restart                                restart the kubelet
quit                                   end the kubelet";

// === impl Session ===

impl<'a> Session<'a> {
    pub(super) fn new(kubelet: &'a Kubelet) -> Self {
        Self { kubelet }
    }

    /// Admits a pod once its resources have enough allocatable devices.
    pub(super) async fn admit_when_possible(&mut self, pod: Pod, limit: Duration) -> Result<()> {
        let limits: Vec<_> =
            pod.containers.iter().flat_map(|container| container.limits.clone()).collect();
        let has_enough = |status: &NodeStatus| {
            limits.iter().all(|(resource, count)| {
                let allocatable = status.counts(resource).map_or(0, |(_, allocatable)| allocatable);
                allocatable as u64 >= *count
            })
        };
        if self.kubelet.wait_for(has_enough, limit).await.is_err() {
            print_line(format!("! pod {}: not enough devices within {limit:?}", pod.name))?;
        }
        self.admit(pod).await
    }

    /// Executes one line. Errors are printed, and the session continues.
    pub(super) async fn execute(&mut self, text: &str) -> Result<Flow> {
        let words: Vec<_> = text.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            ["quit" | "exit"] => return Ok(Flow::End),
            ["help"] => print_line(HELP)?,
            ["run", name, limits @ ..] if !limits.is_empty() => {
                match pod_argument::pod(name, limits.iter().copied()) {
                    Ok(pod) => self.admit(pod).await?,
                    Err(error) => print_line(format!("! {error:#}"))?,
                }
            }
            ["delete", name] => self.delete(name).await?,
            ["pods"] => self.pods()?,
            ["resources"] => self.resources()?,
            ["restart"] => match self.kubelet.restart().await {
                Ok(()) => print_line("kubelet restarted")?,
                Err(error) => print_line(format!("! {}", causes(&error)))?,
            },
            _ => print_line(format!("! unknown command: {text}\n{HELP}"))?,
        }
        Ok(Flow::Continue)
    }

    async fn admit(&mut self, pod: Pod) -> Result<()> {
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        match self.kubelet.admit(pod).await {
            Ok(admission) => {
                print_admission(&name, &admission)?;
                if let Err(error) = self.kubelet.start_container(&uid, "main").await {
                    print_line(format!("! pod {name} does not start: {}", causes(&error)))?;
                }
            }
            Err(Rejection { reason, message }) => {
                // The kubelet's message repeats the beginning of this line.
                let message = message.strip_prefix("Pod was rejected: ").unwrap_or(&message);
                print_line(format!("! pod {name} was rejected: {reason}: {message}"))?;
            }
        }
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let node = self.kubelet.status();
        match node.pods.iter().find(|(_, pod)| pod.name == name) {
            Some((uid, _)) => {
                self.kubelet.delete_pod(uid).await;
                print_line(format!("pod {name} deleted"))?;
            }
            None => print_line(format!("! there is no pod {name}"))?,
        }
        Ok(())
    }

    fn pods(&self) -> Result<()> {
        let mut table = Table::new(["POD", "PHASE", "CONTAINER", "RESOURCE", "DEVICES"]);
        for pod in self.kubelet.status().pods.values() {
            for (container, status) in &pod.containers {
                for (resource, devices) in &status.devices {
                    let ids: Vec<_> = devices.values().flatten().cloned().collect();
                    table.add_row([
                        pod.name.clone(),
                        phase(&pod.phase),
                        container.clone(),
                        resource.clone(),
                        ids.join(" "),
                    ]);
                }
            }
        }
        Ok(table.print()?)
    }

    fn resources(&self) -> Result<()> {
        let node = self.kubelet.status();
        let mut table = Table::new(["RESOURCE", "PLUGIN", "DEVICE", "HEALTH", "NUMA", "USE"]);
        for (resource, status) in &node.resources {
            let plugin = match node.plugins.get(resource) {
                Some(PluginStatus::Connected { .. }) => "connected",
                Some(PluginStatus::Stopped { .. }) | None => "gone",
            };
            for (id, device) in &status.devices {
                let numa = device.nodes().iter().map(ToString::to_string).collect::<Vec<_>>();
                let usage = if status.in_use.contains(id) { "in use" } else { "free" };
                table.add_row([
                    resource.clone(),
                    plugin.to_owned(),
                    id.clone(),
                    device.health.clone(),
                    numa.join(","),
                    usage.to_owned(),
                ]);
            }
        }
        Ok(table.print()?)
    }
}

fn print_admission(name: &str, admission: &Admission) -> Result<()> {
    print_line(format!("pod {name} admitted"))?;
    for container in &admission.containers {
        for (resource, allocation) in &container.resources {
            let ids = allocation.ids().into_iter().collect::<Vec<_>>().join(" ");
            print_line(format!("  {} gets {resource}: {ids}", container.name))?;
            let grant = &allocation.run_options;
            for (key, value) in &grant.envs {
                print_line(format!("    env    {key}={value}"))?;
            }
            for device in &grant.devices {
                let (path, host_path) = (&device.container_path, &device.host_path);
                print_line(format!(
                    "    device {path} (host {host_path}, {})",
                    device.permissions
                ))?;
            }
            for mount in &grant.mounts {
                print_line(format!(
                    "    mount  {} (host {})",
                    mount.container_path, mount.host_path
                ))?;
            }
            for cdi in &grant.cdi_devices {
                print_line(format!("    cdi    {cdi}"))?;
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
