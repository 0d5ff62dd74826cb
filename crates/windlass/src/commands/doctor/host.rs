//! Checks of the host: kernel, control groups, rights, folders.

use std::{fs, path::Path};

use windlass_config::Config;
use windlass_core::finding::Finding;
use windlass_host::{Host, dmem::CGROUP2_CONTROLLERS};

const AREA: &str = "host";

pub(super) fn check(config: &Config) -> Vec<Finding> {
    let host = config.places.host();
    let read = |path: &str| fs::read_to_string(host.path(path)).ok();
    let mut findings = vec![rights()];
    findings.push(match read("/proc/sys/kernel/osrelease") {
        Some(release) => Finding::ok(AREA, "kernel", format!("Linux {}", release.trim())),
        None => Finding::skipped(AREA, "kernel", "/proc/sys/kernel/osrelease cannot be read"),
    });
    findings.push(control_groups(&host));
    findings.push(folder("CDI documents", &config.places.cdi_dir, "--cdi-dir, or cdiDir"));
    findings.push(folder("state", &config.places.state_dir, "--state-dir, or stateDir"));
    findings
}

fn rights() -> Finding {
    if rustix::process::geteuid().is_root() {
        return Finding::ok(AREA, "rights", "root");
    }
    Finding::warning(
        AREA,
        "rights",
        "not root: sockets of the kubelet and device nodes cannot be opened",
    )
    .with_remedy("run it with sudo, or in the agent's pod")
}

fn control_groups(host: &Host) -> Finding {
    const SUBJECT: &str = "control groups";
    if host.path(CGROUP2_CONTROLLERS).exists() {
        return Finding::ok(AREA, SUBJECT, "cgroup v2");
    }
    let folder = host.path("/sys/fs/cgroup");
    if folder.is_dir() {
        return Finding::warning(
            AREA,
            SUBJECT,
            "cgroup v1: the driver and the kernel cannot limit the memory of shares",
        )
        .with_remedy("boot the node with cgroup v2 (systemd.unified_cgroup_hierarchy=1)");
    }
    Finding::skipped(AREA, SUBJECT, format!("no {}", folder.display()))
}

/// Checks a folder of the agent. The agent creates a missing folder at its start.
fn folder(contents: &str, path: &Path, setting: &str) -> Finding {
    let subject = format!("folder of {contents}");
    let path_text = path.display();
    match fs::metadata(path) {
        Err(_) => Finding::skipped(AREA, subject, format!("no {path_text} yet")),
        Ok(metadata) if !metadata.is_dir() => {
            Finding::problem(AREA, subject, format!("{path_text} is not a folder"))
                .with_remedy(format!("remove it, or choose another with {setting}"))
        }
        Ok(_) => match rustix::fs::access(path, rustix::fs::Access::WRITE_OK) {
            Ok(()) => Finding::ok(AREA, subject, path_text.to_string()),
            Err(error) => {
                Finding::warning(AREA, subject, format!("{path_text} cannot be written: {error}"))
                    .with_remedy("run it as root; a read-only file system needs another folder")
            }
        },
    }
}
