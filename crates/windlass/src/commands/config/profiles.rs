//! `windlass config profiles`: list or print device profiles.

use anyhow::Result;
use serde::Serialize;
use windlass_config::DeviceProfile;

use crate::{
    cli::OutputArg,
    commands::print_output,
    screen::{Table, print_line},
};

/// Device profile in JSON and YAML.
#[derive(Serialize)]
struct ListedDeviceProfile {
    name: &'static str,
    resource: Option<String>,
    description: String,
    /// Contents of the profile's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'static str>,
}

pub(super) fn run(name: Option<DeviceProfile>, output: OutputArg) -> Result<()> {
    match name {
        None => {
            let profiles: Vec<_> =
                DeviceProfile::ALL.iter().map(ListedDeviceProfile::new).collect();
            print_output(output, &profiles, || list(&profiles))
        }
        Some(profile) => {
            let document = ListedDeviceProfile {
                text: Some(profile.text),
                ..ListedDeviceProfile::new(&profile)
            };
            print_output(output, &document, || Ok(print_line(profile.text.trim_end())?))
        }
    }
}

fn list(profiles: &[ListedDeviceProfile]) -> Result<()> {
    let mut table = Table::new(["PROFILE", "RESOURCE", "DEVICES"]);
    for profile in profiles {
        let resource = profile.resource.clone().unwrap_or_default();
        table.add_row([profile.name.to_owned(), resource, profile.description.clone()]);
    }
    Ok(table.print()?)
}

// === impl ListedDeviceProfile ===

impl ListedDeviceProfile {
    fn new(profile: &DeviceProfile) -> Self {
        Self {
            name: profile.name,
            resource: profile.rule().resource.map(|name| name.to_string()),
            description: profile.description(),
            text: None,
        }
    }
}
