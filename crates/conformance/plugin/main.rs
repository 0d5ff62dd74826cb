//! A device plugin that does everything right, or one thing wrong: `plugin-with-defects KUBELET SCRATCH
//! DEFECT`. It offers `example.com/one` with four devices and `example.com/two` with two; while
//! `SCRATCH/fail` exists its first device is unhealthy.

#![expect(
    clippy::disallowed_methods,
    clippy::exit,
    clippy::print_stderr,
    reason = "a program for tests, which dies on purpose, with all its tasks"
)]

mod connections;
mod defect;
mod devices;
mod life;
mod service;

use std::{env, path::PathBuf, process::ExitCode};

use self::{defect::Defect, life::Plugin};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kubelet, scratch, defect] = arguments.as_slice() else {
        eprintln!("usage: plugin-with-defects KUBELET SCRATCH DEFECT");
        return ExitCode::FAILURE;
    };
    let defect: Defect = match defect.parse() {
        Ok(defect) => defect,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
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
    ExitCode::SUCCESS
}
