//! Budgets over time: so much at once, and so much a second from then on.

use std::time::{Duration, Instant};

/// A token bucket. A taker of more than is left goes into debt, and gets nothing until the debt is paid, so that one large
/// amount is late and not impossible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    size: u64,
    per_second: u64,
    spent: u64,
    since: Option<Instant>,
}

impl Budget {
    /// A full one of `size`, refilled by `per_second`.
    pub const fn new(size: u64, per_second: u64) -> Self {
        Self { size, per_second, spent: 0, since: None }
    }

    /// Takes an amount if something is left; returns whether it did.
    pub fn take(&mut self, amount: u64, now: Instant) -> bool {
        self.refill(now);
        let some = self.spent < self.size;
        if some {
            self.spent = self.spent.saturating_add(amount);
        }
        some
    }

    /// Returns the time until something is left again; zero if something is.
    pub fn wait(&mut self, now: Instant) -> Duration {
        self.refill(now);
        match (self.spent + 1).checked_sub(self.size) {
            Some(missing @ 1..) => {
                let millis = missing.saturating_mul(1000).div_ceil(self.per_second.max(1));
                Duration::from_millis(millis)
            }
            _ => Duration::ZERO,
        }
    }

    fn refill(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_duration_since(since).as_millis();
        let back = elapsed.saturating_mul(u128::from(self.per_second)) / 1000;
        // Less than one whole unit is left to add up.
        if back > 0 {
            self.spent = self.spent.saturating_sub(u64::try_from(back).unwrap_or(u64::MAX));
            let used = back.saturating_mul(1000).div_ceil(u128::from(self.per_second.max(1)));
            self.since = Some(since + Duration::from_millis(u64::try_from(used).unwrap_or_default()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_refills_over_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut budget = Budget::new(2, 4);
        assert_eq!([1, 1, 1].map(|amount| budget.take(amount, start)), [true, true, false]);
        assert_eq!(budget.wait(start), Duration::from_millis(250));
        assert!(!budget.take(1, at(249)) && budget.take(1, at(250)) && !budget.take(1, at(251)));
        assert_eq!(budget.wait(at(60_000)), Duration::ZERO);
        assert_eq!(
            [1, 1, 1].map(|amount| budget.take(amount, at(60_000))),
            [true, true, false],
            "never more than its size"
        );
    }

    #[test]
    fn large_amount_is_paid_back_later() {
        let start = Instant::now();
        let mut budget = Budget::new(10, 5);
        assert!(budget.take(30, start));
        assert_eq!(budget.wait(start), Duration::from_millis(4200));
        assert!(!budget.take(1, start + Duration::from_secs(4)));
        assert!(budget.take(1, start + Duration::from_millis(4200)));
    }

    #[test]
    fn short_steps_add_up() {
        let start = Instant::now();
        let mut budget = Budget::new(1, 1);
        assert!(budget.take(100, start));
        let waits = (1..=53).map(|count| budget.wait(start + Duration::from_millis(count * 1900)));
        assert_eq!(waits.last(), Some(Duration::ZERO), "the rest of a unit counts, too");
        let mut budget = Budget::new(1, 1);
        assert!(budget.take(1, start));
        let taken = (1..=2000).filter(|ms| budget.take(1, start + Duration::from_millis(*ms))).count();
        assert_eq!(taken, 2);
    }
}
