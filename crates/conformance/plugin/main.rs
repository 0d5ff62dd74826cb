//! Device plugin of the tests. `plugin-with-defects KUBELET SCRATCH DEFECT` conforms, except for the defect that its
//! last argument names. `KUBELET` is the kubelet's folder, and `SCRATCH` a folder of the test. The plugin offers
//! `example.com/one` with four devices and `example.com/two` with two. While `SCRATCH/fail` exists, the first device of
//! `example.com/one` is unhealthy.

#![expect(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "a test program that exits on purpose; its exit ends the tasks that it spawns"
)]

mod connections;
mod defect;
mod devices;
mod life;
mod service;

use std::{env, error::Error, path::PathBuf};

use self::{defect::Defect, life::Plugin};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kubelet, scratch, defect] = arguments.as_slice() else {
        return Err("usage: plugin-with-defects KUBELET SCRATCH DEFECT".into());
    };
    let defect: Defect = serde_json::from_value(defect.as_str().into())?;
    let (folder, scratch) = (PathBuf::from(kubelet).join("device-plugins"), PathBuf::from(scratch));
    devices::write_cdi_specs(&scratch, defect);
    if defect == Defect::CleansTheFolder {
        life::delete_other_files(&folder);
    }
    let one = Plugin::new(("one", 4), &folder, &scratch, defect);
    let two = Plugin::new(("two", 2), &folder, &scratch, defect);
    tokio::select! {
        () = one.run() => {}
        () = two.run() => {}
        () = life::wait_for_sigterm(defect) => {
            one.remove_socket();
            two.remove_socket();
        }
        () = life::busy_loop(), if defect == Defect::BusyLoops => {}
    }
    Ok(())
}
