//! A machine in a temporary folder, and the task of the agent that runs its MPS daemons.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use windlass_config::{Config, MpsSettings, Policy, Replicas};
use windlass_core::device::DeviceId;
use windlass_lifecycle::mps::{MigRole, Mps, MpsDemand, MpsSpec, MpsState, MpsStates};
use windlass_machine::Machine;
use windlass_testkit::{Node, until_removed, until_value, within_timeout};

pub(crate) struct Rig {
    pub(crate) machine: Machine,
    pub(crate) config: Config,
}

/// The running task. It is stopped when dropped; [`RunningMps::stop`] also waits for its end.
pub(crate) struct RunningMps {
    demand: watch::Sender<Arc<MpsDemand>>,
    states: watch::Receiver<Arc<MpsStates>>,
    stop: CancellationToken,
    task: JoinSet<()>,
}

// === impl Rig ===

impl Rig {
    pub(crate) fn new() -> Self {
        let Node { machine, mut config, .. } = Node::from_profile("dgx-h100", Policy::default());
        config.mps = MpsSettings {
            start_deadline: Duration::from_secs(20),
            answer_deadline: Duration::from_secs(1),
            question_interval: Duration::from_millis(50),
            retry_min: Duration::from_millis(10),
            retry_max: Duration::from_millis(200),
            stop_grace: Duration::from_secs(1),
            ..MpsSettings::default()
        };
        Self { machine, config }
    }

    pub(crate) fn run(&self) -> RunningMps {
        let (demand, receiver) = watch::channel(Arc::default());
        let (mps, states) =
            Mps::new(&self.config.places, &self.config.mps, receiver, &Arc::new(Notify::new()));
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        task.spawn(mps.run(stop.clone()));
        RunningMps { demand, states, stop, task }
    }

    /// The GPU at an index.
    pub(crate) fn gpu(&self, index: usize) -> DeviceId {
        let model = self.machine.model().expect("written");
        model.gpus[index].uuid.parse().expect("an id")
    }

    /// `nvmlComputeMode_t` of the GPU at an index: 0 is the default, 3 is exclusive to one process.
    pub(crate) fn compute_mode(&self, index: usize) -> u32 {
        self.machine.model().expect("written").gpus[index].compute_mode
    }

    /// Folder of a GPU's daemon.
    pub(crate) fn folder(&self, index: usize) -> PathBuf {
        self.machine.host_root().join("run/windlass/mps").join(self.gpu(index).as_str())
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.machine.host_root().join("usr/bin/nvidia-cuda-mps-control")
    }

    /// Answer of the daemon itself.
    pub(crate) fn send_command(&self, index: usize, command: &str) -> String {
        send_command(&self.machine, &self.gpu(index), command)
    }

    /// The daemon's recorded PID.
    pub(crate) fn pid(&self, index: usize) -> Pid {
        recorded_pid(&self.folder(index)).expect("a daemon is recorded")
    }

    pub(crate) fn kill(&self, index: usize) {
        kill_process(self.pid(index), Signal::KILL).expect("it runs");
    }

    pub(crate) fn has_folder(&self, index: usize) -> bool {
        self.folder(index).exists()
    }
}

impl Drop for Rig {
    /// Ends the daemons: they outlive the agent, but must not outlive the test.
    fn drop(&mut self) {
        let folder = self.machine.host_root().join("run/windlass/mps");
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if let Some(pid) = recorded_pid(&entry.path()).filter(|pid| is_running(*pid)) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

/// Answer of the daemon of a machine's GPU.
pub(crate) fn send_command(machine: &Machine, gpu: &DeviceId, command: &str) -> String {
    let host = machine.host_root();
    let mut client = Command::new(host.join("usr/bin/nvidia-cuda-mps-control"));
    let pipe = host.join("run/windlass/mps").join(gpu.as_str()).join("pipe");
    client.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut stdin = client.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, format!("{command}\n").as_bytes()).expect("written");
    drop(stdin);
    let output = client.wait_with_output().expect("it ends");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn recorded_pid(folder: &Path) -> Option<Pid> {
    let record = fs::read_to_string(folder.join("daemon")).ok()?;
    Pid::from_raw(record.split_once(' ')?.0.parse().ok()?)
}

/// True if the process is a running control daemon.
pub(crate) fn is_running(pid: Pid) -> bool {
    // A zombie process has no command line.
    let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    fs::read_to_string(path).is_ok_and(|line| line.contains("nvidia-cuda-mps-control"))
}

// === impl RunningMps ===

impl RunningMps {
    /// Sets the demand: daemons of the first devices, and no change to those of the second.
    pub(crate) fn require_and_retain(
        &self,
        required: impl IntoIterator<Item = (DeviceId, MpsSpec)>,
        retained: impl IntoIterator<Item = DeviceId>,
    ) {
        let (required, retained) = (required.into_iter().collect(), retained.into_iter().collect());
        self.demand.send_replace(Arc::new(MpsDemand { required, retained }));
    }

    pub(crate) fn require(&self, demand: impl IntoIterator<Item = (DeviceId, MpsSpec)>) {
        self.require_and_retain(demand, []);
    }

    /// Waits until the states meet a condition.
    pub(crate) async fn until(
        &self,
        condition: impl FnMut(&Arc<MpsStates>) -> bool,
    ) -> Arc<MpsStates> {
        until_value("the daemons' states", &self.states, condition).await
    }

    pub(crate) async fn until_ready(&self, device: &DeviceId) {
        self.until(|states| states.get(device) == Some(&MpsState::Ready)).await;
    }

    /// Waits until the device is out of service. Returns the reason.
    pub(crate) async fn until_failed(&self, device: &DeviceId) -> String {
        let is_failed = |state: Option<&MpsState>| matches!(state, Some(MpsState::Failed(_)));
        let states = self.until(|states| is_failed(states.get(device))).await;
        states[device].obstacle().expect("it is out of service")
    }

    /// Waits until the folder of a GPU's daemon is removed.
    pub(crate) async fn until_removed(&self, rig: &Rig, index: usize) {
        until_removed(&rig.folder(index)).await;
    }

    /// Stops the task as the agent's end does.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let result = within_timeout("the task stops", self.task.join_next()).await;
        result.expect("one task").expect("no panic");
    }
}

/// This number of shares of an H100.
pub(crate) fn shares(replicas: u64) -> MpsSpec {
    MpsSpec {
        memory_mib: None,
        replicas: Replicas::try_from(replicas).expect("valid"),
        memory_bytes: Some(80 << 30),
        compute_capability: Some((9, 0)),
        mig_role: MigRole::WholeGpu,
    }
}
