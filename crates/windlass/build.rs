//! What the program knows of its own build, the names of vendors and devices, and the simulated driver.
//!
//! Writes the names of vendors and devices as sorted text, which costs a process nothing until it is
//! read. The databases' own tables are a hundred thousand pointers, which the dynamic linker would set
//! at each start: three milliseconds, and three mebibytes of memory that no other process shares.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// The simulated driver, as its crate calls it and as cargo does.
const DRIVER: (&str, &str) = ("windlass-nvml-sim", "libwindlass_nvml_sim.so");

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    note_build();
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(folder.join("pci.names"), sorted(pci()))?;
    fs::write(folder.join("usb.names"), sorted(usb()))?;
    if env::var_os("CARGO_FEATURE_LABORATORY").is_some() {
        build_driver(&folder)?;
    }
    Ok(())
}

/// Builds the simulated driver, a library of its own, for the program to carry. Stable cargo cannot make a library a
/// part of what another crate is compiled from, so it is called once more, in a folder where it waits for no lock.
fn build_driver(folder: &Path) -> io::Result<()> {
    let said = |name: &str| env::var(name).expect("cargo sets it");
    let (package, library) = DRIVER;
    for source in ["../machine", "../nvml-sim", "../../profiles", "../../Cargo.lock"] {
        println!("cargo::rerun-if-changed={source}");
    }
    let (profile, target, built) = (said("PROFILE"), said("TARGET"), folder.join("driver"));
    let mut cargo = Command::new(said("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", package]);
    cargo.arg("--manifest-path").arg("../nvml-sim/Cargo.toml").arg("--target-dir").arg(&built);
    // Named, the target is a part of where the library lies, whatever the caller's settings say.
    cargo.args(["--target", &target]);
    if profile == "release" {
        cargo.arg("--release");
    }
    // Nobody debugs it from within the program, and lints are for whoever works on it.
    for (setting, value) in [("DEBUG", "false"), ("STRIP", "true")] {
        for profile in ["DEV", "RELEASE"] {
            cargo.env(format!("CARGO_PROFILE_{profile}_{setting}"), value);
        }
    }
    // It is built as a whole or not at all.
    cargo.env("CARGO_INCREMENTAL", "0").env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("cannot build {package}: cargo ended with {status}")));
    }
    fs::copy(built.join(target).join(profile).join(library), folder.join(library)).map(drop)
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

/// Tells the compiler commit, target and features. Nothing is fetched; outside a git work tree the commit is that of
/// the variable `WINDLASS_COMMIT`, or unknown.
fn note_build() {
    println!("cargo::rerun-if-env-changed=WINDLASS_COMMIT");
    let commit = env::var("WINDLASS_COMMIT").ok().filter(|named| !named.is_empty());
    let commit = commit.or_else(|| git(&["log", "-1", "--format=%h of %cs"]));
    println!("cargo::rustc-env=WINDLASS_BUILT_FROM={}", commit.as_deref().unwrap_or("unknown"));
    let target = env::var("TARGET").expect("cargo sets it");
    println!("cargo::rustc-env=WINDLASS_BUILT_FOR={target}");
    let features = env::vars().filter_map(|(name, _)| {
        let name = name.strip_prefix("CARGO_FEATURE_")?.to_lowercase();
        (name != "default").then_some(name)
    });
    let mut features: Vec<_> = features.collect();
    features.sort_unstable();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    println!("cargo::rustc-env=WINDLASS_BUILT_WITH={features}");
    // Another commit is another answer.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD"].into_iter().chain(branch.as_deref()) {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", name]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// What git says, where there is a git and a work tree.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !said.is_empty()).then_some(said)
}
