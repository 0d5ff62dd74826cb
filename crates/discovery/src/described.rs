//! Devices of the sources that the configuration describes.
//!
//! ```text
//!   where to look      which are meant     what one is        what it is called,
//!                                                             what a container gets
//!   find ────────────> match ────────────> unit ────────────> make
//!   candidates         those picked        groups             devices
//! ```

mod endpoints;
mod files;
mod find;
mod identity;
mod make;
mod nodes;
mod probe;
mod sysfs;
mod told;
mod unit;
mod usb;
mod why;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Notify;
use windlass_config::{Places, Policy, SourceRule};
use windlass_core::{
    device::{Device, DeviceId, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
};
use windlass_host::Host;

pub(super) use nodes::fitting;
pub use why::{CandidateVerdict, Considered, considered};

use self::{
    find::{Candidate, Found},
    make::{Made, Maker},
    nodes::Nodes,
    probe::{ProbeDesk, Prober, Question, Questions},
    told::Told,
    usb::Serials,
};
use super::family::{Family, Look};

/// The family of all that is described.
#[derive(Debug)]
pub(super) struct Described {
    rules: Vec<SourceRule>,
    /// Of which nothing is handed out.
    kubelet_dir: PathBuf,
    /// The driver of each candidate that was picked, by source and identity: one that loses its driver may
    /// no longer be picked by it, and is there all the same.
    drivers: BTreeMap<SourceName, BTreeMap<String, String>>,
    /// Which USB device goes by which serial number.
    serials: Serials,
    /// What devices say of themselves in files.
    told: Told,
    /// How often devices are probed where their source does not say.
    probe_interval: Duration,
    probes: ProbeDesk,
}

/// What all sources look at.
#[derive(Clone, Copy)]
struct Ground<'a> {
    host: &'a Host,
    serials: &'a Serials,
    kubelet_dir: &'a Path,
}

/// What one source found, with what is to be said of it.
#[derive(Default)]
struct Seen {
    made: Vec<Made>,
    remarks: Vec<String>,
    /// What the selector could not answer, though it should.
    failing: Option<String>,
}

// === impl Described ===

impl Described {
    /// The family, and what asks its devices how they are.
    pub(super) fn new(places: &Places, policy: &Policy, host: &Host) -> (Self, Prober) {
        let (desk, prober) = probe::desk(host.clone());
        let described = Self {
            rules: policy.sources.clone(),
            kubelet_dir: places.kubelet_dir.clone(),
            drivers: BTreeMap::new(),
            serials: Serials::default(),
            told: Told::default(),
            probe_interval: policy.health.probe_interval,
            probes: desk,
        };
        (described, prober)
    }

    fn rule(&self, source: &SourceName) -> Option<&SourceRule> {
        self.rules.iter().find(|rule| rule.name == *source)
    }

    /// How a device does. One that cannot be used is not asked.
    fn observe(&self, rule: &SourceRule, made: &Made, questions: &mut Questions) -> Observation {
        let device = &made.device;
        if let Some((reason, detail)) = made.trouble.clone() {
            return Observation::Failed(reason, detail);
        }
        let Some(probe) = &rule.probe else { return Observation::Passed };
        match Question::of(probe, device, self.probe_interval) {
            Ok(None) => Observation::Passed,
            Ok(Some(question)) => {
                questions.insert(device.id.clone(), question);
                self.probes.observation(device)
            }
            Err(missing) => {
                Observation::Failed(Reason::ProbeFailed, format!("it cannot be probed: {missing}"))
            }
        }
    }
}

impl Family for Described {
    fn names(&self) -> Vec<SourceName> {
        self.rules.iter().map(|rule| rule.name.clone()).collect()
    }

    fn folders(&self) -> &'static [&'static str] {
        &[]
    }

    fn look(&mut self, host: &Host) -> Look {
        let (mut look, mut questions) = (Look::default(), Questions::new());
        self.serials.look(host);
        for rule in &self.rules {
            let drivers = self.drivers.entry(rule.name.clone()).or_default();
            let ground = Ground { host, serials: &self.serials, kubelet_dir: &self.kubelet_dir };
            let seen = see(rule, ground, &mut self.told, drivers);
            let state = match &seen {
                Ok(seen) => seen.state(),
                Err(why) => {
                    look.unanswered.insert(rule.name.clone());
                    SourceState::Failing(why.clone())
                }
            };
            look.states.insert(rule.name.clone(), state);
            for made in seen.unwrap_or_default().made {
                let observation = self.observe(rule, &made, &mut questions);
                look.found.push((made.device, observation));
            }
        }
        self.told.rest();
        self.probes.ask(questions);
        look
    }

    fn adopt(&mut self, policy: &Policy) {
        if self.rules != policy.sources {
            self.rules.clone_from(&policy.sources);
            self.drivers.clear();
        }
        self.probe_interval = policy.health.probe_interval;
    }

    fn news(&self) -> Option<Arc<Notify>> {
        Some(self.probes.news())
    }

    fn quiet_period(&self, device: &Device) -> Option<Duration> {
        self.rule(&device.source)?.probe.as_ref()?.quiet_period
    }
}

