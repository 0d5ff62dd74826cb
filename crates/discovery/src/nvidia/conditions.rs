//! Conditions that a GPU reports: some are failures, others only attributes.

use std::time::Duration;

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    health::Reason,
};
use windlass_nvml::{Fabric, Gpu, RecoveryAction, Remote, RowRemapping, Slowdown};

use super::{
    describe::attribute_name,
    fabric,
    facts::{LinkFacts, MigFacts},
};

const PENDING_ROW: AttributeName = attribute_name("pendingRowRemap");
const PENDING_PAGE: AttributeName = attribute_name("pendingPageRetirement");
const NVLINK_DEGRADED: AttributeName = attribute_name("nvlinkDegraded");
const THERMAL: AttributeName = attribute_name("thermalSlowdown");
const POWER: AttributeName = attribute_name("powerSlowdown");

/// State of a GPU that changes between probes. Conditions that the GPU does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conditions {
    fabric: Option<Fabric>,
    /// A row remapping is pending until the next reset.
    pending_row: Option<bool>,
    /// A page retirement is pending, on older GPUs.
    pending_page: Option<bool>,
    row_remap_failed: bool,
    recovery: Option<RecoveryAction>,
    thermal: Option<SlowdownHistory>,
    power: Option<SlowdownHistory>,
}

/// Readings of a probe that health and telemetry share, so that the driver is called once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProbeReadings {
    /// Uncorrected memory errors since the driver was loaded.
    pub(super) uncorrected_errors: Option<u64>,
    pub(super) rows: Option<RowRemapping>,
    pub(super) slowdown: Option<Slowdown>,
}

/// History of reduced clocks, for one kind of cause.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SlowdownHistory {
    /// Time of the last probe that found reduced clocks.
    last: Option<Timestamp>,
    is_recent: bool,
}

/// Time of a probe, and the time for which a slowdown counts as recent.
///
/// A GPU at its limit slows down every few seconds. Without smoothing, its attributes would change as often.
#[derive(Clone, Copy)]
pub(super) struct ProbeTime {
    pub(super) now: Timestamp,
    pub(super) recent_period: Duration,
}

// === impl ProbeReadings ===

impl ProbeReadings {
    /// Reads all values. A failing read leaves its value unknown; other reads of the probe detect an unresponsive GPU.
    pub(super) fn read(gpu: &Gpu) -> Self {
        Self {
            uncorrected_errors: gpu.uncorrected_errors().ok().flatten(),
            rows: gpu.row_remapping().ok().flatten(),
            slowdown: gpu.slowdown().ok().flatten(),
        }
    }
}

// === impl Conditions ===

impl Conditions {
    /// Conditions from the probe's readings, the earlier conditions, and further reads. A failing read leaves its
    /// condition unknown.
    pub(super) fn read(gpu: &Gpu, readings: ProbeReadings, last: &Self, time: ProbeTime) -> Self {
        let ProbeReadings { rows, slowdown, .. } = readings;
        // GPUs with row remapping retire no pages.
        let pages = || gpu.page_retirement_pending().ok().flatten();
        let history = |last, is_slowed| SlowdownHistory::after(last, is_slowed, time);
        Self {
            fabric: gpu.fabric().ok().flatten(),
            pending_row: rows.map(|rows| rows.pending),
            pending_page: if rows.is_none() { pages() } else { None },
            row_remap_failed: rows.is_some_and(|rows| rows.failed),
            recovery: gpu.recovery_action().ok().flatten(),
            thermal: slowdown.map(|slowdown| history(last.thermal, slowdown.is_thermal())),
            power: slowdown.map(|slowdown| history(last.power, slowdown.is_power_brake())),
        }
    }

    pub(super) fn attributes(
        &self,
        links: &LinkFacts,
    ) -> impl Iterator<Item = (AttributeName, AttributeValue)> {
        let has_links = !(links.up.is_empty() && links.lost.is_empty());
        let flags = [
            (PENDING_ROW, self.pending_row),
            (PENDING_PAGE, self.pending_page),
            (NVLINK_DEGRADED, has_links.then_some(!links.lost.is_empty())),
            (THERMAL, self.thermal.map(|history| history.is_recent)),
            (POWER, self.power.map(|history| history.is_recent)),
        ];
        let flags =
            flags.into_iter().filter_map(|(name, flag)| Some((name, AttributeValue::Bool(flag?))));
        flags.chain(self.fabric.iter().flat_map(fabric::attributes))
    }

