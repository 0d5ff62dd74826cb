//! Stage of a case: a folder, an embedded kubelet in it, an embedded cluster, and the program.

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
use windlass_cluster_sim::{cluster::Cluster, node::follow_wipes};
use windlass_kubelet_sim::{
    Admission, Config, Container, Event, EventReader, Kubelet, NodeStatus, Pod,
};

pub(crate) use self::{
    claims::{Wanted, pod, twin},
    driver::{CALL, Driver, Prepared, devices, devices_in, dialled},
    served::{Client, Served},
};
use crate::{
    case::{Unmet, failed, not_applicable},
    process::Process,
    subject::{NODE, Places, Subject},
};

/// Quiet time after the last registration, after which no other resource is expected.
const SETTLED: Duration = Duration::from_millis(400);

/// Interval of polls where no event exists.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Folder, kubelet, cluster, and the program once started.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) subject: Arc<Subject>,
    pub(crate) kubelet: Kubelet,
    pub(crate) cluster: Cluster,
    process: Option<Process>,
    places: Places,
    folder: TempDir,
    _wipes: JoinSet<()>,
}

// === impl Stage ===

impl Stage {
    /// Opens a stage on which the kubelet runs and the program does not.
    pub(crate) fn open(subject: Arc<Subject>) -> Result<Self, Unmet> {
        let broken = |error: &dyn std::fmt::Display| Unmet::Failed(format!("no stage: {error}"));
        // The prefix is short because socket paths are limited to 107 bytes.
        let folder = tempfile::Builder::new().prefix("wc").tempdir().map_err(|it| broken(&it))?;
        let places = Places {
            kubelet: folder.path().join("k"),
            scratch: folder.path().join("s"),
            kubeconfig: folder.path().join("kubeconfig"),
        };
        std::fs::create_dir(&places.scratch).map_err(|error| broken(&error))?;
        let cluster = Cluster::start();
        cluster.add_node(NODE);
        let kubeconfig = cluster.server().kubeconfig();
        std::fs::write(&places.kubeconfig, kubeconfig).map_err(|error| broken(&error))?;
        let mut config = Config::new(&places.kubelet);
        config.numa_nodes = (0..8).collect();
        let kubelet = Kubelet::start(config).map_err(|error| broken(&error))?;
        let (calls, objects, mut wipes) = (kubelet.calls(), cluster.objects(), JoinSet::new());
        wipes.spawn(async move { follow_wipes(NODE, &calls, &objects).await });
        Ok(Self { subject, kubelet, cluster, process: None, places, folder, _wipes: wipes })
    }

    pub(crate) fn start(&mut self) -> Result<(), Unmet> {
        let words = self.subject.words(&self.places);
        let [program, arguments @ ..] = words.as_slice() else {
            return failed("no stage: a command without a word");
        };
        let mut command = Command::new(program);
        command.args(arguments);
        self.places.set_environment(&mut command);
        match Process::spawn(command, self.folder.path()) {
            Ok(process) => self.process = Some(process),
            Err(error) => return failed(format!("{} does not start: {error}", program.display())),
        }
        Ok(())
    }

    /// Starts the program, unless the case has, and waits until all its resources are listed.
    pub(crate) async fn started(&mut self) -> Result<Vec<Served>, Unmet> {
        if self.process.is_none() {
            self.start()?;
        }
        self.served(self.subject.within.start).await
    }

    /// Same as [`Stage::started`], for resources with a healthy device.
    pub(crate) async fn started_with_devices(&mut self) -> Result<Vec<Served>, Unmet> {
        let mut all = self.started().await?;
        all.retain(|served| !served.healthy().is_empty());
        if all.is_empty() { not_applicable("it lists no healthy device") } else { Ok(all) }
    }

