//! Checks that the container runtime reads CDI documents.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tokio::time::timeout;
use windlass_config::{Config, Policy};
use windlass_core::finding::{Finding, Severity};
use windlass_kubelet_api::{cri::Runtime, socket::SocketPath};

const AREA: &str = "container runtime";

/// Sockets of containerd, k3s and RKE2, k0s, `MicroK8s`, and CRI-O.
const DEFAULT_SOCKETS: [&str; 5] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
];
/// Time limit for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const REMEDY: &str = "update the runtime, or use another deviceList (docs/install.md)";

pub(super) async fn check(
    config: &Config,
    socket: Option<&str>,
    is_configured: bool,
) -> Vec<Finding> {
    let host = config.places.host();
    let argument = socket.map(|text| PathBuf::from(text.strip_prefix("unix://").unwrap_or(text)));
    let is_given = argument.is_some();
    let mut candidates: Vec<_> = argument.map_or_else(
        || DEFAULT_SOCKETS.iter().map(|path| host.path(path)).collect(),
        |path| vec![path],
    );
    candidates.retain(|path| is_given || path.exists());
    if candidates.is_empty() {
        let detail = "no socket of a runtime in the usual folders";
        let finding = Finding::skipped(AREA, "socket", detail);
        return vec![
            finding.with_remedy("give it with --runtime-socket; the agent's pod cannot see it"),
        ];
    }
    let mut findings = Vec::new();
    for path in candidates {
        let subject = path.display().to_string();
        let answer = match SocketPath::new(path) {
            Ok(socket) => timeout(ANSWER_LIMIT, Runtime::query(&socket)).await,
            Err(error) => Ok(Err(error.into())),
        };
        findings.extend(match answer {
            Ok(Ok(runtime)) => {
                let mut findings = check_runtime(&runtime, &config.policy, &config.places.cdi_dir);
                let uncertain = findings.iter_mut().filter(|_| !is_configured);
                uncertain.for_each(downgrade);
                findings
            }
            // containerd of Docker has no CRI; another runtime serves the kubelet.
            Ok(Err(error)) if !is_given && error.is_unimplemented() => {
                vec![Finding::skipped(AREA, subject, "it serves no kubelet")]
            }
            Ok(Err(error)) => {
                vec![
                    Finding::problem(AREA, subject, windlass_host::causes(&error))
                        .with_remedy("start the runtime, or name its socket with --runtime-socket"),
                ]
            }
            Err(_) => vec![
                Finding::problem(AREA, subject, format!("no answer within {ANSWER_LIMIT:?}"))
                    .with_remedy("see the runtime's log; pods do not start either"),
            ],
        });
    }
    findings
}

/// Turns a problem into a warning, because the agent may have another configuration, which does not use CDI.
fn downgrade(finding: &mut Finding) {
    if finding.severity == Severity::Problem {
        finding.severity = Severity::Warning;
        finding.detail += ", if the agent's deviceList uses CDI (--config names its configuration)";
    }
}

fn check_runtime(runtime: &Runtime, policy: &Policy, cdi_dir: &Path) -> Vec<Finding> {
    let version = format!("{} {}", runtime.name, runtime.version);
    let mut findings = vec![Finding::ok(AREA, "version", version)];
    if !policy.delivery.uses_cdi() {
        findings.push(Finding::skipped(
            AREA,
            "CDI",
            "the configuration's deviceList does not use it",
        ));
        return findings;
    }
    findings.push(match (runtime.name.as_str(), parse_version(&runtime.version)) {
        ("containerd", Some(release)) if release < (1, 7) => {
            Finding::problem(AREA, "CDI", "containerd before 1.7 reads no CDI documents")
                .with_remedy(REMEDY)
        }
        ("containerd", Some(_)) => containerd(runtime, cdi_dir),
        ("cri-o", Some(release)) if release < (1, 23) => {
            Finding::problem(AREA, "CDI", "CRI-O before 1.23 reads no CDI documents")
                .with_remedy(REMEDY)
        }
        ("cri-o", Some(_)) => Finding::ok(AREA, "CDI", "this version reads CDI documents"),
        (name, _) => Finding::skipped(AREA, "CDI", format!("unknown for {name}")),
    });
    findings
}

