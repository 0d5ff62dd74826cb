//! Writes the seeds of each fuzz target to a folder, as `cargo fuzz` expects its corpus. Argument: `fuzz/corpus`.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args().nth(1).ok_or(io::ErrorKind::InvalidInput)?);
    for target in windlass_fuzz::TARGETS {
        let corpus = folder.join(target.name);
        fs::create_dir_all(&corpus)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(corpus.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