    /// Process of the program, which the case has started.
    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the case started it")
    }

    /// Fails if the program has ended.
    pub(crate) fn alive(&mut self) -> Result<(), Unmet> {
        match self.process().ended() {
            Some(status) => failed(format!("the program ended: {status}")),
            None => Ok(()),
        }
    }

    /// Last lines of the program's output.
    pub(crate) fn last_words(&self) -> Vec<String> {
        self.process.as_ref().map(Process::last_words).unwrap_or_default()
    }

    /// Last lines of a program that has ended.
    pub(crate) async fn all_last_words(&mut self) -> Vec<String> {
        match &mut self.process {
            Some(process) => process.all_last_words().await,
            None => Vec::new(),
        }
    }

    /// Waits until every registered resource has a list, and for a quiet time after that.
    pub(crate) async fn served(&mut self, limit: Duration) -> Result<Vec<Served>, Unmet> {
        let (begun, mut quiet_since, mut seen) = (Instant::now(), Instant::now(), Vec::new());
        loop {
            let now = Served::all(&self.kubelet.node());
            if now != seen {
                (seen, quiet_since) = (now, Instant::now());
            }
            if !seen.is_empty() && quiet_since.elapsed() >= SETTLED {
                return Ok(seen);
            }
            self.alive()?;
            if begun.elapsed() >= limit {
                return failed(format!("no resource with a list of devices after {limit:?}"));
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until the node fulfils a condition, and returns the time that took.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        is_so: impl Fn(&NodeStatus) -> bool,
    ) -> Result<Duration, Unmet> {
        let begun = Instant::now();
        let seen = self.until_seen(what, is_so).await;
        if seen.is_err() {
            self.alive()?;
        }
        seen.map(|()| begun.elapsed())
    }

    /// Waits until the kubelet has noticed a change of the program, which may be dead.
    pub(crate) async fn until_seen(
        &self,
        what: &str,
        is_so: impl Fn(&NodeStatus) -> bool,
    ) -> Result<(), Unmet> {
        match self.kubelet.wait_for(is_so, self.subject.within.react).await {
            Ok(_) => Ok(()),
            Err(late) => failed(format!("not within {:?}: {what}", late.waited)),
        }
    }

    /// Waits for such an event since a moment, and returns the time that took.
    pub(crate) async fn until_event(
        &mut self,
        what: &str,
        since: u64,
        is_it: impl Fn(&Event) -> bool,
    ) -> Result<Duration, Unmet> {
        let (begun, limit) = (Instant::now(), self.subject.within.react);
        if self.calls().wait_for_one(since, is_it, limit).await.is_none() {
            self.alive()?;
            return failed(format!("not within {limit:?}: {what}"));
        }
        Ok(begun.elapsed())
    }

    /// Number of the next event.
    pub(crate) fn now(&self) -> u64 {
        self.calls().now()
    }

    /// Calls between kubelet and program.
    pub(crate) fn calls(&self) -> EventReader {
        self.kubelet.calls()
    }

    /// Admits a pod of one container `c` with this number of devices, and returns their ids.
    pub(crate) async fn admit(
        &self,
        name: &str,
        resource: &str,
        count: u64,
    ) -> Result<Vec<String>, Unmet> {
        let pod = Pod::new(name).container(Container::new("c").limit(resource, count));
        let admission = self.admitted(pod).await?;
        let allotment = admission.allotment("c", resource);
        Ok(allotment.map(|it| it.ids().into_iter().collect()).unwrap_or_default())
    }

    /// Admits a pod. The kubelet waits for the plugin without a limit; this function has one.
    pub(crate) async fn admitted(&self, pod: Pod) -> Result<Admission, Unmet> {
        let (name, limit) = (pod.name.clone(), self.subject.within.react);
        match timeout(limit, self.kubelet.admit(pod)).await {
            Ok(Ok(admission)) => Ok(admission),
            Ok(Err(rejection)) => failed(format!("pod {name}: {}", rejection.message)),
            Err(_) => failed(format!("pod {name}: not admitted within {limit:?}")),
        }
    }

    /// Folders of the program's CDI specs.
    pub(crate) fn cdi_dirs(&self) -> Vec<PathBuf> {
        self.subject.cdi_dirs.iter().map(|text| self.places.fill(text).into()).collect()
    }

    /// Runs the setup hook.
    pub(crate) async fn set_up(&self) -> Result<(), Unmet> {
        match &self.subject.hooks.setup {
            Some(setup) => self.hook(setup).await,
            None => Ok(()),
        }
    }

    /// Runs a hook to its end.
    pub(crate) async fn hook(&self, text: &str) -> Result<(), Unmet> {
        let text = self.places.fill(text);
        let mut command = Command::new("sh");
        self.places.set_environment(&mut command);
        // Standard output is reserved for the report.
        command.args(["-c", &text]).stdout(std::io::stderr()).kill_on_drop(true);
        match command.status().await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => failed(format!("the hook `{text}` ended with {status}")),
            Err(error) => failed(format!("the hook `{text}` does not start: {error}")),
        }
    }
}
