//! Budgets over time of a handler for one Configuration. Limits of a round alone would allow ten times as much a second,
//! since a round may follow a round.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use akri_model::budget::Budget;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::log::LogLine;
use crate::runtime::TICK;

/// Bytes of log at once, and a second from then on.
const LOG: Budget = Budget::new(256 << 10, 4 << 10);
/// Connections: two for each of two thousand cameras at once.
const CONNECTIONS: Budget = Budget::new(4096, 200);
/// Datagrams, and names to be resolved.
const DATAGRAMS: Budget = Budget::new(4096, 500);

/// Refusals of one call that are compared with those of the next.
const REFUSALS: usize = 64;

/// The budgets of one Configuration with one handler. Clones share them.
#[derive(Clone)]
pub struct Rates {
    state: Arc<Mutex<State>>,
    /// A number of their own.
    id: u64,
    /// The destination of log lines, which is where their budget is; by default, the log.
    forward: Option<Forward>,
}

/// Takes log lines.
type Forward = Arc<dyn Fn(ForwardedLine) + Send + Sync>;

/// A log line that is judged elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForwardedLine {
    /// A line.
    Written {
        /// The line.
        line: LogLine,
        /// True if whoever wants a copy of the log gets one.
        is_copied: bool,
    },
    /// Lines beyond a limit.
    Dropped(u64),
}

impl Default for Rates {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let state = State {
            log: LOG,
            dropped: 0,
            connections: CONNECTIONS,
            datagrams: DATAGRAMS,
            ticks: 0,
            refusals: BTreeSet::new(),
            refusals_now: BTreeSet::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), id: NEXT.fetch_add(1, Ordering::Relaxed), forward: None }
    }
}

#[derive(Debug)]
struct State {
    log: Budget,
    /// Lines that were not logged and not told of yet.
    dropped: u64,
    connections: Budget,
    datagrams: Budget,
    ticks: u32,
    /// The refusals of the last call.
    refusals: BTreeSet<String>,
    /// The refusals of this call.
    refusals_now: BTreeSet<String>,
}

impl Rates {
    /// Returns a number that no others of this process have.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the same budgets with another destination for log lines.
    pub fn forwarding(&self, forward: Forward) -> Self {
        Self { forward: Some(forward), ..self.clone() }
    }

    /// Returns the destination of log lines, if it is not the log.
    pub(crate) fn forward(&self) -> Option<&Forward> {
        self.forward.as_ref()
    }

    /// Adds processor time.
    pub fn add_ticks(&self, ticks: u32) {
        let mut state = self.state.lock();
        state.ticks = state.ticks.saturating_add(ticks);
    }

    /// Adds the processor time of what the host does for a guest.
    pub fn add_processor_time(&self, time: Duration) {
        self.add_ticks(u32::try_from(time.as_millis() / TICK.as_millis()).unwrap_or(u32::MAX));
    }

    /// Returns the ticks since they were taken last.
    pub fn take_ticks(&self) -> u32 {
        std::mem::take(&mut self.state.lock().ticks)
    }

    /// Takes a line of so many bytes; returns whether it may be logged. Dropped lines are counted.
    pub fn log(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let may = state.log.take(bytes as u64, Instant::now());
        state.dropped += u64::from(!may);
        may
    }

    /// Returns how many lines were not logged, once that may be said itself.
    pub fn log_dropped(&self, more: u64) -> u64 {
        let mut state = self.state.lock();
        state.dropped = state.dropped.saturating_add(more);
        if state.dropped == 0 || !state.log.take(64, Instant::now()) {
            return 0;
        }
        std::mem::take(&mut state.dropped)
    }

    /// Returns whether the last call was not refused this. What each round is refused is logged until it changes.
    pub(crate) fn is_new_refusal(&self, refusal: &str) -> bool {
        let mut state = self.state.lock();
        if state.refusals_now.len() < REFUSALS {
            state.refusals_now.insert(refusal.to_owned());
        }
        !state.refusals.contains(refusal)
    }

    /// Notes that a call has ended.
    pub(crate) fn end_refusals(&self) {
        let mut state = self.state.lock();
        state.refusals = std::mem::take(&mut state.refusals_now);
    }

    /// Waits until a connection may be opened.
    pub(crate) async fn connection(&self) {
        self.wait_for_budget(|state| &mut state.connections).await;
    }

    /// Waits until a datagram may be sent.
    pub(crate) async fn datagram(&self) {
        self.wait_for_budget(|state| &mut state.datagrams).await;
    }

    async fn wait_for_budget(&self, budget: fn(&mut State) -> &mut Budget) {
        loop {
            let wait = {
                let mut state = self.state.lock();
                let (budget, now) = (budget(&mut state), Instant::now());
                if budget.take(1, now) {
                    return;
                }
                budget.wait(now)
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns the processor time that guests took since this was called last, give or take what is below ten milliseconds.
    pub fn take_processor_time(&self) -> Duration {
        TICK.saturating_mul(self.take_ticks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // threat 15
    fn log_lines_beyond_the_budget_are_counted() {
        let rates = Rates::default();
        let logged = (0..1000).filter(|_| rates.clone().log(20_000)).count(); // the last one is more than is left
        assert!((14..20).contains(&logged), "{logged}");
        assert_eq!(rates.log_dropped(0), 0, "nor may that be said");
        rates.state.lock().log = LOG;
        assert_eq!(rates.log_dropped(5), 1005 - logged as u64);
        assert_eq!(rates.log_dropped(0), 0);
    }

    #[test] // threat 15
    fn refusals_of_each_round_are_new_once() {
        let rates = Rates::default();
        let round = |refused: &[&str]| -> Vec<bool> {
            let new = refused.iter().map(|refusal| rates.is_new_refusal(refusal)).collect();
            rates.end_refusals();
            new
        };
        assert_eq!(round(&["a"]), [true]);
        assert_eq!(round(&["a", "b"]), [false, true]);
        assert_eq!(round(&["b"]), [false]);
        assert_eq!(round(&["a"]), [true], "it comes back");
        let many: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        round(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(rates.state.lock().refusals.len(), REFUSALS);
    }

    #[tokio::test] // threat 15
    async fn connections_beyond_the_budget_wait() {
        let rates = Rates::default();
        rates.state.lock().connections = Budget::new(2, 0);
        rates.connection().await;
        rates.connection().await;
        let next = tokio::time::timeout(Duration::ZERO, rates.connection()).await;
        assert!(next.is_err());
    }

    #[test]
    fn processor_time_is_reported_once() {
        let rates = Rates::default();
        (0..5).for_each(|_| rates.add_ticks(1));
        assert_eq!(rates.take_processor_time(), Duration::from_millis(50));
        assert_eq!(rates.take_processor_time(), Duration::ZERO);
    }
}
