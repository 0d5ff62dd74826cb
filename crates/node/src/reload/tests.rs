//! Reloads of real files: swapped links, mistakes, vanishing files, bursts.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, channel},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use windlass_config::{ConfigDir, MigStrategy};
use windlass_migrate::{NvidiaPluginFlags, load, parse};

use super::*;

/// A reloader over a folder, with its inputs and outputs.
struct TestReloader {
    dir: tempfile::TempDir,
    policy: watch::Receiver<Arc<Policy>>,
    status: watch::Receiver<ReloadStatus>,
    requests: watch::Sender<u64>,
    label: watch::Sender<LabelValue>,
    loads: Receiver<()>,
}

const TIMEOUT: Duration = Duration::from_secs(10);

fn counting_load(file: PathBuf, loads: Sender<()>) -> LoadConfig {
    Arc::new(move |label| {
        // The receiver is dropped at the end of a test.
        let _ = loads.send(());
        let dir = ConfigDir(file.clone());
        let path = if file.is_dir() { dir.choose(label)? } else { Some(file.clone()) };
        let flags = NvidiaPluginFlags::default();
        let mut loaded = match path {
            Some(path) => load(&path, &flags)?,
            None => parse(Path::new("none"), "{}", &flags)?,
        };
        loaded.config.places.state_dir = file.with_file_name("state");
        Ok((loaded.config, loaded.warnings))
    })
}

/// Runs `scenario` beside a reloader of `file` in a folder that `prepare` filled.
async fn with_reloader<F: Future<Output = ()>>(
    file: &str,
    prepare: impl FnOnce(&Path),
    scenario: impl FnOnce(TestReloader) -> F,
) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    prepare(dir.path());
    let (sender, loads) = channel();
    let load = counting_load(dir.path().join(file), sender);
    let initial = load(&LabelValue::Unknown).expect("valid").0;
    loads.recv().expect("the first load");
    let (requests, request_receiver) = watch::channel(0);
    let (label, label_receiver) = watch::channel(LabelValue::Unknown);
    let triggers = ReloadTriggers { requests: request_receiver, label: label_receiver };
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    let reloader =
        Reloader::new(initial, load, Some(dir.path()), triggers, clock).expect("watched");
    let test_reloader = TestReloader {
        policy: reloader.policy(),
        status: reloader.status(),
        dir,
        requests,
        label,
        loads,
    };
    tokio::select! {
        () = reloader.run(CancellationToken::new()) => panic!("the reloader ended"),
        () = scenario(test_reloader) => {}
    }
}

impl TestReloader {
    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).expect("written");
    }

    async fn until_mig_is(&mut self, mig: MigStrategy) {
        let wait = self.policy.wait_for(|policy| policy.mig == mig);
        drop(timeout(TIMEOUT, wait).await.expect("in time").expect("running"));
    }

    async fn status(&mut self, condition: impl FnMut(&ReloadStatus) -> bool) -> ReloadStatus {
        let wait = self.status.wait_for(condition);
        timeout(TIMEOUT, wait).await.expect("in time").expect("running").clone()
    }
}

#[tokio::test]
async fn a_file_that_is_written_or_replaced_is_followed() {
    let prepare = |dir: &Path| fs::write(dir.join("w.yaml"), "mig: none\n").expect("written");
    with_reloader("w.yaml", prepare, async |mut reloader: TestReloader| {
        assert_eq!(reloader.policy.borrow().mig, MigStrategy::None);
        reloader.write("w.yaml", "mig: single\n");
        reloader.until_mig_is(MigStrategy::Single).await;
        reloader.write("new", "mig: mixed\n");
        let path = |name: &str| reloader.dir.path().join(name);
        fs::rename(path("new"), path("w.yaml")).expect("renamed");
        reloader.until_mig_is(MigStrategy::Mixed).await;
    })
    .await;
}

