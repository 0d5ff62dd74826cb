//! Proof that each case can fail. A conforming plugin and a conforming driver pass all their cases. Each case detects
//! at least one defect of these programs.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::task::JoinSet;
use windlass_conformance::{Finding, Subject, Verdict, catalogue, run};

/// Defects of the plugin, each with cases that must fail.
const PLUGIN_DEFECTS: &[(&str, &str)] = &[
    ("registers-before-serving", "R01"),
    ("registers-with-a-wrong-version", "R02"),
    ("socket-elsewhere", "R03"),
    ("heartbeat", "R04"),
    ("ends-without-kubelet", "R05"),
    ("gives-up-when-refused", "R06 R07"),
    ("cleans-the-folder", "R08"),
    ("keeps-old-socket", "R09 K05"),
    ("never-registers-again", "G01 G02 G04 G05 G06 G07 G08 G09"),
    ("leaks-descriptors", "G03"),
    ("does-not-watch-its-socket", "G05"),
    ("does-not-watch-its-stream", "G07"),
    ("ids-in-two-resources", "L01"),
    ("lists-a-device-twice", "L02"),
    ("long-ids", "L03"),
    ("lower-case-health", "L04"),
    ("empty-topology", "L05"),
    ("one-stream-at-a-time", "L06"),
    ("sends-lists-when-idle", "L07"),
    ("huge-list", "L08"),
    ("new-ids-each-start", "L09"),
    ("new-ids-each-registration", "L10"),
    ("leaks-streams", "L11"),
    ("unread-stream-blocks", "L12"),
    ("hides-faults", "H01"),
    ("drops-failed-devices", "H02"),
    ("never-recovers", "H03"),
    ("reports-health-on-first-stream-only", "H04"),
    ("allocates-once", "A01 K03 K04"),
    ("grants-anything", "A02 A10"),
    ("grants-what-it-knows", "A03"),
    ("answers-the-first-container-only", "A04 P05"),
    ("exits-on-empty-requests", "A05"),
    ("counts-twice", "A06"),
    ("answers-per-device", "A07"),
    ("hangs-in-allocate", "A08 K01 K02"),
    ("one-call-at-a-time", "A09"),
    ("exits-on-cancelled-calls", "A11"),
    ("nodes-that-do-not-exist", "C01"),
    ("odd-permissions", "C02"),
    ("relative-mounts", "C03"),
    ("odd-variables", "C04"),
    ("odd-annotations", "C05"),
    ("odd-cdi-names", "C06"),
    ("cdi-names-without-documents", "C07"),
    ("grants-nothing", "C08"),
    ("prefers-too-few", "P01"),
    ("ignores-must-include", "P02"),
    ("prefers-the-unavailable", "P03"),
    ("prefers-by-order", "P04"),
    ("slow-preference", "P06"),
    ("exits-on-invalid-preference-requests", "P07 P08 P09 P10 P11 P12"),
    ("fails-before-starts", "K06 K07"),
    ("changes-its-options", "W01"),
    ("exits-on-unknown-calls", "W02"),
    ("exits-on-invalid-messages", "W03 W04 W05"),
    ("few-connections", "W06"),
    ("exits-on-cut-calls", "W07"),
    ("ignores-the-signal", "E01 E03"),
    ("lingers-with-open-streams", "E03"),
    ("has-no-sigterm-handler", "E02"),
    ("leaves-its-socket", "E04"),
    ("busy-loops", "E05"),
    ("leaks-memory", "E06"),
];

