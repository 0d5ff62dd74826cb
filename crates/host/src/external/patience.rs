//! Asking what may never answer, such as a file that a device's firmware has to fill: on a thread that is
//! left behind if it does not come back in time.

use std::{
    collections::BTreeMap,
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    thread,
    time::Duration,
};

use tokio::time::Instant;

use crate::deadline::Deadline;

/// Asks one after the other, and none again before it has answered.
#[derive(Debug)]
pub struct Patience<K, A> {
    /// A thread that has answered and waits for the next question.
    idle: Option<Worker<A>>,
    /// The threads that have not come back, by whom they asked.
    late: BTreeMap<K, Worker<A>>,
}

/// There was no answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late;

/// A thread: questions go in, answers come out.
#[derive(Debug)]
struct Worker<A> {
    questions: Sender<Question<A>>,
    answers: Receiver<A>,
}

type Question<A> = Box<dyn FnOnce() -> A + Send>;

/// Threads that are left behind before no one else is asked: with so many it is the host that hangs.
const MOST_LATE: usize = 64;

// === impl Patience ===

impl<K: Ord, A: Send + 'static> Patience<K, A> {
    /// Asks on another thread. Who has not answered the last time is not waited for again: an answer that
    /// came since then may be wrong by now, and is dropped.
    pub fn ask(
        &mut self,
        whom: K,
        limit: Duration,
        question: impl FnOnce() -> A + Send + 'static,
    ) -> Result<A, Late> {
        let is_busy =
            |worker: &Worker<A>| worker.answers.try_recv().err() == Some(TryRecvError::Empty);
        if self.late.get(&whom).is_some_and(is_busy) {
            return Err(Late);
        }
        self.late.remove(&whom);
        if self.late.len() >= MOST_LATE {
            return Err(Late);
        }
        let idle = self.idle.take().map_or_else(Worker::start, Ok);
        let worker = idle.map_err(|_| Late)?;
        if let Some(answer) = worker.ask(Box::new(question), limit) {
            self.idle = Some(worker);
            Ok(answer)
        } else {
            self.late.insert(whom, worker);
            Err(Late)
        }
    }

    /// How many have not answered.
    pub fn late(&self) -> usize {
        self.late.len()
    }

    /// Ends a round: no thread waits for the next, and who is not there any more is not awaited.
    pub fn rest(&mut self, is_there: impl Fn(&K) -> bool) {
        self.idle = None;
        self.late.retain(|whom, _| is_there(whom));
    }
}

impl<K, A> Default for Patience<K, A> {
    fn default() -> Self {
        Self { idle: None, late: BTreeMap::new() }
    }
}

// === impl Worker ===

impl<A: Send + 'static> Worker<A> {
    fn start() -> io::Result<Self> {
        let (questions, asked) = channel::<Question<A>>();
        let (replies, answers) = channel();
        let answer = move || {
            for question in asked {
                if replies.send(question()).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("patience".to_owned()).spawn(answer)?;
        Ok(Self { questions, answers })
    }

    fn ask(&self, question: Question<A>, limit: Duration) -> Option<A> {
        self.questions.send(question).ok()?;
        let mut deadline = Deadline::starting_at(now(), limit);
        loop {
            let left = deadline.next_look().saturating_duration_since(now());
            match self.answers.recv_timeout(left) {
                Err(RecvTimeoutError::Timeout) if !deadline.has_passed(now()) => {}
                answer => return answer.ok(),
            }
        }
    }
}

/// A thread waits by the machine's clock, also where a test pauses tokio's.
fn now() -> Instant {
    Instant::from_std(std::time::Instant::now())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn who_does_not_answer_keeps_no_other_waiting_and_is_not_asked_twice_at_once() {
        let (answer, question) = channel::<u32>();
        let mut patience = Patience::default();
        assert_eq!(patience.ask("a", SOON, move || question.recv().unwrap_or_default()), Err(Late));
        assert_eq!(patience.ask("b", LONG, || 2), Ok(2));
        assert_eq!(patience.ask("a", LONG, || 1), Err(Late), "at once");
        assert_eq!(patience.late(), 1);
        answer.send(7).expect("it waits for it");
        let until = Instant::now() + LONG;
        let told = std::iter::repeat_with(|| {
            thread::yield_now();
            patience.ask("a", LONG, || 1)
        });
        let told = told.take_while(|_| Instant::now() < until).find_map(Result::ok);
        assert_eq!(told, Some(1), "a new answer, and not the one that was late");
        assert_eq!(patience.late(), 0);
    }

    #[test]
    fn who_is_gone_is_not_awaited() {
        let (_answer, question) = channel::<u32>();
        let mut patience = Patience::default();
        assert_eq!(patience.ask("a", SOON, move || question.recv().unwrap_or_default()), Err(Late));
        patience.rest(|whom| *whom == "b");
        assert_eq!(patience.ask("a", LONG, || 1), Ok(1));
    }

    #[test]
    fn a_question_that_panics_is_no_answer() {
        let mut patience = Patience::default();
        assert_eq!(patience.ask("a", LONG, || -> u32 { panic!("a bug") }), Err(Late));
        assert_eq!(patience.ask("a", LONG, || 1), Ok(1));
    }
}
