//! Custody of an item: the responsibility for its end, and the receipts that move it from stage to stage.
//!
//! ```text
//!  arrived ──(admitted to the queue)──> taken ──(every next stage took its copy, or the item ended)──> passed
//! ```
//!
//! The sender keeps an item's id until the item is passed. Dropping a [`Custody`] sends no receipt, so a stage that
//! dies passes nothing by accident.

use std::{
    collections::HashMap,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

use crate::wire::{self, receipt::Content};

/// Handle for the receipts of one item. It reports to the sender that a next stage took a copy of the result.
#[derive(Clone, Debug)]
pub(crate) struct Custody {
    sequence: u64,
    inputs: mpsc::UnboundedSender<ReceiptInput>,
}

/// Input of [`Receipts`].
#[derive(Debug)]
pub(crate) enum ReceiptInput {
    /// A receipt to send unchanged.
    Receipt(Content),
    /// A next stage took one copy of the result of the item with this sequence number.
    Released(u64),
    /// The item with this sequence number gets no result: its join ended with another part.
    Settled(u64),
}

/// Stream of receipts for one sender. An item is passed when each copy of its result was released.
#[derive(Debug)]
pub(crate) struct Receipts {
    inputs: mpsc::UnboundedReceiver<ReceiptInput>,
    /// Copies of each result: one per next stage.
    copies: usize,
    /// Released copies by sequence number, for items with copies left.
    released: HashMap<u64, usize>,
}

// === impl Custody ===

impl Custody {
    pub(crate) fn new(sequence: u64, inputs: mpsc::UnboundedSender<ReceiptInput>) -> Self {
        Self { sequence, inputs }
    }

    /// Reports that a next stage took one copy. Errors are ignored: the sender's stream has ended.
    pub(crate) fn release(&self) {
        drop(self.inputs.send(ReceiptInput::Released(self.sequence)));
    }

    /// Reports the item as passed without a copy of its result.
    pub(crate) fn settle(&self) {
        drop(self.inputs.send(ReceiptInput::Settled(self.sequence)));
    }
}

// === impl Receipts ===

impl Receipts {
    pub(crate) fn new(inputs: mpsc::UnboundedReceiver<ReceiptInput>, copies: usize) -> Self {
        Self { inputs, copies, released: HashMap::new() }
    }

    /// Counts one released copy. True for the last copy.
    fn is_passed(&mut self, sequence: u64) -> bool {
        if self.copies <= 1 {
            return true;
        }
        let released = self.released.entry(sequence).or_default();
        *released += 1;
        let is_last = *released == self.copies;
        if is_last {
            self.released.remove(&sequence);
        }
        is_last
    }
}

impl Stream for Receipts {
    type Item = Result<wire::Receipt, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let content = match ready!(self.inputs.poll_recv(cx)) {
                None => return Poll::Ready(None),
                Some(ReceiptInput::Receipt(content)) => content,
                Some(ReceiptInput::Released(sequence)) if self.is_passed(sequence) => {
                    Content::Passed(wire::Passed { sequence })
                }
                Some(ReceiptInput::Settled(sequence)) => Content::Passed(wire::Passed { sequence }),
                Some(ReceiptInput::Released(_)) => continue,
            };
            return Poll::Ready(Some(Ok(wire::Receipt { content: Some(content) })));
        }
    }
}
