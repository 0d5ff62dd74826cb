//! Device plugin that conforms, or has one defect: `plugin-with-defects KUBELET SCRATCH DEFECT`. The plugin offers
//! `example.com/one` with four devices and `example.com/two` with two. While `SCRATCH/fail` exists, its first device
//! is unhealthy.

#![expect(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "a program for tests, which dies on purpose, with all its tasks"
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
    devices::write_documents(&scratch, defect);
    if defect == Defect::CleansTheFolder {
        life::clean(&folder);
    }
    let one = Plugin::new(("one", 4), &folder, &scratch, defect);
    let two = Plugin::new(("two", 2), &folder, &scratch, defect);
    tokio::select! {
        () = one.live() => {}
        () = two.live() => {}
        () = life::told_to_end(defect) => {
            one.leave();
            two.leave();
        }
        () = life::spin(), if defect == Defect::Spins => {}
    }
    Ok(())
}
