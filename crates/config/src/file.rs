//! The configuration file: YAML or JSON, strict, with the place of every mistake.

mod delivery;
mod dra;
mod facts;
mod families;
mod health;
mod labels;
mod nics;
mod places;
mod resources;
mod sources;
mod steps;
mod word;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{
    delivery::{HooksEntry, ImexEntry},
    dra::DraEntry,
    families::{AmdEntry, FpgaEntry, GpuEntry, IntelEntry},
    health::HealthEntry,
    labels::LabelsEntry,
    nics::NicsEntry,
    places::{ClusterEntry, DriverEntry, MpsEntry},
    resources::{ResourceEntry, SelectorEntry, unlined},
    sources::SourceEntry,
    word::Written,
};
use super::{
    AnnotationPrefix, Config, ConfigError, Delivery, DeviceIds, DeviceNodes, Disclosed, Families,
    Feature, MigStrategy, Mistakes, Places, Policy, Remark, Resources, SourceRule, Strategy,
    Unmatched,
    document::{self, Lined, Many, UnknownKeys},
    rules, shipped,
};

pub use resources::too_many_clients;
pub use word::address;

/// What `windlass node` is told. Every key may be left out; unknown keys are mistakes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(title = "Configuration of windlass node")]
pub struct ConfigFile {
    /// The kubelet's folder; its sockets lie in `device-plugins` below.
    #[serde(skip_serializing_if = "Option::is_none")]
    kubelet_dir: Option<PathBuf>,
    /// Where the host's `/sys`, `/proc`, `/dev` and driver are found.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_root: Option<PathBuf>,
    /// What the container runtime calls `hostRoot`; another folder only for simulated machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_root_on_node: Option<PathBuf>,
    /// The NVML library; left out, it is looked for where drivers put it.
    #[serde(skip_serializing_if = "Option::is_none")]
    nvml_library: Option<PathBuf>,
    /// Where the driver's installation lies.
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<DriverEntry>,
    /// Where CDI documents are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    cdi_dir: Option<PathBuf>,
    /// Where the agent keeps what must outlive it.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_dir: Option<PathBuf>,
    /// Where MPS daemons have their pipes and logs, as the host names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mps_dir: Option<PathBuf>,
    /// Where CNI plugins look for what is known of a network device, as the host names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_info_dir: Option<PathBuf>,
    /// How MPS daemons are run.
    #[serde(skip_serializing_if = "Option::is_none")]
    mps: Option<MpsEntry>,
    /// Where health and metrics are served over HTTP; left out, neither is.
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<Written<SocketAddr>>,
    /// The unix socket on which `windlass probe` is answered; left out, there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe_socket: Option<PathBuf>,
    /// What `/metrics` and `/devices` tell to whoever reaches them: names of pods, serial numbers.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    disclose: BTreeSet<Disclosed>,
    /// How the API server is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterEntry>,
    /// What a GPU in MIG mode is offered as.
    #[serde(skip_serializing_if = "Option::is_none")]
    mig: Option<MigStrategy>,
    /// The ways in which devices are named to the container runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_list: Option<Lined<Many<Strategy>>>,
    /// What devices are called there.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_ids: Option<DeviceIds>,
    /// Whether device nodes go through the kubelet as well, for its static CPU manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pass_device_specs: Option<bool>,
    /// What the keys of CDI annotations begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    cdi_annotation_prefix: Option<Written<AnnotationPrefix>>,
    /// Which of the NVIDIA container toolkit's hooks CDI documents ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    hooks: Option<HooksEntry>,
    /// What every container of an NVIDIA resource gets besides.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    features: BTreeSet<Feature>,
    /// Channels for memory that is exported between nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    imex: Option<ImexEntry>,
    /// What is done to NVIDIA's GPUs between containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<Lined<GpuEntry>>,
    /// AMD's GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    amd: Option<AmdEntry>,
    /// Intel's GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    intel: Option<IntelEntry>,
    /// FPGAs.
    #[serde(skip_serializing_if = "Option::is_none")]
    fpga: Option<Lined<FpgaEntry>>,
    /// Sources of devices besides those that are built in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<SourceEntry>,
    /// What containers get with network interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    nics: Option<Lined<NicsEntry>>,
    /// Devices that are kept back, whatever the rules say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exclude: Vec<Lined<SelectorEntry>>,
    /// What is offered, in order: the first rule that takes a device has it. Left out, whole GPUs are
    /// `nvidia.com/gpu` and MIG instances `nvidia.com/mig-<profile>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<Vec<ResourceEntry>>,
    /// What becomes of devices that no rule takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmatched: Option<Lined<Unmatched>>,
    /// What is offered through Dynamic Resource Allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    dra: Option<DraEntry>,
    /// When a device counts as failed, and when as recovered.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<Lined<HealthEntry>>,
    /// Where the node's labels are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Lined<LabelsEntry>>,
}

/// The JSON schema of the file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(ConfigFile).to_value()
}

// === impl ConfigFile ===

