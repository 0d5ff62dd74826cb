//! Writes the names of vendors and devices as sorted text, which costs a process nothing until it is
//! read. The databases' own tables are a hundred thousand pointers, which the dynamic linker would set
//! at each start: three milliseconds, and three mebibytes of memory that no other process shares.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(folder.join("pci.names"), sorted(pci()))?;
    fs::write(folder.join("usb.names"), sorted(usb()))
}

/// `10de NVIDIA Corporation` for each vendor and `10de:2330 GH100 [H100 SXM5 80GB]` for each device.
fn pci() -> Vec<String> {
    let lines = pci_ids::Vendors::iter().flat_map(|vendor| {
        let devices = vendor
            .devices()
            .map(|device| format!("{:04x}:{:04x} {}", vendor.id(), device.id(), device.name()));
        devices.chain([format!("{:04x} {}", vendor.id(), vendor.name())])
    });
    lines.collect()
}

fn usb() -> Vec<String> {
    let lines = usb_ids::Vendors::iter().flat_map(|vendor| {
        let devices = vendor.devices();
        devices.map(|device| format!("{:04x}:{:04x} {}", vendor.id(), device.id(), device.name()))
    });
    lines.collect()
}

fn sorted(mut lines: Vec<String>) -> String {
    lines.sort_unstable();
    lines.join("\n")
}
