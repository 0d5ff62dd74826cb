//! Cleanup steps and their execution, each with its time limit.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Semaphore;
use windlass_config::{IDLE_MEMORY_BYTES, Link, Processes, Reset, Step, StepAction};
use windlass_core::device::DeviceId;
use windlass_discovery::mig::{MigHandle, PartitionError};
use windlass_host::{
    Host, blocking, causes,
    deadline::{self, Deadline},
    external::{GetError, ProgramError, get, run},
    nvidia_smi::SmiError,
};

use super::{
    idle::wait_idle,
    link,
    memory::wait_free,
    overwrite::{Scrubber, overwrite},
    plan::CleanupPlan,
    reset::reset,
    state::Work,
    verify::verify,
};

/// A device, its plan, and the dependencies of its steps.
#[derive(Clone, Debug)]
pub(super) struct StepContext {
    pub(super) device: DeviceId,
    pub(super) plan: CleanupPlan,
    pub(super) host: Host,
    /// Permit of a sysfs write, held until the kernel returns: while a write hangs, no other starts.
    pub(super) write_permit: Arc<Semaphore>,
    /// Permit of an identity check, likewise.
    pub(super) verify_permit: Arc<Semaphore>,
    /// Calls to NVIDIA's driver.
    pub(super) mig: MigHandle,
    pub(super) scrubber: Scrubber,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error("GET {0}")]
    Get(String, #[source] GetError),
    #[error("{action}: not done within {limit:?}")]
    Timeout { action: String, limit: Duration },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("{0} cannot be written: the device has no folder in sysfs")]
    NoFolder(PathBuf),
    #[error("{0} is outside the device's folder")]
    OutsideFolder(PathBuf),
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    #[error(transparent)]
    Gpu(#[from] PartitionError),
    #[error("still computing on it: process {0}")]
    ProcessesRunning(String),
    #[error(
        "{used} MiB of its memory are used, at most {max} are allowed, and no process that the driver lists \
         holds them"
    )]
    MemoryUsed { used: u64, max: u64 },
    #[error("it is not reset: {0}")]
    NotReset(String),
    #[error("cannot reset it")]
    Reset(#[from] SmiError),
    #[error("its interface is still in a container's network namespace")]
    InContainerNamespace,
    #[error("an earlier write to {0} has not returned yet")]
    WriteHanging(PathBuf),
}

/// Runs steps in order, up to the first failure.
async fn run_steps(context: &StepContext, steps: &[Step]) -> Result<(), StepError> {
    for Step { action, timeout: limit } in steps {
        let step = async {
            match action {
                StepAction::Http(url) => {
                    get(url).await.map_err(|error| StepError::Get(url.clone(), error))
                }
                StepAction::Command(words) => Ok(run(&context.device, words).await?),
                StepAction::Write { file, text } => context.write(file, text).await,
                StepAction::Processes(Processes::None) => wait_idle(context, *limit).await,
                StepAction::Memory { max_bytes } => wait_free(context, *max_bytes, *limit).await,
                StepAction::Overwrite => {
                    // Only free memory can be overwritten.
                    wait_free(context, IDLE_MEMORY_BYTES, *limit).await?;
                    overwrite(context).await
                }
                StepAction::Reset(Reset::Gpu) => reset(context, *limit).await,
                StepAction::Link(Link::Up) => link::set_up(context, *limit).await,
            }
        };
        let timeout_error = || StepError::Timeout { action: action_name(action), limit: *limit };
        deadline::timeout(*limit, step).await.unwrap_or_else(|_| Err(timeout_error()))?;
        tracing::debug!(device = %context.device, step = action_name(action), "cleanup step done");
    }
    Ok(())
}

