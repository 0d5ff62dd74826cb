//! Kubernetes' own DRA driver in Go, held against the cases. `WINDLASS_GO_DRA_DRIVER` names the program, which is built
//! from `test/e2e/dra/test-driver` of Kubernetes 1.36.

use std::{collections::BTreeMap, env};

use windlass_conformance::{Subject, Verdict, catalogue, run};

const PROGRAM: &str = "WINDLASS_GO_DRA_DRIVER";

const ARGUMENTS: [&str; 6] = [
    "kubelet-plugin",
    "--kubeconfig={kubeconfig}",
    "--node-name={node}",
    "--plugin-registration-path={kubelet}/plugins_registry",
    "--datadir={kubelet}/plugins",
    "--cdi-dir={scratch}/cdi",
];

/// What it does otherwise than the cases ask, each explained in `docs/conformance.md`.
const FAILS: &[&str] = &["D06", "D26", "D30", "D32"];

/// Without the program there is nothing to check.
#[tokio::test]
async fn kubernetes_own_driver_does_what_the_cases_ask_but_for_what_is_known() {
    let Ok(program) = env::var(PROGRAM) else {
        eprintln!("SKIPPED: set {PROGRAM} to judge a driver written in Go");
        return;
    };
    let command = [program.as_str()].into_iter().chain(ARGUMENTS).map(str::to_owned).collect();
    let mut subject = Subject::new(command);
    subject.cdi_dirs = vec!["{scratch}/cdi".into()];
    // It makes the folder above its own, as its DaemonSet has its own mounted.
    subject.hooks.setup = Some("mkdir -p {kubelet}/plugins/test-driver.cdi.k8s.io".into());
    let wanted = env::var("WINDLASS_CASES").unwrap_or_else(|_| "D".into());
    let mut cases = catalogue();
    cases.retain(|case| wanted.split(',').any(|it| case.id.starts_with(it)));
    let report = run(&cases, subject, 2, |found| {
        eprintln!("{} {:?}: {} {:?}", found.id, found.verdict, found.evidence, found.last_words);
    })
    .await;
    let fails: BTreeMap<_, _> = report
        .findings
        .iter()
        .filter(|found| found.verdict == Verdict::Fail)
        .map(|found| (found.id, &found.evidence))
        .collect();
    assert_eq!(fails.keys().copied().collect::<Vec<_>>(), FAILS, "{fails:#?}");
}
