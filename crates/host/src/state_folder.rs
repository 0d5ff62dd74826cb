//! Watch of the state folder: a metric, and a log line when the folder becomes writable or unwritable. While it is
//! unwritable, claims wait; devices without claims are still allocated.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{blocking, files::folder};

/// Checks the folder regularly, until stopped.
pub async fn watch(
    path: PathBuf,
    is_writable: Gauge,
    check_interval: Duration,
    stop: CancellationToken,
) {
    let mut last_error = None;
    loop {
        let checked_path = path.clone();
        let error = tokio::select! {
            () = stop.cancelled() => return,
            error = blocking(move || error(&checked_path)) => error,
        };
        is_writable.set(i64::from(error.is_none()));
        if error != last_error {
            let path = path.display();
            if let Some(error) = &error {
                tracing::warn!(
                    %path,
                    why = error,
                    "state folder not writable: claims wait until it is"
                );
            } else {
                tracing::info!(%path, "state folder writable again");
            }
            last_error = error;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(check_interval) => {}
        }
    }
}

/// Reason why the folder is not writable. The check writes nothing.
fn error(path: &Path) -> Option<String> {
    let check = || -> io::Result<Option<&'static str>> {
        folder::create_dir_all(path)?;
        access(path, Access::WRITE_OK | Access::EXEC_OK)?;
        let stat = statvfs(path)?;
        let is_read_only = stat.f_flag.contains(StatVfsMountFlags::RDONLY);
        let has_space = stat.f_blocks == 0 || stat.f_bavail > 0;
        Ok(match (is_read_only, has_space) {
            (true, _) => Some("it is read-only"),
            (_, false) => Some("its disk is full"),
            _ => None,
        })
    };
    check().map_or_else(|error| Some(error.to_string()), |reason| reason.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_unwritable_folder_is_reported_and_its_recovery_too() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, gauge, stop) =
            (folder.path().join("state"), Gauge::default(), CancellationToken::new());
        std::fs::write(&path, "a file in its place").expect("written");
        let check = Duration::from_secs(10);
        let mut watching = JoinSet::new();
        gauge.set(1);
        watching.spawn(watch(path.clone(), gauge.clone(), check, stop.clone()));
        sleep(check / 2).await;
        assert_eq!(gauge.get(), 0);
        std::fs::remove_file(&path).expect("the file exists");
        sleep(check).await;
        assert_eq!(gauge.get(), 1);
        stop.cancel();
        watching.join_next().await.expect("a task").expect("the task ends");
        // No user can write there, root included.
        assert!(error(Path::new("/proc/self")).is_some());
    }
}
