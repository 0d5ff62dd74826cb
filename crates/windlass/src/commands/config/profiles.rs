//! `windlass config profiles`: the profiles of devices, listed or printed.

use anyhow::Result;
use serde::Serialize;
use windlass_config::DeviceProfile;

use crate::{
    cli::OutputArg,
    commands::answer,
    screen::{Table, line},
};

/// A profile, for programs.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    /// What its devices are offered as.
    resource: Option<String>,
    description: String,
    /// Its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'static str>,
}

pub(super) fn run(name: Option<DeviceProfile>, output: OutputArg) -> Result<()> {
    match name {
        None => {
            let all: Vec<_> = DeviceProfile::ALL.iter().map(Listed::new).collect();
            answer(output, &all, || list(&all))
        }
        Some(profile) => {
            let listed = Listed { text: Some(profile.text), ..Listed::new(&profile) };
            answer(output, &listed, || Ok(line(profile.text.trim_end())?))
        }
    }
}

fn list(all: &[Listed]) -> Result<()> {
    let mut table = Table::new(["PROFILE", "RESOURCE", "DEVICES"]);
    for profile in all {
        let resource = profile.resource.clone().unwrap_or_default();
        table.row([profile.name.to_owned(), resource, profile.description.clone()]);
    }
    for text in table.lines("") {
        line(text)?;
    }
    Ok(())
}

// === impl Listed ===

impl Listed {
    fn new(profile: &DeviceProfile) -> Self {
        Self {
            name: profile.name,
            resource: profile.rule().resource.map(|name| name.to_string()),
            description: profile.description(),
            text: None,
        }
    }
}