/// Defects of the driver, each with cases that must fail.
const DRIVER_DEFECTS: &[(&str, &str)] = &[
    ("plain-socket-name", "D01"),
    ("slow-info", "D02"),
    ("unknown-versions", "D02"),
    ("relative-endpoint", "D03"),
    ("serves-late", "D03"),
    ("ends-when-refused", "D04"),
    ("answers-one-kubelet", "D05"),
    ("does-not-watch-its-socket", "D06"),
    ("keeps-old-sockets", "D07"),
    ("invalid-slices", "D08"),
    ("wrong-slice-count", "D09"),
    ("mixed-generations", "D09"),
    ("slices-of-another-node", "D10"),
    ("publishes-once", "D11 D12"),
    ("deletes-others-slices", "D13"),
    ("answers-the-first-claim", "D14"),
    ("answers-for-other-claims", "D14"),
    ("names-subrequests", "D15"),
    ("names-another-pool", "D16"),
    ("cdi-names-without-documents", "D17"),
    ("forgets-shares", "D18"),
    ("prepares-once", "D19 D21"),
    ("new-names-each-start", "D20"),
    ("prepares-missing-claims", "D22"),
    ("ignores-uids", "D23"),
    ("prepares-unallocated-claims", "D24"),
    ("prepares-other-drivers-results", "D25"),
    ("exits-on-missing-claims", "D22"),
    ("prepares-devices-twice", "D26"),
    ("refuses-admin-access", "D27"),
    ("releases-once", "D28"),
    ("needs-the-object-to-unprepare", "D29"),
    ("loses-claims-on-exit", "D30"),
    ("leaves-old-documents", "D30"),
    ("reports-health-once", "D31"),
    ("ends-health-streams", "D31"),
    ("reports-partial-health", "D32"),
    ("leaves-its-socket", "D33"),
    ("ignores-the-signal", "D33"),
    ("releases-at-the-end", "D34"),
    ("leaks-descriptors", "D35"),
    ("exits-on-slow-api-server", "D36"),
    ("exits-without-api-server", "D37"),
];

/// Number of cases or defects in parallel. Most of them wait.
const PARALLEL_CASES: usize = 8;

fn plugin(defect: &str) -> Subject {
    let program = env!("CARGO_BIN_EXE_plugin-with-defects");
    let command = [program, "{kubelet}", "{scratch}", defect].map(str::to_owned);
    let mut subject = Subject::new(command.into());
    subject.cdi_dirs = vec!["{scratch}/cdi".to_owned()];
    subject.hooks.fail = Some("touch {scratch}/fail".to_owned());
    subject.hooks.heal = Some("rm {scratch}/fail".to_owned());
    subject
}

fn driver(defect: &str) -> Subject {
    let program = env!("CARGO_BIN_EXE_driver-with-defects");
    let command = [program, "{kubelet}", "{kubeconfig}", "{node}", "{scratch}", defect];
    let mut subject = Subject::new(command.map(str::to_owned).into());
    subject.cdi_dirs = vec!["{scratch}/cdi".to_owned()];
    subject
}

/// True for cases about drivers.
fn is_driver_case(id: &str) -> bool {
    id.starts_with('D')
}

/// Shortens the limits, for a program that responds at once or never.
fn with_short_limits(mut subject: Subject) -> Subject {
    subject.limits.start = Duration::from_secs(4);
    subject.limits.react = Duration::from_secs(3);
    subject.limits.recover = Duration::from_secs(4);
    subject.limits.republish = Duration::from_secs(4);
    subject.limits.stop = Duration::from_secs(2);
    subject
}

#[tokio::test]
async fn a_plugin_without_a_defect_passes_every_case() {
    assert_passes(plugin("none"), |id| !is_driver_case(id)).await;
}

#[tokio::test]
async fn a_driver_without_a_defect_passes_every_case() {
    assert_passes(driver("none"), is_driver_case).await;
}

async fn assert_passes(subject: Subject, filter: fn(&str) -> bool) {
    let cases: Vec<_> = catalogue().into_iter().filter(|case| filter(case.id)).collect();
    let mut findings = run(&cases, subject, PARALLEL_CASES, |_| ()).await.findings;
    findings.retain(|finding| finding.verdict != Verdict::Pass);
    assert!(findings.is_empty(), "{findings:#?}");
}

#[tokio::test]
async fn every_defect_of_a_plugin_is_found() {
    assert_detected(PLUGIN_DEFECTS, plugin).await;
}

#[tokio::test]
async fn every_defect_of_a_driver_is_found() {
    assert_detected(DRIVER_DEFECTS, driver).await;
}

