//! A simulated kernel that limits the memory of AMD's and Intel's GPUs: control groups with `dmem`, programs in them,
//! and the files of GPUs that they have open.

use std::{
    cell::RefCell,
    fs,
    io::Cursor,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use serde_json::json;
use windlass_core::{
    cdi::{ContainerEdits, Hook},
    device::Device,
};
use windlass_machine::{Machine, MachineProfile};
use windlass_resources::NodeState;
use windlass_testkit::until;

/// Path of the hook on the host.
pub(crate) const HOOK: &str = "/opt/windlass/windlass-hook";

/// Capabilities of an agent that sees open files.
pub(crate) const PTRACE: &str = "CapEff:\t0000000000080000\n";

/// Id of the container at the runtime.
pub(crate) const CONTAINER: &str = "c0ffee";

pub(crate) const MI300X: Vendor = Vendor {
    profile: "mi300x",
    source: "amd",
    region: "drm/0000:05:00.0/vram",
    memory: "drm-resident-vram",
    memory_mib: 196_592,
};
pub(crate) const FLEX: Vendor = Vendor {
    profile: "flex-170",
    source: "intel",
    region: "drm/0000:3a:00.0/vram0",
    memory: "drm-total-vram0",
    memory_mib: 16_384,
};

/// A vendor's machine, and its first GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vendor {
    pub(crate) profile: &'static str,
    pub(crate) source: &'static str,
    pub(crate) region: &'static str,
    /// Key of a client's memory.
    memory: &'static str,
    /// Memory of a GPU.
    pub(crate) memory_mib: u64,
}

/// The kernel of a simulated machine with the GPUs of a vendor.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    root: PathBuf,
    vendor: Vendor,
    regions: Vec<String>,
}

/// A program, in a container or of the host.
pub(crate) struct Program(Child);

// === impl Program ===

