//! Sets the SONAME of the real library, so that the loader treats both as the same. Strips debug
//! information, because every simulated machine has a copy.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-debug");
}