impl ConfigFile {
    /// Applies a document to the defaults; `path` is for the messages.
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let wrong = |found| Mistakes::new(path, found);
        let root = document::parse(text).map_err(|mistake| wrong(vec![mistake]))?;
        Ok(Self::read(&root).map_err(wrong)?)
    }

    /// Applies a parsed document to the defaults.
    pub fn read(root: &document::Node) -> Result<Config, Vec<Remark>> {
        let root = shipped::completed(root.clone());
        let reading = document::read::<Self>(&root, UnknownKeys::Wrong);
        let mut wrong = reading.mistakes;
        let config = reading.value.unwrap_or_default().into_config(&mut wrong);
        if wrong.is_empty() { Ok(config) } else { Err(wrong) }
    }

    fn into_config(mut self, wrong: &mut Vec<Remark>) -> Config {
        let mut config = Config::default();
        config.places.driver.nvml_library.clone_from(&self.nvml_library);
        if let Some(driver) = self.driver.clone() {
            driver.apply(&mut config.places.driver);
        }
        config.listen = self.listen.as_ref().map(|Written(address)| *address);
        config.probe_socket.clone_from(&self.probe_socket);
        config.disclose.clone_from(&self.disclose);
        config.cluster = self.cluster.clone().map(Into::into).unwrap_or_default();
        config.dra_driver = self.dra.as_ref().and_then(DraEntry::driver).unwrap_or_default();
        for (place, given) in [
            (&mut config.places.kubelet_dir, &self.kubelet_dir),
            (&mut config.places.host_root, &self.host_root),
            (&mut config.places.host_root_on_node, &self.host_root_on_node),
            (&mut config.places.cdi_dir, &self.cdi_dir),
            (&mut config.places.state_dir, &self.state_dir),
            (&mut config.places.mps_dir, &self.mps_dir),
            (&mut config.places.device_info_dir, &self.device_info_dir),
        ] {
            if let Some(given) = given {
                place.clone_from(given);
            }
        }
        if let Some(mps) = self.mps.take() {
            mps.apply(&mut config.mps);
        }
        config.policy = self.into_policy(wrong);
        config
    }

    fn into_policy(mut self, wrong: &mut Vec<Remark>) -> Policy {
        let kubelet_dir = self.kubelet_dir.clone().unwrap_or(Config::default().places.kubelet_dir);
        let sources = std::mem::take(&mut self.sources).into_iter();
        let mut wrong_sources = Vec::new();
        let sources: Vec<_> = sources.map(|source| source.into_rule(&mut wrong_sources)).collect();
        let exclude = std::mem::take(&mut self.exclude).into_iter();
        let exclude: Vec<_> = exclude
            .map(|Lined { line, value }| Lined {
                line,
                value: value.into_selector(line, &sources, wrong),
            })
            .collect();
        let (resources, unmatched) = self.take_resources((&exclude, &sources), wrong);
        wrong.extend(wrong_sources);
        wrong.extend(rules::repeated_sources(&sources));
        wrong.extend(rules::wrong_sources(&sources, &kubelet_dir));
        let health = self.health.take().map(|it| it.value.into_policy(it.line, wrong));
        let labels = self.labels.take().map(|it| it.value.into_policy(it.line, wrong));
        let nics = self.nics.take().map(|it| it.value.into_policy(it.line, wrong));
        let dra = self.dra.take().map(|entry| entry.into_policy(&sources, wrong));
        let gpu_line = self.gpu.as_ref().map(|it| it.line);
        let gpu = self.gpu.take().map(|it| it.value.into_handover(it.line, wrong));
        let fpga = self.fpga.take().map(|it| it.value.into_rules(it.line, wrong));
        let policy = Policy {
            mig: self.mig.unwrap_or_default(),
            exclude: exclude.into_iter().map(|selector| selector.value).collect(),
            resources,
            unmatched,
            sources: sources.into_iter().map(|source| source.value).collect(),
            families: Families {
                gpu: gpu.unwrap_or_default(),
                amd: self.amd.take().map(Into::into).unwrap_or_default(),
                intel: self.intel.take().map(Into::into).unwrap_or_default(),
                fpga: fpga.unwrap_or_default(),
            },
            nics: nics.unwrap_or_default(),
            dra: dra.unwrap_or_default(),
            health: health.unwrap_or_default(),
            labels: labels.unwrap_or_default(),
            delivery: self.into_delivery(wrong),
        };
        wrong.extend(gpu_line.and_then(|line| rules::overwritten_under_mps(line, &policy)));
        policy
    }

    fn take_resources(
        &mut self,
        (exclude, sources): (&[Lined<super::Selector>], &[Lined<SourceRule>]),
        wrong: &mut Vec<Remark>,
    ) -> (Resources, Unmatched) {
        let unmatched = self.unmatched.take();
        let Some(entries) = self.resources.take() else {
            wrong.extend(unmatched.map(|it| Remark::new(it.line, UNMATCHED_ALONE)));
            return (Resources::Default, Unmatched::default());
        };
        let unmatched = unmatched.map_or_else(Unmatched::default, |it| it.value);
        let rules = entries.into_iter().map(|entry| entry.into_rule(sources, wrong));
        let rules: Vec<_> = rules.collect();
        wrong.extend(rules::contradictions(&rules, exclude, unmatched));
        let rules = rules.into_iter().map(|rule| rule.value).collect();
        (Resources::Rules(rules), unmatched)
    }

    fn into_delivery(self, wrong: &mut Vec<Remark>) -> Delivery {
        let usual = Delivery::default();
        let strategies = self.device_list.map(|list| {
            if list.value.0.is_empty() {
                wrong.push(Remark::new(list.line, NO_DEVICE_LIST));
            }
            list.value.0.into_iter().collect()
        });
        let nodes = match self.pass_device_specs {
            Some(true) => DeviceNodes::ByKubelet,
            Some(false) | None => DeviceNodes::ByRuntime,
        };
        Delivery {
            strategies: strategies.unwrap_or(usual.strategies),
            ids: self.device_ids.unwrap_or_default(),
            nodes,
            annotation_prefix: self.cdi_annotation_prefix.map(|it| it.0).unwrap_or_default(),
            hooks: self.hooks.map(Into::into).unwrap_or_default(),
            features: self.features,
            imex: self.imex.map(Into::into).unwrap_or_default(),
        }
    }
}

