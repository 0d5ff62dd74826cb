//! GPU fractions at a real containerd: pods by its CRI, the agent by its NRI.
//!
//! Runs as root, if `WINDLASS_E2E_CONTAINERD` names a containerd 1.7 with `ctr` and its shim beside it, and
//! `WINDLASS_E2E_IMAGE` a docker archive with the image `docker.io/local/app:1`, which has a shell.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use prost::Message;
use tonic::{client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;
use windlass_config::RequiredLimit;
use windlass_kubelet_api::socket::SocketPath;
use windlass_testkit::until;

use super::{World, by_hook, fraction};

const PROGRAM: &str = "WINDLASS_E2E_CONTAINERD";
const ARCHIVE: &str = "WINDLASS_E2E_IMAGE";
const IMAGE: &str = "docker.io/local/app:1";

#[derive(Clone, PartialEq, Message)]
struct RunSandbox {
    #[prost(message, optional, tag = "1")]
    config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<SandboxMetadata>,
    #[prost(string, tag = "3")]
    log_directory: String,
    #[prost(btree_map = "string, string", tag = "7")]
    annotations: BTreeMap<String, String>,
    #[prost(message, optional, tag = "8")]
    linux: Option<LinuxSandbox>,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct LinuxSandbox {
    #[prost(message, optional, tag = "2")]
    security: Option<SandboxSecurity>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct SandboxSecurity {
    #[prost(message, optional, tag = "1")]
    namespaces: Option<Namespaces>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Namespaces {
    #[prost(int32, tag = "1")]
    network: i32,
    #[prost(int32, tag = "2")]
    pid: i32,
}

#[derive(Clone, PartialEq, Message)]
struct CreateContainer {
    #[prost(string, tag = "1")]
    sandbox: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerConfig {
    /// Metadata, whose first field is the name.
    #[prost(message, optional, tag = "1")]
    metadata: Option<Id>,
    /// Specification, whose first field is the image.
    #[prost(message, optional, tag = "2")]
    image: Option<Id>,
    #[prost(string, repeated, tag = "3")]
    command: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    env: Vec<Variable>,
    #[prost(string, tag = "11")]
    log_path: String,
}

#[derive(Clone, PartialEq, Message)]
struct Variable {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// Request or answer with only an id.
#[derive(Clone, PartialEq, Message)]
struct Id {
    #[prost(string, tag = "1")]
    id: String,
}

/// A containerd with root, state and sockets in a folder.
struct Containerd {
    program: PathBuf,
    folder: PathBuf,
    daemon: Child,
}

/// The daemon's CRI.
struct Cri {
    channel: Channel,
    logs: PathBuf,
}

// === impl Containerd ===

impl Containerd {
    async fn start(program: &Path, folder: &Path, nri: &Path) -> Self {
        let folder_text = folder.display();
        let config = format!(
            r#"
version = 2
root = "{folder_text}/root"
state = "{folder_text}/state"
[grpc]
  address = "{folder_text}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder_text}/cni"
    conf_dir = "{folder_text}/cni"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  disable_connections = false
  plugin_path = "{folder_text}/nri-plugins"
  plugin_config_path = "{folder_text}/nri-conf"
  socket_path = "{}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder_text}/opt"
"#,
            nri.display()
        );
        fs::create_dir_all(folder).expect("created");
        fs::write(folder.join("config.toml"), config).expect("written");
        let mut containerd = Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            daemon: Self::daemon(program, folder),
        };
        containerd.until_up().await;
        containerd
    }

    fn daemon(program: &Path, folder: &Path) -> Child {
        let log = fs::OpenOptions::new().append(true).create(true).open(folder.join("log"));
        let log = log.expect("a log");
        let shims = program.parent().expect("a folder").display().to_string();
        let path = format!("{shims}:{}", env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.arg("-c").arg(folder.join("config.toml")).env("PATH", path);
        command.stdout(Stdio::null()).stderr(log);
        command.spawn().expect("a containerd")
    }

    async fn until_up(&mut self) {
        let archive = env::var(ARCHIVE).expect("the image");
        until("the image", async || {
            let is_imported = self.ctr(&["images", "import", &archive]);
            if is_imported { Ok(()) } else { Err(fs::read_to_string(self.folder.join("log"))) }
        })
        .await;
    }

    /// Ends the daemon, whose containers keep running, and starts it again.
    async fn restart(&mut self) {
        self.daemon.kill().expect("killed");
        self.daemon.wait().expect("a child");
        self.daemon = Self::daemon(&self.program, &self.folder);
        self.until_up().await;
    }

    fn ctr(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new(self.program.with_file_name("ctr"));
        command.arg("-a").arg(self.folder.join("containerd.sock")).args(["-n", "k8s.io"]);
        let status = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    async fn cri(&self) -> Cri {
        let socket = SocketPath::new(self.folder.join("containerd.sock")).expect("short");
        let channel = socket.dial().await.expect("it listens");
        Cri { channel, logs: self.folder.join("logs") }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

// === impl Cri ===

impl Cri {
    async fn call<T: Message + Default + 'static>(
        &self,
        method: &str,
        request: impl Message + Default + 'static,
    ) -> Result<T, String> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| error.to_string())?;
        let path: PathAndQuery =
            format!("/runtime.v1.RuntimeService/{method}").parse().expect("a path");
        let codec = ProstCodec::default();
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
    }

    fn config(&self, name: &str, annotations: &[(String, String)]) -> SandboxConfig {
        let metadata = SandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "default".to_owned(),
        };
        // The host's network needs no CNI plugin.
        let namespaces = Namespaces { network: 2, pid: 1 };
        let security = SandboxSecurity { namespaces: Some(namespaces) };
        SandboxConfig {
            metadata: Some(metadata),
            log_directory: self.logs.display().to_string(),
            annotations: annotations.iter().cloned().collect(),
            linux: Some(LinuxSandbox { security: Some(security) }),
        }
    }

    /// Id of a new sandbox.
    async fn sandbox(&self, config: &SandboxConfig) -> String {
        let request = RunSandbox { config: Some(config.clone()) };
        self.call::<Id>("RunPodSandbox", request).await.expect("a sandbox").id
    }

    /// Id of a new container that prints its environment.
    async fn container(&self, sandbox: &str, config: &SandboxConfig) -> Result<String, String> {
        let env = [("NVIDIA_VISIBLE_DEVICES", "void"), ("NVIDIA_GPU_MEMORY_LIMIT", "1")];
        let env = env.map(|(key, value)| Variable { key: key.into(), value: value.into() });
        let container = ContainerConfig {
            metadata: Some(Id { id: "main".to_owned() }),
            image: Some(Id { id: IMAGE.to_owned() }),
            command: ["/bin/sh", "-c", "env; sleep 600"].map(str::to_owned).to_vec(),
            env: env.to_vec(),
            log_path: format!("{sandbox}.log"),
        };
        let request = CreateContainer {
            sandbox: sandbox.to_owned(),
            config: Some(container),
            sandbox_config: Some(config.clone()),
        };
        Ok(self.call::<Id>("CreateContainer", request).await?.id)
    }

    /// Waits until the container of a sandbox prints a line.
    async fn until_printed(&self, sandbox: &str, line: &str) {
        let log = self.logs.join(format!("{sandbox}.log"));
        until(line, async || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.lines().any(|it| it.ends_with(line)) { Ok(()) } else { Err(text) }
        })
        .await;
    }

    async fn call_with_id(&self, method: &str, id: &str) {
        self.call::<()>(method, Id { id: id.to_owned() }).await.expect(method);
    }

    async fn remove(&self, sandbox: &str) {
        self.call_with_id("StopPodSandbox", sandbox).await;
        self.call_with_id("RemovePodSandbox", sandbox).await;
    }
}

/// Writes a hook that records its calls. Returns the path of the record.
fn write_hook(hook: &Path) -> PathBuf {
    let calls = hook.with_file_name("calls");
    let script = format!("#!/bin/sh\ncat >/dev/null\necho \"$0 $*\" >>{}\n", calls.display());
    fs::write(hook, script).expect("written");
    fs::set_permissions(hook, fs::Permissions::from_mode(0o755)).expect("a program");
    calls
}

#[tokio::test]
async fn fractions_are_limited_and_refused_at_a_real_containerd_over_a_restart() {
    let Some(program) = env::var_os(PROGRAM).map(PathBuf::from) else {
        eprintln!("SKIPPED: set {PROGRAM} and {ARCHIVE} to run this as root");
        return;
    };
    let world = World::new("615.10", by_hook(RequiredLimit::None)).await;
    // Programs and mounts need a disk.
    let folder_on_disk = tempfile::tempdir().expect("a temporary folder");
    let hook = folder_on_disk.path().join("hook");
    let calls = write_hook(&hook);
    let mut policy = by_hook(RequiredLimit::None);
    policy.memory_limits.hook = Some(hook.clone());
    world.agent.set_policy(policy);
    world.agent.until(|state| state.policy.memory_limits.hook.as_ref() == Some(&hook)).await;
    let folder = hook.with_file_name("containerd");
    let mut containerd = Containerd::start(&program, &folder, &world.socket()).await;
    world.until_condition("True", "MemoryLimited").await;
    let cri = containerd.cri().await;

    let gpu = &world.gpus[0];
    let config = cri.config("good", &fraction("0", &[("main", "2Gi")]));
    let limited_sandbox = cri.sandbox(&config).await;
    let container = cri.container(&limited_sandbox, &config).await.expect("created");
    assert!(world.record(&container).exists());
    cri.call_with_id("StartContainer", &container).await;
    for line in [format!("NVIDIA_VISIBLE_DEVICES={gpu}"), "NVIDIA_GPU_MEMORY_LIMIT=2048".into()] {
        cri.until_printed(&limited_sandbox, &line).await;
    }
    let hook_calls = fs::read_to_string(&calls).expect("the hook ran");
    let record = world.record(&container).display().to_string();
    assert!(
        hook_calls.trim().ends_with(&format!("memory-limit --record {record}")),
        "{hook_calls}"
    );
    world.until_metric(&world.limit("good", 2048)).await;

    let config = cri.config("bad", &fraction("0", &[("main", "200Gi")]));
    let refused_sandbox = cri.sandbox(&config).await;
    let error = cri.container(&refused_sandbox, &config).await.expect_err("above the GPU");
    assert!(error.contains("windlass refuses container main of pod default/bad"), "{error}");
    let config = cri.config("plain", &[]);
    let plain = cri.sandbox(&config).await;
    cri.container(&plain, &config).await.expect("unchanged by the agent");

    containerd.restart().await;
    world.until_condition("True", "MemoryLimited").await;
    world.until_metric(&world.limit("good", 2048)).await;
    let cri = containerd.cri().await;
    for sandbox in [limited_sandbox, refused_sandbox, plain] {
        cri.remove(&sandbox).await;
    }
    windlass_testkit::until_removed(&world.record(&container)).await;
    world.agent.stop().await;
}
