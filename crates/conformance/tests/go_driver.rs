//! Third-party DRA drivers in Go, tested with all cases of drivers. Each test needs an environment variable with the
//! path of its program. `docs/conformance.md` lists versions, verdicts, and the causes of failures.

use std::env;

use windlass_conformance::{Report, Subject, Verdict, catalogue, run};

/// Driver program, with its known verdicts other than a pass.
struct Driver {
    variable: &'static str,
    setup: Option<&'static str>,
    arguments: Vec<&'static str>,
    fails: &'static [&'static str],
    not_applicable: &'static [&'static str],
}

/// Flags of drivers that derive from the example driver.
const PATH_FLAGS: [&str; 5] = [
    "--kubeconfig={kubeconfig}",
    "--node-name={node}",
    "--kubelet-registrar-directory-path={kubelet}/plugins_registry",
    "--kubelet-plugins-directory-path={kubelet}/plugins",
    "--cdi-root={scratch}/cdi",
];

#[tokio::test]
async fn the_driver_of_kubernetes_tests_has_the_known_verdicts() {
    let driver = Driver {
        variable: "WINDLASS_GO_DRA_DRIVER",
        // The driver creates the parent of its folder only: its DaemonSet mounts the folder itself.
        setup: Some("mkdir -p {kubelet}/plugins/test-driver.cdi.k8s.io"),
        arguments: vec![
            "kubelet-plugin",
            "--kubeconfig={kubeconfig}",
            "--node-name={node}",
            "--plugin-registration-path={kubelet}/plugins_registry",
            "--datadir={kubelet}/plugins",
            "--cdi-dir={scratch}/cdi",
        ],
        fails: &["D06", "D26", "D30", "D32"],
        not_applicable: &["D18"],
    };
    driver.assert_verdicts().await;
}

#[tokio::test]
async fn the_example_driver_has_the_known_verdicts() {
    let driver = Driver {
        variable: "WINDLASS_GO_DRA_EXAMPLE",
        setup: None,
        arguments: PATH_FLAGS.to_vec(),
        fails: &["D06", "D26"],
        not_applicable: &["D18", "D31", "D32"],
    };
    driver.assert_verdicts().await;
}

/// Uses the GPUs of a simulated machine, which the `windlass` in `PATH` creates.
#[tokio::test]
async fn nvidias_driver_has_the_known_verdicts() {
    let driver = Driver {
        variable: "WINDLASS_GO_DRA_NVIDIA",
        setup: Some(
            "windlass machine create {scratch}/m > /dev/null && \
             ln -s ../libnvidia-ml.so {scratch}/m/host/libnvidia-ml.so.1",
        ),
        arguments: [
            &PATH_FLAGS[..],
            &[
                "--container-driver-root={scratch}/m/host",
                "--nvidia-driver-root={scratch}/m/host",
                "--nvidia-cdi-hook-path=/bin/true",
                "--image-name=none",
            ],
        ]
        .concat(),
        fails: &["D06"],
        not_applicable: &["D18", "D31", "D32"],
    };
    driver.assert_verdicts().await;
}

// === impl Driver ===

impl Driver {
    /// Runs all cases of drivers and compares the verdicts. Skips if the variable is not set.
    #[expect(
        clippy::print_stderr,
        reason = "a skipped test reports its reason, and developers read each finding"
    )]
    async fn assert_verdicts(&self) {
        let Ok(program) = env::var(self.variable) else {
            eprintln!("SKIPPED: set {} to the path of the driver", self.variable);
            return;
        };
        let command = [program.as_str()].into_iter().chain(self.arguments.iter().copied());
        let mut subject = Subject::new(command.map(str::to_owned).collect());
        subject.cdi_dirs = vec!["{scratch}/cdi".into()];
        subject.hooks.setup = self.setup.map(str::to_owned);
        let mut cases = catalogue();
        cases.retain(|case| case.id.starts_with('D'));
        let report = run(&cases, subject, 2, |finding| {
            eprintln!(
                "{} {:?}: {} {:?}",
                finding.id, finding.verdict, finding.evidence, finding.last_words
            );
        })
        .await;
        assert_eq!(case_ids(&report, Verdict::Fail), self.fails);
        assert_eq!(case_ids(&report, Verdict::NotApplicable), self.not_applicable);
    }
}

fn case_ids(report: &Report, verdict: Verdict) -> Vec<&'static str> {
    let findings = report.findings.iter().filter(|finding| finding.verdict == verdict);
    findings.map(|finding| finding.id).collect()
}
