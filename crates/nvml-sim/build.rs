//! Linker flags: the SONAME of the real library, so that the loader uses this library in its place, and no debug
//! information, because every simulated machine has a copy of the file.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-debug");
}
