//! Blocking work on separate threads.

use tokio::{sync::oneshot, task::spawn_blocking};

/// Boxed work, because each type of task would add 2 KB of the runtime's code.
type Work = Box<dyn FnOnce() + Send>;

/// Runs work that blocks, such as file access, on another thread and waits for it. The work must not panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, mut result) = oneshot::channel();
    let work: Work = Box::new(move || drop(sender.send(work())));
    spawn_blocking(work).await.expect("blocking work neither panics nor is cancelled");
    result.try_recv().expect("the work has ended")
}
