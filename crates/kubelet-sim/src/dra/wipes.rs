//! Wipes: deletion of a driver's `ResourceSlices`, some time after the loss of its last connection.
//!
//! The embedded kubelet has no API server. So its events only announce the time of a deletion, and a
//! caller with an API server deletes the slices.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// State of each driver that registered since the kubelet's start, by name.
#[derive(Debug, Default)]
pub(crate) struct Wipes {
    drivers: BTreeMap<String, WipeState>,
}

/// State of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WipeState {
    /// The driver has a connection.
    Connected,
    /// The driver has no connection. The deletion follows at this time.
    Scheduled(Instant),
    /// The driver has no connection, and the deletion was announced.
    Announced,
}

// === impl Wipes ===

impl Wipes {
    /// Updates the states. `registered` has each registered driver, with true if it is connected. Other
    /// drivers count as disconnected. A driver that was disconnected before keeps its time.
    pub(super) fn update<'a>(
        &mut self,
        registered: impl Iterator<Item = (&'a String, bool)>,
        delay: Duration,
    ) {
        let mut connections: BTreeMap<String, bool> =
            self.drivers.keys().map(|name| (name.clone(), false)).collect();
        connections.extend(registered.map(|(name, is_connected)| (name.clone(), is_connected)));
        for (name, is_connected) in connections {
            let scheduled = WipeState::Scheduled(Instant::now() + delay);
            let wipe = self.drivers.entry(name).or_insert(scheduled);
            *wipe = match *wipe {
                _ if is_connected => WipeState::Connected,
                WipeState::Connected => scheduled,
                unchanged @ (WipeState::Scheduled(_) | WipeState::Announced) => unchanged,
            };
        }
    }

    /// Time of the next deletion.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let times = self.drivers.values().filter_map(|wipe| match wipe {
            WipeState::Scheduled(time) => Some(*time),
            WipeState::Connected | WipeState::Announced => None,
        });
        times.min()
    }

    /// Names of the drivers whose deletion is due. Returns each deletion once.
    pub(crate) fn take_due(&mut self) -> Vec<String> {
        let now = Instant::now();
        let is_due = |wipe: &WipeState| matches!(wipe, WipeState::Scheduled(time) if *time <= now);
        let due = self.drivers.iter_mut().filter(|(_, wipe)| is_due(wipe));
        due.map(|(name, wipe)| {
            *wipe = WipeState::Announced;
            name.clone()
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_reconnects_in_time_keeps_its_slices() {
        let (name, delay) = ("drv".to_owned(), Duration::from_secs(30));
        let mut wipes = Wipes::default();
        wipes.update([(&name, true)].into_iter(), delay);
        assert_eq!(wipes.next_due(), None);
        wipes.update([].into_iter(), delay);
        tokio::time::advance(Duration::from_secs(29)).await;
        wipes.update([(&name, false)].into_iter(), delay);
        assert_eq!(wipes.take_due(), [""; 0]);
        wipes.update([(&name, true)].into_iter(), delay);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(wipes.take_due(), [""; 0]);

        wipes.update([(&name, false)].into_iter(), delay);
        tokio::time::advance(delay).await;
        assert_eq!(wipes.take_due(), ["drv"]);
        assert_eq!((wipes.take_due(), wipes.next_due()), (Vec::new(), None), "announced once");
    }
}
