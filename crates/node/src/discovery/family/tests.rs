//! When a family looks, with one that only counts its looks; and what of a look is believed, with one that
//! finds what the test says.

use tokio::{task::JoinSet, time::sleep};
use windlass_core::device::DeviceKind;

use super::*;

const NAME: SourceName = SourceName::NVME;

/// Finds nothing, and counts.
struct Counting(watch::Sender<u32>);

impl Family for Counting {
    fn names(&self) -> Vec<SourceName> {
        vec![NAME]
    }

    fn look(&mut self, _: &Host) -> Look {
        self.0.send_modify(|looks| *looks += 1);
        Look::default()
    }
}

/// A family that runs, and looks of its own accord once an hour.
struct Rig {
    looks: watch::Receiver<u32>,
    notices: watch::Sender<u64>,
    stop: CancellationToken,
    running: JoinSet<()>,
    _policies: watch::Sender<Arc<Policy>>,
}

impl Rig {
    fn start() -> Self {
        let health =
            HealthPolicy { probe_interval: Duration::from_secs(3600), ..Default::default() };
        let policy = Policy { health, ..Policy::default() };
        let (policies, adopted) = watch::channel(Arc::new(policy));
        let (notices, host) = watch::channel(0);
        let (counting, looks) = watch::channel(0);
        let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let family = Counting(counting);
        let watched = Watched::new(family, Host::new("/nowhere", "/"), clock);
        let (to, _) = Publisher::new([NAME], &Arc::default());
        let wakes = Wakes { policies: adopted, host };
        running.spawn(watched.run(wakes, to, stop.clone()));
        Self { looks, notices, stop, running, _policies: policies }
    }

    fn notice(&self) {
        self.notices.send_modify(|count| *count += 1);
    }

    fn looks(&self) -> u32 {
        *self.looks.borrow()
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_never_rests_is_looked_at_twice_a_second() {
    let rig = Rig::start();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.looks(), 1);
    rig.notice();
    sleep(BURST * 2).await;
    assert_eq!(rig.looks(), 2, "the first notice after a rest is followed at once");
    let noisy = Duration::from_secs(10);
    let until = Instant::now() + noisy;
    while Instant::now() < until {
        rig.notice();
        sleep(Duration::from_millis(5)).await;
    }
    let most = noisy.as_millis() / REST.as_millis();
    assert!((most - 2..=most).contains(&u128::from(rig.looks() - 2)), "{} looks", rig.looks());
}

#[tokio::test(start_paused = true)]
async fn a_notice_keeps_no_family_from_stopping() {
    let mut rig = Rig::start();
    sleep(Duration::from_millis(1)).await;
    rig.notice();
    sleep(Duration::from_millis(1)).await;
    rig.stop.cancel();
    let stopped = timeout(BURST / 2, rig.running.join_next()).await;
    stopped.expect("at once").expect("it ran").expect("it did not panic");
}

/// Finds at each look what stands at the head of the list, and nothing after its end.
struct Scripted(std::vec::IntoIter<Vec<&'static str>>);

impl Family for Scripted {
    fn names(&self) -> Vec<SourceName> {
        vec![NAME]
    }

    fn look(&mut self, _: &Host) -> Look {
        let found = self.0.next().unwrap_or_default().into_iter().map(|id| {
            let id = id.parse().expect("an id");
            let device = Device::new(id, DeviceKind::Other, NAME, Timestamp::UNIX_EPOCH);
            (device, Observation::Passed)
        });
        let states = [(NAME, SourceState::Ready(String::new()))].into();
        Look { states, found: found.collect(), ..Look::default() }
    }
}

/// What is told after each look, and whether the next is to be soon.
fn told(script: &[&[&'static str]]) -> Vec<String> {
    let looks: Vec<_> = script.iter().map(|ids| ids.to_vec()).collect();
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    let family = Scripted(looks.into_iter());
    let mut watched = Watched::new(family, Host::new("/nowhere", "/"), clock);
    let mut after_each = Vec::new();
    for _ in script {
        watched = watched.looked();
        let devices = watched.snapshot().devices;
        let name = |device: &Device| {
            let gone = if device.health.has_vanished() { " vanished" } else { "" };
            format!("{}{gone}", device.id)
        };
        let known: Vec<_> = devices.iter().map(name).collect();
        let again = if watched.is_unsure() { ", and looks again" } else { "" };
        after_each.push(format!("{}{again}", known.join(" ")));
    }
    after_each
}

#[test]
fn a_name_that_only_one_look_found_is_never_told() {
    let half_gone = [&["one", "two"][..], &["one", "half"], &["one"]];
    assert_eq!(told(&half_gone), ["one two", "one two, and looks again", "one two vanished"]);
    let half_there = [&["one"][..], &["half", "one"], &["one", "two"], &["one", "two"]];
    let expected = ["one", "one, and looks again", "one, and looks again", "one two"];
    assert_eq!(told(&half_there), expected);
}

#[test]
fn what_was_there_before_is_believed_at_once_when_it_is_back() {
    let story = [&["one"][..], &[], &[], &["one"]];
    let expected = ["one", "one, and looks again", "one vanished", "one vanished"];
    assert_eq!(told(&story), expected, "quiet first, and nothing to look for soon");
}