/// Runs the steps of a state. Preparation has one time limit for all steps: the kubelet waits.
pub(super) async fn run_work(
    context: &StepContext,
    work: Work,
    limit: Duration,
) -> Result<(), String> {
    let plan = &context.plan;
    let steps = match work {
        Work::Prepare { clean_first: true } => [&*plan.release, &*plan.prepare].concat(),
        Work::Prepare { clean_first: false } => plan.prepare.clone(),
        // Without release steps, only a successful preparation ends the quarantine of a device.
        Work::Clean { is_retry: true } if plan.release.is_empty() => plan.prepare.clone(),
        Work::Clean { .. } => plan.release.clone(),
    };
    let is_verified = match work {
        Work::Prepare { .. } => true,
        Work::Clean { is_retry } => is_retry && plan.release.is_empty(),
    };
    let mut deadline = Deadline::after(limit);
    let run = async { run_steps(context, &steps).await.map_err(|error| causes(&error)) };
    let mut outcome = match work {
        Work::Prepare { .. } => {
            let timeout_error =
                |_| Err(format!("its {} steps were not done within {limit:?}", steps.len()));
            deadline.timeout(run).await.unwrap_or_else(timeout_error)
        }
        Work::Clean { .. } => run.await,
    };
    if let (Ok(()), Some(identity)) = (&outcome, plan.identity.as_ref().filter(|_| is_verified)) {
        outcome = verify(context, identity, deadline.remaining()).await;
    }
    match work {
        Work::Prepare { .. } => release_on_failure(outcome, context).await,
        Work::Clean { .. } => outcome,
    }
}

/// Runs the release steps of a programmable device at once if its preparation failed, so that it does not stay partly
/// programmed.
async fn release_on_failure(
    outcome: Result<(), String>,
    context: &StepContext,
) -> Result<(), String> {
    let Err(reason) = outcome else { return Ok(()) };
    if context.plan.identity.is_none() {
        return Err(reason);
    }
    match run_steps(context, &context.plan.release).await {
        Ok(()) => Err(reason),
        Err(error) => Err(format!("{reason}; and it could not be released: {}", causes(&error))),
    }
}

fn action_name(action: &StepAction) -> String {
    match action {
        StepAction::Http(url) => format!("GET {url}"),
        StepAction::Command(words) => words.first().cloned().unwrap_or_default(),
        StepAction::Write { file, .. } => format!("write {}", file.display()),
        StepAction::Processes(Processes::None) => "processes: none".to_owned(),
        StepAction::Memory { .. } => "memory: free".to_owned(),
        StepAction::Overwrite => "memory: overwrite".to_owned(),
        StepAction::Reset(Reset::Gpu) => "reset: gpu".to_owned(),
        StepAction::Link(Link::Up) => "link: up".to_owned(),
    }
}

// === impl StepContext ===

impl StepContext {
    pub(super) async fn write(&self, file: &Path, text: &str) -> Result<(), StepError> {
        let folder =
            self.plan.folder.clone().ok_or_else(|| StepError::NoFolder(file.to_owned()))?;
        let (host, file, text) = (self.host.clone(), file.to_owned(), text.to_owned());
        let permit = self.write_permit.clone().try_acquire_owned();
        let permit = permit.map_err(|_| StepError::WriteHanging(file.clone()))?;
        let write = move || {
            let _permit = permit;
            write_below(&host, &folder, &file, &text)
        };
        blocking(write).await
    }
}