    /// The worst condition that is a failure. Reduced clocks and pending repairs are no failures: results stay correct.
    pub(super) fn failure(&self, links: &LinkFacts) -> Option<(Reason, String)> {
        let remap = || {
            let detail = "a bad row of memory could not be mapped out".to_owned();
            self.row_remap_failed.then_some((Reason::RowRemapFailed, detail))
        };
        let reset = || Some((Reason::NeedsReset, action_text(self.recovery?)?));
        let fabric = || Some((Reason::FabricFailed, fabric::failure(self.fabric.as_ref()?)?));
        let link = || Some((Reason::NvlinkDown, lost_to_switches(links)?));
        remap().or_else(reset).or_else(fabric).or_else(link)
    }
}

/// Text for a requested recovery action.
fn action_text(action: RecoveryAction) -> Option<String> {
    match action {
        RecoveryAction::None => None,
        RecoveryAction::Reset => Some("the driver requests a GPU reset".to_owned()),
        RecoveryAction::Reboot => Some("the driver requests a reboot of the node".to_owned()),
        RecoveryAction::Drain => Some("the driver requests a drain of the GPU".to_owned()),
        RecoveryAction::Other(code) => Some(format!("the driver requests action {code}")),
    }
}

/// Text that names the lost links to switches. Such a loss isolates the GPU or slows its peers. A lost link to another
/// GPU is no failure: the link goes down with that GPU, whose neighbours must stay healthy.
fn lost_to_switches(links: &LinkFacts) -> Option<String> {
    let to_switch = |(_, remote): &(&u32, &Remote)| matches!(remote, Remote::Switch(_));
    let lost = links.lost.iter().filter(to_switch).map(|(link, _)| link.to_string());
    let lost: Vec<_> = lost.collect();
    match lost.as_slice() {
        [] => None,
        [link] => Some(format!("link {link} was up and is down")),
        links => Some(format!("links {} were up and are down", links.join(", "))),
    }
}

// === impl LinkFacts ===

impl LinkFacts {
    /// Links that were up before and are down now. MIG disables all links of a GPU.
    pub(super) fn missing(&self, up_links: &[u32], mig: &MigFacts) -> Vec<(u32, Remote)> {
        if matches!(mig, MigFacts::Enabled(_)) {
            return Vec::new();
        }
        let active = self.up.iter().copied().zip(self.remotes.iter().cloned());
        let lost = self.lost.iter().map(|(link, remote)| (*link, remote.clone()));
        active.chain(lost).filter(|(link, _)| !up_links.contains(link)).collect()
    }
}

// === impl SlowdownHistory ===

impl SlowdownHistory {
    fn after(before: Option<Self>, is_slowed: bool, time: ProbeTime) -> Self {
        let last = if is_slowed { Some(time.now) } else { before.and_then(|before| before.last) };
        let since = |last: Timestamp| Duration::try_from(time.now.duration_since(last));
        let is_recent =
            last.is_some_and(|last| since(last).is_ok_and(|since| since < time.recent_period));
        Self { last, is_recent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_reported_until_it_is_no_longer_recent() {
        let recent_period = Duration::from_secs(60);
        let mut history = None;
        let mut is_recent_at = |second, is_slowed| {
            let now = Timestamp::from_second(second).expect("a small number");
            let after =
                SlowdownHistory::after(history, is_slowed, ProbeTime { now, recent_period });
            history = Some(after);
            after.is_recent
        };
        assert!(!is_recent_at(0, false));
        assert!(is_recent_at(10, true));
        assert!(is_recent_at(20, false));
        assert!(is_recent_at(69, false));
        assert!(!is_recent_at(70, false));
    }

    #[test]
    fn a_lost_link_to_a_switch_is_a_failure_and_one_to_a_gpu_is_not() {
        let peer = Remote::Gpu("00000000:1B:00.0".to_owned());
        let all_up = LinkFacts {
            up: vec![0, 1, 2],
            remotes: vec![Remote::Switch(None), peer, Remote::Switch(None)],
            ..LinkFacts::default()
        };
        let links_after = |up_links: &[u32]| LinkFacts {
            lost: all_up.missing(up_links, &MigFacts::Disabled).into_iter().collect(),
            ..LinkFacts::default()
        };
        assert_eq!(lost_to_switches(&links_after(&[0, 2])), None);
        assert_eq!(
            lost_to_switches(&links_after(&[1, 2])).as_deref(),
            Some("link 0 was up and is down")
        );
        let expected = "links 0, 2 were up and are down";
        assert_eq!(lost_to_switches(&links_after(&[])).as_deref(), Some(expected));
        assert_eq!(all_up.missing(&[], &MigFacts::Enabled(Vec::new())), []);
    }
}