#[tokio::test]
async fn a_config_map_whose_link_is_swapped_is_followed() {
    let version = |dir: &Path, name: &str, text: &str| {
        fs::create_dir(dir.join(name)).expect("created");
        fs::write(dir.join(name).join("w.yaml"), text).expect("written");
    };
    let prepare = |dir: &Path| {
        version(dir, "..1", "mig: none\n");
        symlink("..1", dir.join("..data")).expect("linked");
        symlink("..data/w.yaml", dir.join("w.yaml")).expect("linked");
    };
    with_reloader("w.yaml", prepare, async |mut reloader: TestReloader| {
        let dir = reloader.dir.path();
        version(dir, "..2", "mig: single\n");
        symlink("..2", dir.join("..data_tmp")).expect("linked");
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("swapped");
        fs::remove_dir_all(dir.join("..1")).expect("removed");
        reloader.until_mig_is(MigStrategy::Single).await;
    })
    .await;
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_is_reported_until_it_is_valid() {
    let prepare = |dir: &Path| fs::write(dir.join("w.yaml"), "mig: none\n").expect("written");
    with_reloader("w.yaml", prepare, async |mut reloader: TestReloader| {
        reloader.write("w.yaml", "mig: both\n");
        let status = reloader.status(|status| status.error.is_some()).await;
        let error = status.error.expect("waited for");
        assert!(error.contains("w.yaml:1: \"both\" is not a known value"), "{error}");
        assert_eq!(reloader.policy.borrow().mig, MigStrategy::None);
        fs::remove_file(reloader.dir.path().join("w.yaml")).expect("removed");
        let is_unreadable = |status: &ReloadStatus| {
            status.error.as_ref().is_some_and(|error| error.contains("cannot read"))
        };
        reloader.status(is_unreadable).await;
        assert_eq!(
            reloader.policy.borrow().mig,
            MigStrategy::None,
            "the last valid policy stays in force"
        );
        reloader.write("w.yaml", "mig: single\n");
        reloader.until_mig_is(MigStrategy::Single).await;
        reloader.status(|status| status.error.is_none()).await;
    })
    .await;
}

#[tokio::test]
async fn an_empty_file_or_a_fifo_changes_nothing() {
    let prepare = |dir: &Path| fs::write(dir.join("w.yaml"), "mig: none\n").expect("written");
    with_reloader("w.yaml", prepare, async |mut reloader: TestReloader| {
        let file = reloader.dir.path().join("w.yaml");
        let empty_file_error = "says nothing: write `{}` for the defaults";
        for (text, expected) in [
            ("", empty_file_error),
            ("# mig: single\n\n", empty_file_error),
            ("---\n", empty_file_error),
        ] {
            reloader.write("w.yaml", text);
            let is_shown = |status: &ReloadStatus| {
                status.error.as_ref().is_some_and(|error| error.contains(expected))
            };
            reloader.status(is_shown).await;
            assert_eq!(
                reloader.policy.borrow().mig,
                MigStrategy::None,
                "the last valid policy stays in force"
            );
            reloader.write("w.yaml", "mig: none\n");
            reloader.status(|status| status.error.is_none()).await;
        }
        fs::remove_file(&file).expect("removed");
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR, 0).expect("made");
        let is_shown = |status: &ReloadStatus| {
            status
                .error
                .as_ref()
                .is_some_and(|error| error.contains("it is a FIFO, not a regular file"))
        };
        reloader.status(is_shown).await;
        assert_eq!(
            reloader.policy.borrow().mig,
            MigStrategy::None,
            "the last valid policy stays in force"
        );
        fs::remove_file(&file).expect("removed");
        reloader.write("w.yaml", "{}");
        reloader.until_mig_is(MigStrategy::Mixed).await;
    })
    .await;
}

#[tokio::test]
async fn keys_that_need_a_restart_are_named_and_the_others_are_followed() {
    let prepare = |dir: &Path| fs::write(dir.join("w.yaml"), "{}").expect("written");
    with_reloader("w.yaml", prepare, async |mut reloader: TestReloader| {
        reloader.write("w.yaml", "mig: single\ncdiDir: /elsewhere\ndriver: {root: /d}\n");
        reloader.until_mig_is(MigStrategy::Single).await;
        let status = reloader.status(|status| !status.restart_keys.is_empty()).await;
        assert_eq!(status.restart_keys, ["driver", "cdiDir"]);
    })
    .await;
}

#[tokio::test]
async fn the_drivers_name_needs_a_restart_and_stays_until_then() {
    let prepare = |dir: &Path| fs::write(dir.join("w.yaml"), "{}").expect("written");
    with_reloader("w.yaml", prepare, async |mut reloader: TestReloader| {
        reloader.write("w.yaml", "mig: single\ndra: {driver: gpu.example.com}\n");
        reloader.until_mig_is(MigStrategy::Single).await;
        let status = reloader.status(|status| !status.restart_keys.is_empty()).await;
        assert_eq!(status.restart_keys, ["dra.driver"]);
        assert_eq!(reloader.policy.borrow().dra.driver, Policy::default().dra.driver);
    })
    .await;
}

#[tokio::test]
async fn a_burst_of_writes_is_one_reload_and_a_request_is_served_at_once() {
    let prepare = |dir: &Path| fs::write(dir.join("w.yaml"), "{}").expect("written");
    with_reloader("w.yaml", prepare, async |mut reloader: TestReloader| {
        for _ in 0..20 {
            reloader.write("w.yaml", "mig: none\n");
        }
        reloader.write("w.yaml", "mig: single\n");
        reloader.until_mig_is(MigStrategy::Single).await;
        assert_eq!(reloader.loads.try_iter().count(), 1);
        let before = reloader.status.borrow().last_success;
        reloader.requests.send_modify(|count| *count += 1);
        reloader.status(|status| status.last_success > before).await;
        assert_eq!(reloader.loads.try_iter().count(), 1);
    })
    .await;
}

#[tokio::test]
async fn the_nodes_label_names_the_file() {
    let prepare = |dir: &Path| {
        fs::write(dir.join("default"), "mig: none\n").expect("written");
        fs::write(dir.join("whole"), "mig: single\n").expect("written");
    };
    with_reloader("", prepare, async |mut reloader: TestReloader| {
        assert_eq!(reloader.policy.borrow().mig, MigStrategy::None);
        reloader.label.send_replace(LabelValue::Value("whole".into()));
        reloader.until_mig_is(MigStrategy::Single).await;
        reloader.label.send_replace(LabelValue::Value("gone".into()));
        let status = reloader.status(|status| status.error.is_some()).await;
        assert!(status.error.expect("waited for").contains("has no file \"gone\""));
        reloader.label.send_replace(LabelValue::Absent);
        reloader.until_mig_is(MigStrategy::None).await;
    })
    .await;
}