async fn assert_detected(defects: &'static [(&str, &str)], subject: fn(&str) -> Subject) {
    let (mut waiting, mut running, mut missed) = (defects.iter(), JoinSet::new(), Vec::new());
    loop {
        while running.len() < PARALLEL_CASES
            && let Some((defect, cases)) = waiting.next()
        {
            running.spawn(missed_cases(defect, cases, with_short_limits(subject(defect))));
        }
        let Some(result) = running.join_next().await else { break };
        missed.extend(result.expect("no case panics"));
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Neighbouring cases check different behaviour.
#[tokio::test]
async fn a_defect_fails_its_case_and_passes_neighbouring_cases() {
    for (subject, cases) in [
        (plugin("lingers-with-open-streams"), ["E01", "E04"]),
        (plugin("exits-on-cut-calls"), ["W04", "W06"]),
        (driver("prepares-devices-twice"), ["D28", "D30"]),
    ] {
        let cases: Vec<_> =
            catalogue().into_iter().filter(|case| cases.contains(&case.id)).collect();
        let command = subject.command.join(" ");
        let findings = run(&cases, subject, PARALLEL_CASES, |_| ()).await.findings;
        let all_pass = findings.iter().all(|finding| finding.verdict == Verdict::Pass);
        assert!(all_pass, "{command}: {findings:#?}");
    }
}

#[tokio::test]
async fn cases_of_a_missing_api_are_not_applicable() {
    let cases: Vec<_> =
        catalogue().into_iter().filter(|case| ["R01", "D01"].contains(&case.id)).collect();
    for (subject, expected) in [
        (plugin("none"), [Verdict::Pass, Verdict::NotApplicable]),
        (with_short_limits(driver("none")), [Verdict::NotApplicable, Verdict::Pass]),
    ] {
        let findings = run(&cases, subject, 2, |_| ()).await.findings;
        let verdicts: Vec<_> = findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, expected, "{findings:#?}");
    }
}

#[tokio::test]
async fn a_driver_with_shareable_devices_only_need_not_refuse_a_second_claim() {
    let mut subject = with_short_limits(driver("prepares-devices-twice"));
    subject.devices = Some("device.allowMultipleAllocations == true".to_owned());
    let cases: Vec<_> = catalogue().into_iter().filter(|case| case.id == "D26").collect();
    let findings = run(&cases, subject, 1, |_| ()).await.findings;
    let verdicts: Vec<_> = findings.iter().map(|finding| finding.verdict).collect();
    assert_eq!(verdicts, [Verdict::NotApplicable], "{findings:#?}");
}

/// True if a mount namespace is available, as root or in a user namespace.
fn can_mount() -> bool {
    let option_lists: &[&[&str]] = &[&["--mount"], &["--mount", "--map-root-user"]];
    option_lists.iter().any(|options| {
        let result =
            Command::new("unshare").args(*options).arg("true").stderr(Stdio::null()).status();
        result.is_ok_and(|status| status.success())
    })
}

#[tokio::test]
async fn a_program_without_a_folder_argument_finds_the_folder_and_the_host_is_unchanged() {
    const FIXED: &str = "/var/lib/kubelet";
    if !can_mount() {
        eprintln!("SKIPPED: needs a mount namespace, as root or in a user namespace");
        return;
    }
    let existed_before = Path::new(FIXED).exists();
    let mut subject = plugin("none");
    let command = subject.command.iter().map(|word| word.replace("{kubelet}", FIXED)).collect();
    let (hooks, cdi_dirs) = (subject.hooks, subject.cdi_dirs);
    subject = Subject { hooks, cdi_dirs, ..Subject::new(command) };
    let cases: Vec<_> = catalogue().into_iter().filter(|case| case.id == "R01").collect();
    let findings = run(&cases, subject, 1, |_| ()).await.findings;
    let verdicts: Vec<_> = findings.iter().map(|finding| finding.verdict).collect();
    assert_eq!(verdicts, [Verdict::Pass], "{findings:#?}");
    assert_eq!(
        Path::new(FIXED).exists(),
        existed_before,
        "the suite must not create the host's folder"
    );
}

/// Defect and finding of each case that should detect the defect and did not fail.
async fn missed_cases(
    defect: &'static str,
    cases: &str,
    subject: Subject,
) -> Vec<(&'static str, Finding)> {
    let expected: BTreeSet<_> = cases.split_whitespace().collect();
    let cases: Vec<_> = catalogue().into_iter().filter(|case| expected.contains(case.id)).collect();
    assert_eq!(cases.len(), expected.len(), "{defect}: unknown case in {expected:?}");
    let findings = run(&cases, subject, 2, |_| ()).await.findings;
    let missed = findings.into_iter().filter(|finding| finding.verdict != Verdict::Fail);
    missed.map(|finding| (defect, finding)).collect()
}

#[test]
fn every_case_finds_a_defect() {
    let defects = PLUGIN_DEFECTS.iter().chain(DRIVER_DEFECTS);
    let detected: BTreeSet<_> = defects.flat_map(|(_, cases)| cases.split_whitespace()).collect();
    let undetected: Vec<_> =
        catalogue().into_iter().map(|case| case.id).filter(|id| !detected.contains(id)).collect();
    assert!(undetected.is_empty(), "no defect fails {undetected:?}");
}