/// Writes to an existing file below the device's folder in the host's sysfs.
fn write_below(host: &Host, folder: &Path, file: &Path, text: &str) -> Result<(), StepError> {
    let is_plain = file.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain {
        return Err(StepError::OutsideFolder(file.to_owned()));
    }
    let write_error = |error| StepError::Write(folder.join(file), error);
    let real_path = fs::canonicalize(host.path(folder).join(file)).map_err(write_error)?;
    let sysfs = fs::canonicalize(host.path("/sys")).map_err(write_error)?;
    if !real_path.starts_with(&sysfs) {
        return Err(StepError::OutsideFolder(file.to_owned()));
    }
    let opened = OpenOptions::new().write(true).truncate(true).open(&real_path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(write_error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;
    use tokio::sync::mpsc;
    use windlass_config::HostPaths;
    use windlass_discovery::mig;
    use windlass_host::nvidia_smi::NvidiaSmi;

    use super::*;

    /// A handle without a MIG worker behind it.
    fn without_driver() -> MigHandle {
        let (library, notices) = (tokio::sync::watch::channel(None).1, mpsc::channel(1).0);
        let source_channels = (notices, mig::NvmlShutdownHandle::new().0);
        let smi = NvidiaSmi::new(&HostPaths::default().roots());
        mig::channel(Duration::from_secs(1), library, smi, source_channels).0
    }

    fn context() -> (TempDir, StepContext) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let folder = root.path().join("sys/devices/platform/board");
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join("reset"), "before").expect("written");
        fs::write(root.path().join("passwd"), "before").expect("written");
        symlink(root.path().join("passwd"), folder.join("leak")).expect("linked");
        let context = StepContext {
            device: "board".parse().expect("an id"),
            plan: CleanupPlan {
                folder: Some("/sys/devices/platform/board".into()),
                ..CleanupPlan::default()
            },
            host: Host::new(root.path(), "/"),
            write_permit: Arc::new(Semaphore::new(1)),
            verify_permit: Arc::new(Semaphore::new(1)),
            mig: without_driver(),
            scrubber: Scrubber::new(&HostPaths::default()),
        };
        (root, context)
    }

    async fn outcome(context: &StepContext, action: StepAction) -> Result<(), String> {
        let steps = [Step { action, timeout: Duration::from_millis(500) }];
        run_steps(context, &steps).await.map_err(|error| windlass_host::causes(&error))
    }

    fn shell(script: &str) -> StepAction {
        StepAction::Command(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
    }

    fn write(file: &str) -> StepAction {
        StepAction::Write { file: file.into(), text: "1".to_owned() }
    }

    #[tokio::test]
    async fn a_program_is_a_step_with_a_time_limit() {
        let (_root, context) = context();
        assert_eq!(outcome(&context, shell("exit 0")).await, Ok(()));
        let result = outcome(&context, shell("echo 'no such board' >&2; exit 3")).await;
        assert_eq!(
            result.expect_err("exit status 3"),
            "/bin/sh ended with exit status: 3: no such board"
        );
        let error = outcome(&context, shell("kill -STOP $$")).await.expect_err("late");
        assert_eq!(error, "/bin/sh: not done within 500ms");
    }

    #[tokio::test]
    async fn an_interface_is_set_up_once_the_kernel_has_returned_it() {
        let (root, context) = context();
        let up = || StepAction::Link(Link::Up);
        let error = outcome(&context, up()).await.expect_err("no interface");
        assert_eq!(error, "its interface is still in a container's network namespace");
        let interface = root.path().join("sys/devices/platform/board/net/eth1");
        fs::create_dir_all(&interface).expect("made");
        fs::write(interface.join("flags"), "0x1002\n").expect("written");
        assert_eq!(outcome(&context, up()).await, Ok(()));
        assert_eq!(fs::read_to_string(interface.join("flags")).expect("there"), "0x1003");
    }

    #[tokio::test]
    async fn a_gpu_without_a_driver_does_not_count_as_idle() {
        let (_root, context) = context();
        let result = outcome(&context, StepAction::Processes(Processes::None)).await;
        assert!(result.expect_err("no driver").starts_with("cannot list the processes on board"));
    }

    #[tokio::test]
    async fn memory_that_cannot_be_measured_does_not_count_as_free() {
        let (_root, context) = context();
        let error =
            outcome(&context, StepAction::Memory { max_bytes: 0 }).await.expect_err("no driver");
        assert!(error.starts_with("cannot read the memory use of board"), "{error}");
    }

    #[tokio::test]
    async fn a_gpu_whose_reset_affects_others_is_not_reset() {
        let (_root, mut context) = context();
        context.plan.reset_conflict = Some("it is in MIG mode");
        let error =
            outcome(&context, StepAction::Reset(Reset::Gpu)).await.expect_err("in MIG mode");
        assert_eq!(error, "it is not reset: it is in MIG mode");
    }

    #[tokio::test]
    async fn a_file_is_written_only_in_the_devices_folder() {
        let (root, mut context) = context();
        assert_eq!(outcome(&context, write("reset")).await, Ok(()));
        let text = fs::read_to_string(root.path().join("sys/devices/platform/board/reset"));
        assert_eq!(text.expect("there"), "1");
        for outside in ["../board/reset", "/sys/reset", "leak"] {
            let error = outcome(&context, write(outside)).await.expect_err("outside");
            assert!(error.ends_with("is outside the device's folder"), "{error}");
        }
        assert_eq!(fs::read_to_string(root.path().join("passwd")).expect("there"), "before");
        let error = outcome(&context, write("none")).await.expect_err("missing");
        assert!(error.starts_with("cannot write /sys/devices/platform/board/none: "), "{error}");
        let permit = context.write_permit.clone().try_acquire_owned().expect("free");
        let error = outcome(&context, write("reset")).await.expect_err("hangs");
        assert!(error.starts_with("an earlier write to reset"), "{error}");
        drop(permit);
        context.plan.folder = None;
        let result = outcome(&context, write("reset")).await;
        assert!(result.expect_err("no folder").ends_with("has no folder in sysfs"));
    }
}
