//! Player of a script on a node, with a transcript of each step.

use std::{collections::BTreeMap, fmt::Write as _, fs, time::Duration};

use windlass_kubelet_api::checkpoint::FILE;
use windlass_kubelet_sim::Pod;

use super::{
    look::{self, Look},
    node::{Node, Outcome},
    plugin::Plugin,
    script::{Script, Step},
};

/// Longest wait for any event: a kubelet syncs its pods every few seconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Transcript of a script, for people to read and for comparison.
pub(crate) async fn transcript(node: &mut impl Node, script: &Script) -> String {
    let (plugins, calls) = (BTreeMap::new(), BTreeMap::new());
    let mut stage = Stage { node, plugins, calls, is_down: false };
    let mut seen = Look::default();
    let mut text = String::new();
    for step in &script.steps {
        writeln!(text, "{step}").expect("into a string");
        let playing = tokio::time::timeout(LIMIT, stage.play(step));
        let said = playing.await.unwrap_or_else(|_| "did not happen in time".to_owned());
        let root = stage.node.root().display().to_string();
        for line in said.replace(&root, "ROOT").lines() {
            writeln!(text, "  {line}").expect("into a string");
        }
        text.push_str(&stage.new_calls());
        if step.is_awaited() && !stage.is_down {
            let looking = tokio::time::timeout(LIMIT, Look::at(stage.node));
            let now = looking.await.expect("the kubelet tells the same twice");
            text.push_str(&now.since(&seen));
            seen = now;
        }
    }
    text
}

struct Stage<'a, N> {
    node: &'a mut N,
    plugins: BTreeMap<&'static str, Plugin>,
    /// Number of reported calls, by plugin.
    calls: BTreeMap<&'static str, usize>,
    /// True while there is no kubelet.
    is_down: bool,
}

// === impl Stage ===

impl<N: Node> Stage<'_, N> {
    /// Performs one step, and describes its outcome.
    async fn play(&mut self, step: &Step) -> String {
        match step {
            Step::Serve { plugin, resource, wants } => {
                if let Some(mut old) = self.plugins.remove(plugin) {
                    old.die();
                }
                let served = Plugin::serve(&self.node.plugin_dir(), plugin, resource, *wants);
                self.plugins.insert(plugin, served);
                self.calls.remove(plugin);
            }
            Step::Register(plugin) => return answer(self.plugin(plugin).register().await),
            Step::RegisterAs { plugin, resource, version } => {
                return answer(self.plugin(plugin).register_as(resource, version).await);
            }
            Step::List(plugin, devices) => self.plugin(plugin).list(devices),
            Step::Behave(plugin, manner) => self.plugin(plugin).behave(*manner),
            Step::EndStreams(plugin) => self.plugin(plugin).end_streams(),
            Step::Die(name) => {
                let plugin = self.plugins.get_mut(name).expect("the script lets it serve before");
                plugin.die();
            }
            Step::Streams(plugin, count) => self.plugin(plugin).streams(*count).await,
            Step::Healthy(resource, ids) => self.healthy(resource, ids).await,
            Step::Run(pod) => return self.run(pod).await,
            Step::RestartContainer(pod, container) => {
                self.node.restart_container(pod, container).await;
            }
            Step::Delete(pod) => self.node.delete(pod).await,
            Step::Reports { pod, container, health } => {
                self.reports((pod, container), health).await;
            }
            Step::Count => return self.count().await,
            Step::Get(pod) => return look::get(self.node, pod).await,
            Step::StopKubelet => {
                self.node.stop_kubelet().await;
                self.is_down = true;
            }
            Step::EndContainers => self.node.end_containers().await,
            Step::BreakCheckpoint => self.break_checkpoint(),
            Step::StartKubelet => {
                let pods = self.node.start_kubelet().await.into_iter();
                self.is_down = false;
                let pods: Vec<_> = pods.map(|(pod, end)| format!("{pod}: {end}")).collect();
                return pods.join("\n");
            }
        }
        String::new()
    }

    fn plugin(&self, name: &str) -> &Plugin {
        self.plugins.get(name).expect("the script lets it serve before")
    }

    /// Outcome of the pod, and grants of its containers.
    async fn run(&mut self, pod: &Pod) -> String {
        let mut outcome = self.node.run(pod).await;
        let mut lines = vec![outcome.to_string()];
        if matches!(outcome, Outcome::Waiting { .. }) {
            outcome = self.node.recovers(&pod.name).await;
            lines.push(outcome.to_string());
        }
        if outcome == Outcome::Running {
            let inits = pod.init_containers.iter().map(|init| &init.container);
            for container in inits.chain(&pod.containers) {
                let found = self.node.environment(&pod.name, &container.name).await;
                let ours = found.into_iter().filter(|(name, _)| name.starts_with("DEVICES_"));
                lines.extend(
                    ours.map(|(name, ids)| format!("{} finds {name}={ids}", container.name)),
                );
            }
        }
        lines.join("\n")
    }

    async fn count(&mut self) -> String {
        let counts = self.node.counts().await.into_iter();
        let lines = counts.map(|(resource, (capacity, allocatable))| {
            format!("{resource}: capacity {capacity}, allocatable {allocatable}")
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    async fn healthy(&self, resource: &str, ids: &str) {
        while look::healthy(self.node, resource).await != ids {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn reports(&self, (pod, container): (&str, &str), health: &str) {
        while self.node.health(pod, container).await.join(", ") != health {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn break_checkpoint(&self) {
        let path = self.node.plugin_dir().join(FILE);
        let json = fs::read_to_string(&path).expect("a kubelet wrote it");
        let broken = json.replacen("example.com", "exbmple.com", 1);
        assert_ne!(json, broken, "it names a resource");
        fs::write(path, broken).expect("written");
    }

    /// Calls without a report so far, each plugin's in their order.
    fn new_calls(&mut self) -> String {
        let mut text = String::new();
        for (name, plugin) in &self.plugins {
            let told = self.calls.entry(name).or_default();
            let calls = plugin.calls();
            for call in &calls[*told..] {
                writeln!(text, "  -> {name}: {call}").expect("into a string");
            }
            *told = calls.len();
        }
        text
    }
}

fn answer(answer: Result<(), String>) -> String {
    answer.err().unwrap_or_else(|| "registered".to_owned())
}
