//! Testbed of a case: a folder, an embedded kubelet in it, an embedded cluster, and the program.

mod claims;
mod driver;
mod served;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::{
    process::Command,
    task::JoinSet,
    time::{sleep, timeout},
};
use windlass_cluster_sim::{cluster::Cluster, node::delete_slices_at_kubelet_start};
use windlass_kubelet_sim::{
    Admission, Config, Container, Event, EventReader, Kubelet, NodeStatus, Pod,
};

pub(crate) use self::{
    claims::{ClaimRequest, copy_of, pod},
    driver::{CALL_LIMIT, Driver, PrepareResults, devices_in, dial, prepared_devices},
    served::{Client, ServedResource},
};
use crate::{
    case::{CheckError, failed, not_applicable},
    process::Process,
    subject::{NODE_NAME, Placeholders, Subject},
};

/// Time without a change after which lists and slices count as complete.
const SETTLE_TIME: Duration = Duration::from_millis(400);

/// Interval of polling, for conditions without an event.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Folder, kubelet, cluster, and the program once started.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) subject: Arc<Subject>,
    pub(crate) kubelet: Kubelet,
    pub(crate) cluster: Cluster,
    process: Option<Process>,
    placeholders: Placeholders,
    folder: TempDir,
    _wipes: JoinSet<()>,
}

// === impl Testbed ===

impl Testbed {
    /// Sets up a testbed with a running kubelet. The program has not been started.
    pub(crate) fn open(subject: Arc<Subject>) -> Result<Self, CheckError> {
        let setup_error = |error: &dyn std::fmt::Display| {
            CheckError::Failed(format!("cannot set up the test: {error}"))
        };
        // The prefix is short because socket paths are limited to 107 bytes.
        let folder =
            tempfile::Builder::new().prefix("wc").tempdir().map_err(|error| setup_error(&error))?;
        let placeholders = Placeholders {
            kubelet: folder.path().join("k"),
            scratch: folder.path().join("s"),
            kubeconfig: folder.path().join("kubeconfig"),
        };
        std::fs::create_dir(&placeholders.scratch).map_err(|error| setup_error(&error))?;
        let cluster = Cluster::start();
        cluster.add_node(NODE_NAME);
        let kubeconfig = cluster.server().kubeconfig();
        std::fs::write(&placeholders.kubeconfig, kubeconfig)
            .map_err(|error| setup_error(&error))?;
        let mut config = Config::new(&placeholders.kubelet);
        config.numa_nodes = (0..8).collect();
        let kubelet = Kubelet::start(config).map_err(|error| setup_error(&error))?;
        let (events, objects, mut wipes) = (kubelet.events(), cluster.objects(), JoinSet::new());
        wipes.spawn(
            async move { delete_slices_at_kubelet_start(NODE_NAME, &events, &objects).await },
        );
        Ok(Self { subject, kubelet, cluster, process: None, placeholders, folder, _wipes: wipes })
    }

    /// Starts the program, with the placeholders of its command filled.
    pub(crate) fn start(&mut self) -> Result<(), CheckError> {
        let argv = self.subject.argv(&self.placeholders);
        let [program, arguments @ ..] = argv.as_slice() else {
            return failed("cannot set up the test: the command is empty");
        };
        let mut command = Command::new(program);
        command.args(arguments);
        self.placeholders.set_environment(&mut command);
        match Process::spawn(command, self.folder.path()) {
            Ok(process) => self.process = Some(process),
            Err(error) => return failed(format!("{} does not start: {error}", program.display())),
        }
        Ok(())
    }

    /// Starts the program, unless the case has started it, and waits for its resources as
    /// [`Testbed::wait_for_resources`] does.
    pub(crate) async fn start_and_wait(&mut self) -> Result<Vec<ServedResource>, CheckError> {
        if self.process.is_none() {
            self.start()?;
        }
        self.wait_for_resources(self.subject.limits.start).await
    }

    /// Resources of [`Testbed::start_and_wait`] that have a healthy device. Without one the case is not applicable.
    pub(crate) async fn start_with_devices(&mut self) -> Result<Vec<ServedResource>, CheckError> {
        let mut resources = self.start_and_wait().await?;
        resources.retain(|served| !served.healthy_ids().is_empty());
        if resources.is_empty() {
            not_applicable("it lists no healthy device")
        } else {
            Ok(resources)
        }
    }

