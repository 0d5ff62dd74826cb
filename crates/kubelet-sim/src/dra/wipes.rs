//! Deletion times of a driver's `ResourceSlices`: some time after the end of its last connection.
//!
//! A starting kubelet deletes the slices of all drivers at once. The embedded kubelet has no API
//! server. The kubelet's events announce the time, and a caller with an API server deletes the slices.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// State of each driver that ever registered.
#[derive(Debug, Default)]
pub(crate) struct Wipes {
    drivers: BTreeMap<String, Wipe>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wipe {
    /// The driver is connected.
    Usable,
    /// The driver is disconnected, and may return until this time.
    At(Instant),
    /// The driver's slices are deleted.
    Done,
}

// === impl Wipes ===

impl Wipes {
    /// Takes the known drivers and their connections. A driver lost earlier keeps its time.
    pub(super) fn update<'a>(
        &mut self,
        known: impl Iterator<Item = (&'a String, bool)>,
        delay: Duration,
    ) {
        let mut connected: BTreeMap<String, bool> =
            self.drivers.keys().map(|name| (name.clone(), false)).collect();
        connected.extend(known.map(|(name, connected)| (name.clone(), connected)));
        for (name, is_connected) in connected {
            let lost = Wipe::At(Instant::now() + delay);
            let wipe = self.drivers.entry(name).or_insert(lost);
            *wipe = match *wipe {
                _ if is_connected => Wipe::Usable,
                Wipe::Usable => lost,
                waiting @ (Wipe::At(_) | Wipe::Done) => waiting,
            };
        }
    }

    /// Earliest time of a deletion.
    pub(crate) fn next(&self) -> Option<Instant> {
        let moments = self.drivers.values().filter_map(|wipe| match wipe {
            Wipe::At(moment) => Some(*moment),
            Wipe::Usable | Wipe::Done => None,
        });
        moments.min()
    }

    /// Drivers whose time is over, each once.
    pub(crate) fn due(&mut self) -> Vec<String> {
        let now = Instant::now();
        let due = |wipe: &Wipe| matches!(wipe, Wipe::At(moment) if *moment <= now);
        let over = self.drivers.iter_mut().filter(|(_, wipe)| due(wipe));
        over.map(|(name, wipe)| {
            *wipe = Wipe::Done;
            name.clone()
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_comes_back_in_time_keeps_its_slices() {
        let (name, delay) = ("drv".to_owned(), Duration::from_secs(30));
        let mut wipes = Wipes::default();
        wipes.update([(&name, true)].into_iter(), delay);
        assert_eq!(wipes.next(), None);
        wipes.update([].into_iter(), delay);
        tokio::time::advance(Duration::from_secs(29)).await;
        wipes.update([(&name, false)].into_iter(), delay);
        assert_eq!(wipes.due(), [""; 0]);
        wipes.update([(&name, true)].into_iter(), delay);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(wipes.due(), [""; 0]);

        wipes.update([(&name, false)].into_iter(), delay);
        tokio::time::advance(delay).await;
        assert_eq!(wipes.due(), ["drv"]);
        assert_eq!((wipes.due(), wipes.next()), (Vec::new(), None), "once only");
    }
}