/// Checks containerd by its settings, which it reports as JSON under `config`.
fn containerd(runtime: &Runtime, cdi_dir: &Path) -> Finding {
    let settings =
        runtime.info.get("config").and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(settings) = settings else {
        return Finding::skipped(AREA, "CDI", "containerd does not report its settings");
    };
    match settings["enableCDI"].as_bool() {
        Some(false) => {
            Finding::problem(AREA, "CDI", "turned off: containers start without their devices")
                .with_remedy(
                    "set enable_cdi = true in containerd's configuration, and restart containerd",
                )
        }
        Some(true) => {
            let folders = settings["cdiSpecDirs"].as_array().into_iter().flatten();
            let folders: Vec<_> = folders.filter_map(Value::as_str).collect();
            if !folders.is_empty()
                && !folders.iter().any(|folder| is_same(folder.as_ref(), cdi_dir))
            {
                let detail = format!(
                    "containerd reads documents from {}, but not from {}",
                    folders.join(", "),
                    cdi_dir.display()
                );
                return Finding::problem(AREA, "CDI", detail).with_remedy(
                    "add the folder to cdi_spec_dirs, or give the agent one of these: --cdi-dir",
                );
            }
            Finding::ok(AREA, "CDI", format!("on, documents are read from {}", folders.join(", ")))
        }
        None => Finding::ok(AREA, "CDI", "this version reads CDI documents"),
    }
}

/// True if the paths are equal, where `/var/run` is a link to `/run`.
fn is_same(a: &Path, b: &Path) -> bool {
    let without_var = |path: &Path| {
        path.strip_prefix("/var/run").map_or(path.to_owned(), |rest| Path::new("/run").join(rest))
    };
    without_var(a) == without_var(b)
}

/// Major and minor number of a version: `v1.7.24`, `1.30.4`, `2.0.0-rc.1`.
fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?;
    let digits = minor.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(minor.len());
    Some((major, minor[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn severity(name: &str, version: &str, config: Option<&str>) -> (Severity, String) {
        let info = config.map(|text| ("config".to_owned(), text.to_owned()));
        let runtime = Runtime {
            name: name.to_owned(),
            version: version.to_owned(),
            info: info.into_iter().collect(),
        };
        let finding = check_runtime(&runtime, &Policy::default(), "/var/run/cdi".as_ref()).pop();
        let finding = finding.expect("a finding about CDI");
        (finding.severity, finding.detail)
    }

    #[test]
    fn runtimes_read_cdi_documents_by_version_and_settings() {
        let enabled = Some(r#"{"enableCDI": true, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"]}"#);
        let disabled = Some(r#"{"enableCDI": false}"#);
        let text = "on, documents are read from /etc/cdi, /var/run/cdi".to_owned();
        assert_eq!(severity("containerd", "v1.7.24", enabled), (Severity::Ok, text.clone()));
        assert_eq!(severity("containerd", "2.0.0-rc.1", enabled), (Severity::Ok, text));
        assert_eq!(severity("containerd", "v1.7.24", disabled).0, Severity::Problem);
        assert_eq!(severity("containerd", "1.6.20~ds1", disabled).0, Severity::Problem);
        assert_eq!(severity("containerd", "1.7.24", None).0, Severity::Skipped);
        assert_eq!(severity("containerd", "1.7.24", Some("{")).0, Severity::Skipped);
        assert_eq!(severity("cri-o", "1.22.5", None).0, Severity::Problem);
        assert_eq!(severity("cri-o", "1.34.1", None).0, Severity::Ok);
        assert_eq!(severity("docker", "27", None).0, Severity::Skipped);
        assert_eq!(severity("containerd", "unknown", enabled).0, Severity::Skipped);
    }

    #[test]
    fn a_folder_that_the_runtime_does_not_read_is_a_problem() {
        let other_folder = Some(r#"{"enableCDI": true, "cdiSpecDirs": ["/etc/cdi"]}"#);
        assert_eq!(severity("containerd", "1.7.24", other_folder).0, Severity::Problem);
        let same_folder = Some(r#"{"enableCDI": true, "cdiSpecDirs": ["/run/cdi"]}"#);
        assert_eq!(severity("containerd", "1.7.24", same_folder).0, Severity::Ok);
    }

    #[test]
    fn without_the_agents_configuration_a_problem_is_a_warning() {
        let mut finding = Finding::problem(AREA, "CDI", "turned off");
        downgrade(&mut finding);
        assert_eq!(finding.severity, Severity::Warning);
    }
}
