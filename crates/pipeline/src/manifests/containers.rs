//! A stage's container: its arguments, resources and probes.

use serde_json::{Value, json};

use super::{Renderer, Workload, fields::overlay};
use crate::{capacity::Capacity, pipeline::DeviceRequirement, placement::Replica};

/// Argument that ends the program of `windlass stage --exec`.
const END_OF_PROGRAM: &str = ";";

/// Handlers of a probe other than `tcpSocket`.
const HANDLERS: [&str; 3] = ["exec", "grpc", "httpGet"];

// === impl Renderer ===

impl Renderer<'_> {
    pub(super) fn container(
        &self,
        stage: usize,
        replica: &Replica,
        workload: &Workload<'_>,
    ) -> Value {
        let spec = &self.pipeline.stages[stage];
        let port = self.pipeline.port(stage);
        let device_command = &replica.alternative(self.pipeline, stage).command;
        let command = if device_command.is_empty() { &spec.command } else { device_command };
        let mut arguments = self.arguments(stage, workload);
        if is_open_ended(command) {
            arguments.insert(0, END_OF_PROGRAM.to_owned());
        }
        let mut container = json!({
            "name": spec.name,
            "image": spec.image,
            "args": arguments,
            "ports": [{ "name": port_name(&spec.name), "containerPort": port }],
            "resources": self.resources(stage, replica),
            // A stage listens while it accepts items. One that stops listening must be restarted.
            "readinessProbe": { "tcpSocket": { "port": port }, "periodSeconds": 2 },
            "livenessProbe": { "tcpSocket": { "port": port }, "periodSeconds": 10, "failureThreshold": 3 },
        });
        if !command.is_empty() {
            container["command"] = command.clone().into();
        }
        for probe in ["readinessProbe", "livenessProbe"] {
            // Kubernetes allows one handler per probe.
            let custom_probe = spec.container.get(probe);
            if custom_probe.is_some_and(|custom_probe| {
                HANDLERS.iter().any(|handler| custom_probe.get(handler).is_some())
            }) {
                container[probe].as_object_mut().map(|probe| probe.remove("tcpSocket"));
            }
        }
        overlay(&mut container, &spec.container);
        container
    }

    fn arguments(&self, stage: usize, workload: &Workload<'_>) -> Vec<String> {
        let name = |stage: usize| self.pipeline.stages[stage].name.clone();
        let mut arguments = vec!["--name".to_owned(), name(stage), "--listen".to_owned()];
        arguments.push(format!("0.0.0.0:{}", self.pipeline.port(stage)));
        for link in self.pipeline.links_from(stage) {
            let shares_pod = workload.stages.iter().any(|(other, _)| *other == link.to);
            let host = if shares_pod { "127.0.0.1".to_owned() } else { self.object_name(link.to) };
            arguments.push("--next".to_owned());
            arguments.push(format!("{}={host}:{}", name(link.to), self.pipeline.port(link.to)));
        }
        let senders: Vec<_> = self.pipeline.links_to(stage).map(|link| name(link.from)).collect();
        if senders.len() > 1 {
            arguments.extend(senders.into_iter().flat_map(|sender| ["--from".to_owned(), sender]));
        }
        let batch = self.pipeline.stages[stage].batch;
        if batch > 1 {
            arguments.extend(["--batch".to_owned(), batch.to_string()]);
        }
        arguments
    }

    fn resources(&self, stage: usize, replica: &Replica) -> Value {
        let alternative = replica.alternative(self.pipeline, stage);
        let Capacity { cpus, memory } = alternative.request;
        let mut requests = json!({ "cpu": format!("{:.0}m", (cpus * 1000.0).max(1.0)) });
        if memory.0 > 0 {
            requests["memory"] = memory.0.to_string().into();
        }
        match &alternative.device {
            DeviceRequirement::CpuOnly => json!({ "requests": requests }),
            DeviceRequirement::Resource(name) => {
                json!({ "requests": requests, "limits": { name: 1 } })
            }
            DeviceRequirement::Claim { .. } => {
                let claim = json!([{ "name": self.pipeline.stages[stage].name }]);
                json!({ "requests": requests, "claims": claim })
            }
        }
    }
}

/// True if the command ends within the program of `--exec`, which would consume all following arguments.
fn is_open_ended(command: &[String]) -> bool {
    let program = command.iter().skip_while(|argument| *argument != "--exec");
    command.iter().any(|argument| argument == "--exec")
        && !program.into_iter().any(|argument| argument == END_OF_PROGRAM)
}

/// Name of a container port. Kubernetes requires at most 15 characters with at least one letter.
fn port_name(stage: &str) -> String {
    let name: String = format!("s-{stage}").chars().take(15).collect();
    name.trim_end_matches('-').to_owned()
}
