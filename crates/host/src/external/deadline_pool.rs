//! Blocking calls with a deadline, such as reads that firmware serves. They run on threads that are abandoned if they
//! hang.

use std::{
    collections::BTreeMap,
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    thread,
    time::Duration,
};

use tokio::time::Instant;

use crate::deadline::Deadline;

/// Pool of threads for blocking calls. While a key's call hangs, other calls of that key fail at once.
#[derive(Debug)]
pub struct DeadlinePool<K, A> {
    idle: Option<Worker<A>>,
    /// Threads with hanging calls, by key.
    hanging: BTreeMap<K, Worker<A>>,
}

/// The call missed its deadline, panicked, or found no free thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineExceeded;

/// A thread with its channels.
#[derive(Debug)]
struct Worker<A> {
    calls: Sender<BlockingCall<A>>,
    answers: Receiver<A>,
}

type BlockingCall<A> = Box<dyn FnOnce() -> A + Send>;

/// Limit on hanging threads, beyond which calls fail at once. So many of them are a fault of the host itself.
const MAX_HANGING: usize = 64;

// === impl DeadlinePool ===

impl<K: Ord, A: Send + 'static> DeadlinePool<K, A> {
    /// Runs a call on another thread. Fails at once if the last call of the key still hangs. The late answer of such a
    /// call is dropped, since it is outdated.
    pub fn call(
        &mut self,
        key: K,
        limit: Duration,
        call: impl FnOnce() -> A + Send + 'static,
    ) -> Result<A, DeadlineExceeded> {
        let is_busy =
            |worker: &Worker<A>| worker.answers.try_recv().err() == Some(TryRecvError::Empty);
        if self.hanging.get(&key).is_some_and(is_busy) {
            return Err(DeadlineExceeded);
        }
        self.hanging.remove(&key);
        if self.hanging.len() >= MAX_HANGING {
            return Err(DeadlineExceeded);
        }
        let idle = self.idle.take().map_or_else(Worker::start, Ok);
        let worker = idle.map_err(|_| DeadlineExceeded)?;
        if let Some(answer) = worker.run(Box::new(call), limit) {
            self.idle = Some(worker);
            Ok(answer)
        } else {
            self.hanging.insert(key, worker);
            Err(DeadlineExceeded)
        }
    }

    /// Number of hanging calls.
    pub fn hanging(&self) -> usize {
        self.hanging.len()
    }

    /// Ends a round: stops the idle thread and drops keys that are no longer present.
    pub fn end_round(&mut self, is_present: impl Fn(&K) -> bool) {
        self.idle = None;
        self.hanging.retain(|key, _| is_present(key));
    }
}

impl<K, A> Default for DeadlinePool<K, A> {
    fn default() -> Self {
        Self { idle: None, hanging: BTreeMap::new() }
    }
}

// === impl Worker ===

impl<A: Send + 'static> Worker<A> {
    fn start() -> io::Result<Self> {
        let (calls, receiver) = channel::<BlockingCall<A>>();
        let (replies, answers) = channel();
        let serve = move || {
            for call in receiver {
                if replies.send(call()).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("deadline-pool".to_owned()).spawn(serve)?;
        Ok(Self { calls, answers })
    }

    fn run(&self, call: BlockingCall<A>, limit: Duration) -> Option<A> {
        self.calls.send(call).ok()?;
        let mut deadline = Deadline::starting_at(now(), limit);
        loop {
            let wait = deadline.next_check().saturating_duration_since(now());
            match self.answers.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) if !deadline.has_passed(now()) => {}
                answer => return answer.ok(),
            }
        }
    }
}

/// Threads use the machine's clock, even if a test pauses tokio's.
fn now() -> Instant {
    Instant::from_std(std::time::Instant::now())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn a_hanging_call_delays_no_other_key_and_is_not_repeated() {
        let (answer, call) = channel::<u32>();
        let mut pool = DeadlinePool::default();
        assert_eq!(
            pool.call("a", SHORT, move || call.recv().unwrap_or_default()),
            Err(DeadlineExceeded)
        );
        assert_eq!(pool.call("b", LONG, || 2), Ok(2));
        assert_eq!(pool.call("a", LONG, || 1), Err(DeadlineExceeded), "the call fails at once");
        assert_eq!(pool.hanging(), 1);
        answer.send(7).expect("the call waits for the answer");
        let end = Instant::now() + LONG;
        let answers = std::iter::repeat_with(|| {
            thread::yield_now();
            pool.call("a", LONG, || 1)
        });
        let answer = answers.take_while(|_| Instant::now() < end).find_map(Result::ok);
        assert_eq!(answer, Some(1), "a new answer, not the late one");
        assert_eq!(pool.hanging(), 0);
    }

    #[test]
    fn a_dropped_key_starts_a_new_call() {
        let (_answer, call) = channel::<u32>();
        let mut pool = DeadlinePool::default();
        assert_eq!(
            pool.call("a", SHORT, move || call.recv().unwrap_or_default()),
            Err(DeadlineExceeded)
        );
        pool.end_round(|key| *key == "b");
        assert_eq!(pool.call("a", LONG, || 1), Ok(1));
    }

    #[test]
    fn a_call_that_panics_counts_as_late() {
        let mut pool = DeadlinePool::default();
        assert_eq!(pool.call("a", LONG, || -> u32 { panic!("a bug") }), Err(DeadlineExceeded));
        assert_eq!(pool.call("a", LONG, || 1), Ok(1));
    }
}