impl Program {
    pub(crate) fn start() -> Self {
        let child = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn();
        Self(child.expect("a program"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Blocks until the program ends.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().expect("a child")
    }

    /// Waits until the program ends.
    pub(crate) async fn until_ended(self) {
        let program = RefCell::new(self);
        until("the program ends", async || {
            if program.borrow_mut().is_running() { Err("it runs") } else { Ok(()) }
        })
        .await;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Vendor ===

impl Vendor {
    pub(crate) fn machine(self) -> MachineProfile {
        MachineProfile::named(self.profile).expect("a shipped profile")
    }

    /// The line of the first GPU in `dmem.capacity`.
    pub(crate) fn capacity(self) -> String {
        format!("{} 17179869184\n", self.region)
    }

    fn address(self) -> &'static str {
        self.region.split('/').nth(1).expect("an address")
    }

    /// The first GPU.
    pub(crate) fn gpu(self, state: &NodeState) -> Device {
        let mut gpus = state.inventory.devices.iter();
        let is_first =
            |gpu: &&Device| gpu.place.pci.is_some_and(|it| it.to_string() == self.address());
        gpus.find(is_first).expect("it is there").clone()
    }
}

// === impl Kernel ===

impl Kernel {
    /// A kernel with these regions, without the controller for `None`, that shows its processes to an agent with these
    /// capabilities.
    pub(crate) fn of(
        machine: &Machine,
        vendor: Vendor,
        regions: Option<&str>,
        capabilities: &str,
    ) -> Self {
        let names = regions.into_iter().flat_map(str::lines).filter_map(|it| it.split(' ').next());
        let names = names.map(str::to_owned).collect();
        let kernel = Self { root: machine.host_root(), vendor, regions: names };
        let agent = format!("/proc/{}", std::process::id());
        let stat = fs::read_to_string("/proc/self/stat").expect("it is there");
        kernel.write(&format!("{agent}/stat"), &stat);
        kernel.write(&format!("{agent}/status"), capabilities);
        let controllers = if regions.is_some() { "memory dmem\n" } else { "memory\n" };
        for cgroup in ["", "/kubepods"] {
            kernel.cgroup(cgroup, controllers);
        }
        if let Some(regions) = regions {
            kernel.write("/sys/fs/cgroup/dmem.capacity", regions);
        }
        kernel
    }

    /// Folder on the host.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, text).expect("written");
    }

    fn cgroup(&self, cgroup: &str, controllers: &str) {
        let folder = format!("/sys/fs/cgroup{cgroup}");
        self.write(&format!("{folder}/cgroup.controllers"), controllers);
        self.write(&format!("{folder}/cgroup.subtree_control"), "memory\n");
    }

    /// Starts a program of a pod's container, or of the host.
    pub(crate) fn program(&self, pod: Option<&str>) -> Program {
        let program = Program::start();
        let group = match pod {
            Some(uid) => format!("/kubepods/pod{uid}/{CONTAINER}"),
            None => "/system.slice/gdm.service".to_owned(),
        };
        self.write(&format!("/proc/{}/cgroup", program.pid()), &format!("0::{group}\n"));
        program
    }

    /// Has a program open a file of the first GPU, as a client with this number of MiB.
    pub(crate) fn open_file(&self, program: &Program, file: u32, client: u64, mib: u64) {
        let Vendor { memory, .. } = self.vendor;
        let text = format!(
            "pos:\t0\nflags:\t02100002\ndrm-driver:\tx\ndrm-client-id:\t{client}\ndrm-pdev:\t{}\n\
             {memory}:\t{} KiB\n",
            self.vendor.address(),
            mib << 10
        );
        self.write(&format!("/proc/{}/fdinfo/{file}", program.pid()), &text);
    }

    /// Has a program close a file.
    pub(crate) fn close_file(&self, program: &Program, file: u32) {
        let path = self.path(&format!("/proc/{}/fdinfo/{file}", program.pid()));
        fs::remove_file(path).expect("it was open");
    }

    /// Removes a program that ended from the kernel's files.
    pub(crate) fn remove_program(&self, program: &Program) {
        let path = self.path(&format!("/proc/{}", program.pid()));
        fs::remove_dir_all(path).expect("it was there");
    }

    /// Runs the hook for a pod's container as the container runtime does. Returns the limit in bytes.
    pub(crate) fn limit(
        &self,
        pod: &str,
        container: &Program,
        record: &Path,
    ) -> Result<u64, String> {
        self.cgroup(&format!("/kubepods/pod{pod}"), "memory dmem\n");
        self.write("/proc/self/cgroup", "0::/system.slice/containerd.service\n");
        self.write("/proc/sys/kernel/random/boot_id", "6a1f0e3c-0000-4000-8000-000000000001\n");
        let cgroup = format!("/sys/fs/cgroup/kubepods/pod{pod}/{CONTAINER}");
        self.write(&format!("{cgroup}/cgroup.controllers"), "memory dmem\n");
        let unlimited: Vec<_> = self.regions.iter().map(|it| format!("{it} max\n")).collect();
        self.write(&format!("{cgroup}/dmem.max"), &unlimited.concat());
        let state = json!({"ociVersion": "1.2.0", "id": CONTAINER, "status": "creating",
                           "pid": container.pid(), "bundle": "/"});
        let result =
            windlass_hook::limit(record, 1, Cursor::new(state.to_string()), &self.path("/proc"));
        result.map_err(|error| windlass_host::causes(&error))?;
        let max =
            fs::read_to_string(self.path(&format!("{cgroup}/dmem.max"))).expect("it is there");
        let (region, bytes) = max.trim().split_once(' ').expect("a line");
        assert!(self.regions.iter().any(|it| it == region), "{region}");
        Ok(bytes.parse().expect("a number"))
    }
}

/// The record of the only hook.
pub(crate) fn record_of(edits: &ContainerEdits) -> PathBuf {
    let [hook] = &edits.hooks[..] else { panic!("{edits:?}") };
    let Hook { hook_name, path, args, .. } = hook;
    assert_eq!((hook_name.as_str(), path.as_path()), ("createRuntime", Path::new(HOOK)));
    let position = args.iter().position(|arg| arg == "--record").expect("a record");
    args[position + 1].clone().into()
}