const UNMATCHED_ALONE: &str = "unmatched is about devices that no rule takes, and there are no \
    rules: leave it out, or write resources";

const NO_DEVICE_LIST: &str = "no way to name devices: write one of cdi-cri, cdi-annotations, \
    envvar, volume-mounts";

/// A configuration as a file that says it: all that differs from the defaults.
pub fn to_yaml(config: &Config) -> String {
    serde_saphyr::to_string(&ConfigFile::from(config))
        .expect("a file has no value that YAML has no form for")
}

impl From<&Config> for ConfigFile {
    /// What a file has to say for this configuration: all that differs from the defaults.
    fn from(config: &Config) -> Self {
        let (places, usual) = (&config.places, Places::default());
        let policy = &config.policy;
        let differing = |place: &PathBuf, usual: &PathBuf| (place != usual).then(|| place.clone());
        Self {
            kubelet_dir: differing(&places.kubelet_dir, &usual.kubelet_dir),
            host_root: differing(&places.host_root, &usual.host_root),
            host_root_on_node: differing(&places.host_root_on_node, &usual.host_root_on_node),
            nvml_library: places.driver.nvml_library.clone(),
            driver: DriverEntry::of(&places.driver),
            cdi_dir: differing(&places.cdi_dir, &usual.cdi_dir),
            state_dir: differing(&places.state_dir, &usual.state_dir),
            mps_dir: differing(&places.mps_dir, &usual.mps_dir),
            device_info_dir: differing(&places.device_info_dir, &usual.device_info_dir),
            mps: MpsEntry::of(&config.mps),
            listen: config.listen.map(Written),
            probe_socket: config.probe_socket.clone(),
            disclose: config.disclose.clone(),
            cluster: ClusterEntry::of(&config.cluster),
            mig: Some(policy.mig).filter(|mig| *mig != MigStrategy::default()),
            gpu: GpuEntry::of(&policy.families.gpu).map(unlined),
            amd: AmdEntry::of(&policy.families.amd),
            intel: IntelEntry::of(&policy.families.intel),
            fpga: FpgaEntry::of(&policy.families.fpga).map(unlined),
            sources: policy.sources.iter().map(Into::into).collect(),
            nics: NicsEntry::of(&policy.nics).map(unlined),
            exclude: policy.exclude.iter().map(|it| unlined(it.into())).collect(),
            unmatched: Some(policy.unmatched)
                .filter(|unmatched| *unmatched != Unmatched::default())
                .map(unlined),
            resources: match &policy.resources {
                Resources::Default => None,
                Resources::Rules(rules) => Some(rules.iter().map(Into::into).collect()),
            },
            dra: DraEntry::of(&config.dra_driver, &policy.dra),
            health: HealthEntry::of(&policy.health).map(unlined),
            labels: LabelsEntry::of(&policy.labels).map(unlined),
            ..Self::from(&policy.delivery)
        }
    }
}

impl From<&Delivery> for ConfigFile {
    fn from(delivery: &Delivery) -> Self {
        let usual = Delivery::default();
        let strategies = Many(delivery.strategies.iter().copied().collect());
        let prefix = &delivery.annotation_prefix;
        Self {
            device_list: (delivery.strategies != usual.strategies).then(|| unlined(strategies)),
            device_ids: Some(delivery.ids).filter(|ids| *ids != usual.ids),
            pass_device_specs: (delivery.nodes == DeviceNodes::ByKubelet).then_some(true),
            cdi_annotation_prefix: (*prefix != usual.annotation_prefix)
                .then(|| Written(prefix.clone())),
            hooks: HooksEntry::of(&delivery.hooks),
            features: delivery.features.clone(),
            imex: ImexEntry::of(&delivery.imex),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests;
