//! Runs a script on a node, and writes the transcript.

use std::{collections::BTreeMap, fmt::Write as _, fs, time::Duration};

use windlass_kubelet_api::checkpoint::FILE_NAME;
use windlass_kubelet_sim::Pod;

use super::{
    node::{Node, Outcome},
    observation::{self, Observation},
    plugin::Plugin,
    script::{Script, Step},
};

/// Deadline of each step. A real kubelet syncs its pods only every few seconds.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a script. Returns its transcript: each step, its outcome, the plugin calls, and the changes of
/// the kubelet's visible state.
pub(crate) async fn transcript(node: &mut impl Node, script: &Script) -> String {
    let (plugins, calls) = (BTreeMap::new(), BTreeMap::new());
    let mut runner = ScriptRunner { node, plugins, calls, is_kubelet_stopped: false };
    let mut previous = Observation::default();
    let mut text = String::new();
    for step in &script.steps {
        writeln!(text, "{step}").expect("into a string");
        let outcome = tokio::time::timeout(STEP_TIMEOUT, runner.run_step(step)).await;
        let outcome = outcome.unwrap_or_else(|_| "did not happen in time".to_owned());
        let root = runner.node.root().display().to_string();
        for line in outcome.replace(&root, "ROOT").lines() {
            writeln!(text, "  {line}").expect("into a string");
        }
        text.push_str(&runner.new_calls());
        if step.is_complete() && !runner.is_kubelet_stopped {
            let observation =
                tokio::time::timeout(STEP_TIMEOUT, Observation::wait_until_stable(runner.node));
            let current = observation.await.expect("the kubelet's state becomes stable");
            text.push_str(&current.changes_since(&previous));
            previous = current;
        }
    }
    text
}

/// A node and the plugins of a script.
struct ScriptRunner<'a, N> {
    node: &'a mut N,
    plugins: BTreeMap<&'static str, Plugin>,
    /// Number of calls in the transcript so far, by plugin.
    calls: BTreeMap<&'static str, usize>,
    /// True while the kubelet is stopped.
    is_kubelet_stopped: bool,
}

// === impl ScriptRunner ===

impl<N: Node> ScriptRunner<'_, N> {
    /// Runs one step, and describes its outcome.
    async fn run_step(&mut self, step: &Step) -> String {
        match step {
            Step::Serve { plugin, resource, requested_call } => {
                if let Some(mut previous) = self.plugins.remove(plugin) {
                    previous.kill();
                }
                let dir = self.node.plugin_dir();
                self.plugins.insert(plugin, Plugin::serve(&dir, plugin, resource, *requested_call));
                self.calls.remove(plugin);
            }
            Step::Register(plugin) => return describe(self.plugin(plugin).register().await),
            Step::RegisterAs { plugin, resource, version } => {
                return describe(self.plugin(plugin).register_as(resource, version).await);
            }
            Step::List(plugin, devices) => self.plugin(plugin).list(devices),
            Step::SetBehaviour(plugin, behaviour) => self.plugin(plugin).set_behaviour(*behaviour),
            Step::EndStreams(plugin) => self.plugin(plugin).end_streams(),
            Step::Kill(name) => {
                let plugin = self.plugins.get_mut(name).expect("an earlier step serves the plugin");
                plugin.kill();
            }
            Step::WaitForStreams(plugin, count) => {
                self.plugin(plugin).wait_for_streams(*count).await;
            }
            Step::WaitForHealthy(resource, ids) => self.wait_for_healthy(resource, ids).await,
            Step::Run(pod) => return self.run_pod(pod).await,
            Step::RestartContainer(pod, container) => {
                self.node.restart_container(pod, container).await;
            }
            Step::Delete(pod) => self.node.delete(pod).await,
            Step::WaitForHealth { pod, container, health } => {
                self.wait_for_health((pod, container), health).await;
            }
            Step::Count => return self.describe_counts().await,
            Step::Get(pod) => return observation::get(self.node, pod).await,
            Step::StopKubelet => {
                self.node.stop_kubelet().await;
                self.is_kubelet_stopped = true;
            }
            Step::EndContainers => self.node.end_containers().await,
            Step::BreakCheckpoint => self.break_checkpoint(),
            Step::StartKubelet => {
                let pods = self.node.start_kubelet().await.into_iter();
                self.is_kubelet_stopped = false;
                let pods: Vec<_> = pods.map(|(pod, outcome)| format!("{pod}: {outcome}")).collect();
                return pods.join("\n");
            }
        }
        String::new()
    }

    fn plugin(&self, name: &str) -> &Plugin {
        self.plugins.get(name).expect("an earlier step serves the plugin")
    }

    /// Runs a pod. Describes its outcome, and the environment variables that plugins set.
    async fn run_pod(&mut self, pod: &Pod) -> String {
        let mut outcome = self.node.run(pod).await;
        let mut lines = vec![outcome.to_string()];
        if matches!(outcome, Outcome::Waiting { .. }) {
            outcome = self.node.wait_for_recovery(&pod.name).await;
            lines.push(outcome.to_string());
        }
        if outcome == Outcome::Running {
            let init_containers = pod.init_containers.iter().map(|init| &init.container);
            for container in init_containers.chain(&pod.containers) {
                let variables = self.node.environment(&pod.name, &container.name).await;
                let plugin_variables =
                    variables.into_iter().filter(|(name, _)| name.starts_with("DEVICES_"));
                lines.extend(
                    plugin_variables
                        .map(|(name, ids)| format!("{} finds {name}={ids}", container.name)),
                );
            }
        }
        lines.join("\n")
    }

    async fn describe_counts(&mut self) -> String {
        let counts = self.node.counts().await.into_iter();
        let lines = counts.map(|(resource, (capacity, allocatable))| {
            format!("{resource}: capacity {capacity}, allocatable {allocatable}")
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    async fn wait_for_healthy(&self, resource: &str, ids: &str) {
        while observation::healthy(self.node, resource).await != ids {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn wait_for_health(&self, (pod, container): (&str, &str), health: &str) {
        while self.node.health(pod, container).await.join(", ") != health {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn break_checkpoint(&self) {
        let path = self.node.plugin_dir().join(FILE_NAME);
        let json = fs::read_to_string(&path).expect("the kubelet wrote a checkpoint");
        let broken = json.replacen("example.com", "exbmple.com", 1);
        assert_ne!(json, broken, "the checkpoint names a resource");
        fs::write(path, broken).expect("written");
    }

    /// Calls since the last `new_calls`, by plugin, in their order.
    fn new_calls(&mut self) -> String {
        let mut text = String::new();
        for (name, plugin) in &self.plugins {
            let reported_count = self.calls.entry(name).or_default();
            let calls = plugin.calls();
            for call in &calls[*reported_count..] {
                writeln!(text, "  -> {name}: {call}").expect("into a string");
            }
            *reported_count = calls.len();
        }
        text
    }
}

fn describe(outcome: Result<(), String>) -> String {
    outcome.err().unwrap_or_else(|| "registered".to_owned())
}
