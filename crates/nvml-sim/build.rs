//! Gives the library the SONAME of the real one, so that the loader takes one for the other, and no
//! debug information: every simulated machine has a copy.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-debug");
}
