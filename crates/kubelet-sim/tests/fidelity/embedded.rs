//! The embedded kubelet as a node.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use windlass_kubelet_sim::{Config, Health, InitRole, Kubelet, Pod, PodPhase, StartError};

use super::node::{Node, Outcome};

/// An embedded kubelet in its own folder, and the pods and environments that a container runtime knows.
pub(crate) struct Embedded {
    kubelet: Kubelet,
    /// Pods by name.
    pods: BTreeMap<String, Pod>,
    /// Environment variables by pod and container.
    environments: BTreeMap<(String, String), BTreeMap<String, String>>,
    dir: TempDir,
}

// === impl Embedded ===

impl Embedded {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let kubelet = Kubelet::start(Config::new(dir.path())).expect("started");
        Self { kubelet, pods: BTreeMap::new(), environments: BTreeMap::new(), dir }
    }

    /// Starts containers in their order up to the first failure, as a pod worker does.
    async fn start_containers(&mut self, pod: &Pod) -> Outcome {
        let init_containers =
            pod.init_containers.iter().map(|init| (&init.container, Some(init.role)));
        let app_containers = pod.containers.iter().map(|container| (container, None));
        for (container, role) in init_containers.chain(app_containers) {
            if let Err(outcome) = self.start_container(pod, &container.name).await {
                return outcome;
            }
            if role == Some(InitRole::RunsToCompletion) {
                self.kubelet.stop_container(&pod.uid, &container.name).await;
            }
        }
        Outcome::Running
    }

    async fn start_container(&mut self, pod: &Pod, container: &str) -> Result<(), Outcome> {
        match self.kubelet.start_container(&pod.uid, container).await {
            Ok(run_options) => {
                let key = (pod.name.clone(), container.to_owned());
                self.environments.insert(key, run_options.envs);
                Ok(())
            }
            Err(StartError::CreateContainerConfig(message)) => Err(Outcome::Waiting {
                container: container.to_owned(),
                reason: "CreateContainerConfigError".to_owned(),
                message,
            }),
            Err(error) => panic!("{error}"),
        }
    }

    fn pod(&self, name: &str) -> Pod {
        self.pods.get(name).expect("an earlier step runs the pod").clone()
    }
}

impl Node for Embedded {
    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn pod_name_suffix(&self) -> &'static str {
        ""
    }

    async fn run(&mut self, pod: &Pod) -> Outcome {
        self.pods.insert(pod.name.clone(), pod.clone());
        match self.kubelet.admit(pod.clone()).await {
            Ok(_) => self.start_containers(pod).await,
            Err(rejection) => Outcome::Rejected {
                reason: rejection.reason.to_string(),
                message: rejection.message,
            },
        }
    }

    async fn wait_for_recovery(&mut self, pod: &str) -> Outcome {
        let pod = self.pod(pod);
        self.start_containers(&pod).await
    }

    async fn restart_container(&mut self, pod: &str, container: &str) {
        let pod = self.pod(pod);
        self.kubelet.stop_container(&pod.uid, container).await;
        self.start_container(&pod, container).await.expect("started again");
    }

    async fn delete(&mut self, pod: &str) {
        let pod = self.pods.remove(pod).expect("an earlier step runs the pod");
        self.kubelet.delete_pod(&pod.uid).await;
    }

    async fn environment(&self, pod: &str, container: &str) -> BTreeMap<String, String> {
        let key = (pod.to_owned(), container.to_owned());
        self.environments.get(&key).cloned().unwrap_or_default()
    }

    async fn health(&self, pod: &str, container: &str) -> Vec<String> {
        let node = self.kubelet.status();
        let health = &node.pods[&self.pod(pod).uid].containers[container].health;
        let lines = health.iter().flat_map(|(resource, devices)| {
            devices.iter().map(move |(id, health)| {
                let word = match health {
                    Health::Healthy => "Healthy",
                    Health::Unhealthy => "Unhealthy",
                };
                format!("{resource} {id} {word}")
            })
        });
        lines.collect()
    }

    async fn counts(&mut self) -> BTreeMap<String, (u64, u64)> {
        let node = self.kubelet.status();
        let counts = node.resources.iter().map(|(resource, status)| {
            (resource.clone(), (status.capacity as u64, status.allocatable as u64))
        });
        counts.collect()
    }

    async fn stop_kubelet(&mut self) {
        self.kubelet.stop().await;
    }

    async fn end_containers(&mut self) {
        for pod in self.pods.values() {
            for container in
                pod.init_containers.iter().map(|init| &init.container).chain(&pod.containers)
            {
                self.kubelet.stop_container(&pod.uid, &container.name).await;
            }
        }
    }

    async fn start_kubelet(&mut self) -> BTreeMap<String, Outcome> {
        self.kubelet.restart().await.expect("restarted");
        let node = self.kubelet.status();
        let outcomes = self.pods.iter().map(|(name, pod)| {
            let outcome = match node.pods[&pod.uid].phase.clone() {
                PodPhase::Failed { reason, message } => Outcome::Rejected { reason, message },
                PodPhase::Pending | PodPhase::Admitted | PodPhase::Succeeded => Outcome::Running,
            };
            (name.clone(), outcome)
        });
        outcomes.collect()
    }

    fn plugin_dir(&self) -> PathBuf {
        self.kubelet.config().plugin_dir()
    }
}