    /// Process of the program. The case has started it.
    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the case started it")
    }

    /// Fails if the program has exited.
    pub(crate) fn check_alive(&mut self) -> Result<(), CheckError> {
        match self.process().try_wait() {
            Some(status) => failed(format!("the program exited: {status}")),
            None => Ok(()),
        }
    }

    /// Last lines of the program's output.
    pub(crate) fn last_output(&self) -> Vec<String> {
        self.process.as_ref().map(Process::last_output).unwrap_or_default()
    }

    /// Last lines of a program that has exited.
    pub(crate) async fn last_output_after_exit(&mut self) -> Vec<String> {
        match &mut self.process {
            Some(process) => process.last_output_after_exit().await,
            None => Vec::new(),
        }
    }

    /// Waits until a registered resource has sent a list and no resource has changed for the settle time. Returns all
    /// resources with a list.
    pub(crate) async fn wait_for_resources(
        &mut self,
        limit: Duration,
    ) -> Result<Vec<ServedResource>, CheckError> {
        let (started_at, mut unchanged_since, mut resources) =
            (Instant::now(), Instant::now(), Vec::new());
        loop {
            let current = ServedResource::all(&self.kubelet.status());
            if current != resources {
                (resources, unchanged_since) = (current, Instant::now());
            }
            if !resources.is_empty() && unchanged_since.elapsed() >= SETTLE_TIME {
                return Ok(resources);
            }
            self.check_alive()?;
            if started_at.elapsed() >= limit {
                return failed(format!("no resource with a list of devices after {limit:?}"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the kubelet's status fulfils a condition, and returns the duration of the wait. Fails if the program
    /// has exited, or after the react limit. `description` names the condition.
    pub(crate) async fn wait_until(
        &mut self,
        description: &str,
        condition: impl Fn(&NodeStatus) -> bool,
    ) -> Result<Duration, CheckError> {
        let started_at = Instant::now();
        let result = self.wait_for_status(description, condition).await;
        if result.is_err() {
            self.check_alive()?;
        }
        result.map(|()| started_at.elapsed())
    }

    /// Same as [`Testbed::wait_until`], for a program that may have exited.
    pub(crate) async fn wait_for_status(
        &self,
        description: &str,
        condition: impl Fn(&NodeStatus) -> bool,
    ) -> Result<(), CheckError> {
        match self.kubelet.wait_for(condition, self.subject.limits.react).await {
            Ok(_) => Ok(()),
            Err(error) => failed(format!("not within {:?}: {description}", error.waited)),
        }
    }

    /// Waits for a matching event with the number `since` or a higher one, and returns the duration of the wait.
    pub(crate) async fn wait_for_event(
        &mut self,
        description: &str,
        since: u64,
        matches: impl Fn(&Event) -> bool,
    ) -> Result<Duration, CheckError> {
        let (started_at, limit) = (Instant::now(), self.subject.limits.react);
        if self.events().wait_for_event(since, matches, limit).await.is_none() {
            self.check_alive()?;
            return failed(format!("not within {limit:?}: {description}"));
        }
        Ok(started_at.elapsed())
    }

    /// Number of the next event.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.events().next_sequence()
    }

    /// Calls between kubelet and program.
    pub(crate) fn events(&self) -> EventReader {
        self.kubelet.events()
    }

    /// Admits a pod with one container `c` that requests `count` devices, and returns their ids.
    pub(crate) async fn admit(
        &self,
        name: &str,
        resource: &str,
        count: u64,
    ) -> Result<Vec<String>, CheckError> {
        let pod = Pod::new(name).container(Container::new("c").limit(resource, count));
        let admission = self.admit_pod(pod).await?;
        let allocation = admission.allocation("c", resource);
        Ok(allocation.map(|allocation| allocation.ids().into_iter().collect()).unwrap_or_default())
    }

    /// Admits a pod, within the react limit. The kubelet itself waits for the plugin without a limit.
    pub(crate) async fn admit_pod(&self, pod: Pod) -> Result<Admission, CheckError> {
        let (name, limit) = (pod.name.clone(), self.subject.limits.react);
        match timeout(limit, self.kubelet.admit(pod)).await {
            Ok(Ok(admission)) => Ok(admission),
            Ok(Err(rejection)) => failed(format!("pod {name}: {}", rejection.message)),
            Err(_) => failed(format!("pod {name}: not admitted within {limit:?}")),
        }
    }

    /// Folders of the program's CDI specs.
    pub(crate) fn cdi_dirs(&self) -> Vec<PathBuf> {
        self.subject.cdi_dirs.iter().map(|text| self.placeholders.fill(text).into()).collect()
    }

    /// Runs the setup hook.
    pub(crate) async fn run_setup_hook(&self) -> Result<(), CheckError> {
        match &self.subject.hooks.setup {
            Some(setup) => self.run_hook(setup).await,
            None => Ok(()),
        }
    }

    /// Runs a hook of the command line, and waits for its exit.
    pub(crate) async fn run_hook(&self, text: &str) -> Result<(), CheckError> {
        let text = self.placeholders.fill(text);
        let mut command = Command::new("sh");
        self.placeholders.set_environment(&mut command);
        // Standard output is reserved for the report.
        command.args(["-c", &text]).stdout(std::io::stderr()).kill_on_drop(true);
        match command.status().await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => failed(format!("the hook `{text}` ended with {status}")),
            Err(error) => failed(format!("the hook `{text}` does not start: {error}")),
        }
    }
}
