//! `explain --machine`: a temporary simulated machine instead of this host.

use anyhow::Result;
use windlass_resources::NodeState;

use super::scan_host;
use crate::{cli::HostArgs, commands::host_config, simulated};

/// Scans a temporary machine under the given configuration.
pub(super) async fn simulated(profile: &str, host: HostArgs) -> Result<NodeState> {
    let profile = simulated::load_profile(profile)?;
    let folder = simulated::temp_folder()?;
    let machine = simulated::create_machine_in(folder.path(), &profile)?;
    let mut config = host_config(HostArgs {
        config: host.config,
        host_root: Some(machine.host_root()),
        nvml_library: profile.driver.is_some().then(|| machine.nvml_library()),
    })?;
    config.places.cdi_dir = folder.path().join("cdi");
    scan_host(&config).await
}