/// Looks for one source's devices.
fn see(
    rule: &SourceRule,
    Ground { host, serials, kubelet_dir }: Ground<'_>,
    told: &mut Told,
    drivers: &mut BTreeMap<String, String>,
) -> Result<Seen, String> {
    let Found { mut candidates, remarks } = find::find(rule, host, serials)?;
    told.tell(host, rule, &mut candidates);
    let nodes = Nodes::new(host, serials);
    let maker = Maker { host, rule, kubelet_dir, nodes: &nodes };
    let mut seen = Seen { remarks, ..Seen::default() };
    let picked = seen.pick(&maker, candidates, drivers);
    let (groups, left) = unit::groups(rule, picked);
    seen.remarks.extend(left);
    let (mut ids, mut owners) = (BTreeSet::new(), Owners::new());
    for (index, group) in (0..).zip(&groups) {
        let Some(mut made) = maker.make(index, group) else { continue };
        if ids.insert(made.device.id.clone()) {
            own(&mut owners, &mut made.device);
            seen.made.push(made);
        } else {
            seen.remarks.push(format!("two go by the name {}", made.device.id));
        }
    }
    Ok(seen)
}

/// Whose each node is that belongs to one device.
type Owners = BTreeMap<PathBuf, DeviceId>;

/// Keeps a device back that has a node of its own which another has already, or the node would have two
/// owners. One that is kept back owns nothing.
fn own(owners: &mut Owners, device: &mut Device) {
    if device.withheld.is_some() {
        return;
    }
    let nodes: Vec<_> = device.own_nodes().collect();
    let taken = nodes.iter().find_map(|node| Some((node, owners.get(&node.path)?)));
    if let Some((node, owner)) = taken {
        let node = node.path.display();
        let why = format!("{node} is also that of {owner}: group them, or write shared: true");
        device.withheld = Some(why);
        return;
    }
    owners.extend(nodes.into_iter().map(|node| (node.path.clone(), device.id.clone())));
}

// === impl Seen ===

impl Seen {
    /// Those that the selector means. What lacks something that it asks for is not meant, as there are
    /// many sorts of things on a bus; any other question without an answer is a mistake, and is told.
    fn pick(
        &mut self,
        maker: &Maker<'_>,
        candidates: Vec<Candidate>,
        drivers: &mut BTreeMap<String, String>,
    ) -> Vec<Candidate> {
        let Some(expression) = &maker.rule.expression else { return candidates };
        let (mut picked, mut lack, several) = (Vec::new(), None, candidates.len());
        for (index, mut candidate) in (0..).zip(candidates) {
            let driver = candidate.text("driver").map(str::to_owned);
            match expression.matches(&maker.seen(index, &candidate)) {
                Ok(true) => {
                    let identity = candidate.identity.clone();
                    drivers.extend(driver.map(|driver| (identity, driver)));
                    picked.push(candidate);
                    continue;
                }
                Ok(false) => {}
                Err(error) if error.is_lack() => drop(lack.get_or_insert(error)),
                Err(error) => drop(self.failing.get_or_insert_with(|| error.to_string())),
            }
            if let Some(known) = drivers.get(&candidate.identity).filter(|_| driver.is_none()) {
                let text = format!("its driver {known} is no longer bound");
                candidate.trouble = Some((Reason::DriverUnbound, text));
                picked.push(candidate);
            }
        }
        if picked.is_empty() && several > 0 {
            let lack = lack.map(|lack| format!(", {lack}")).unwrap_or_default();
            self.remarks.push(format!("none of {several} matches{lack}"));
        }
        picked
    }

    fn state(&self) -> SourceState {
        let mut remarks = self.remarks.iter().take(MOST_REMARKS).cloned().collect::<Vec<_>>();
        if self.remarks.len() > MOST_REMARKS {
            remarks.push(format!("and {} more", self.remarks.len() - MOST_REMARKS));
        }
        match (&self.failing, self.made.len()) {
            (Some(why), _) => SourceState::Failing(why.clone()),
            (None, 0) if remarks.is_empty() => SourceState::Absent("nothing matches".to_owned()),
            (None, 0) => SourceState::Absent(remarks.join("; ")),
            (None, count) => {
                let devices =
                    if count == 1 { "1 device".to_owned() } else { format!("{count} devices") };
                remarks.insert(0, devices);
                SourceState::Ready(remarks.join("; "))
            }
        }
    }
}

/// Remarks that are told; a source with more has one trouble many times.
const MOST_REMARKS: usize = 3;
