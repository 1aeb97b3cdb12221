//! Samples and tables.

use std::fmt;
use std::time::{Duration, Instant};

/// Durations of one operation, in ascending order.
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    /// # Panics
    /// Without a sample.
    pub(crate) fn new(mut samples: Vec<Duration>) -> Self {
        assert!(!samples.is_empty(), "nothing was measured");
        samples.sort_unstable();
        Self(samples)
    }

    /// Returns the smallest sample that at least `percent` of all samples don't exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0[rank.saturating_sub(1)]
    }

    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }
}

/// Times `work` `count` times, after a few warm-up runs.
pub(crate) async fn repeat<T, F: Future<Output = T>>(count: usize, mut work: impl FnMut() -> F) -> Samples {
    for _ in 0..count.div_ceil(10) {
        work().await;
    }
    let mut samples = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        let done = work().await;
        samples.push(start.elapsed());
        drop(done);
    }
    Samples::new(samples)
}

/// A table of samples in Markdown.
pub(crate) struct Table {
    title: String,
    rows: Vec<[String; 5]>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new() }
    }

    /// Adds a row; `beside` is the value for comparison.
    pub(crate) fn row(&mut self, what: impl Into<String>, samples: &Samples, beside: impl Into<String>) {
        let [p50, p99] = [50, 99].map(|percent| readable(samples.percentile(percent)));
        self.rows.push([what.into(), p50, p99, samples.0.len().to_string(), beside.into()]);
    }

    /// Adds a row for a value that is not a duration and was measured once.
    pub(crate) fn value(&mut self, what: impl Into<String>, value: impl Into<String>, beside: impl Into<String>) {
        self.rows.push([what.into(), value.into(), String::new(), "1".to_owned(), beside.into()]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| {} | p50 | p99 | samples | beside |\n|---|---|---|---|---|", self.title)?;
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

/// Formats a duration with three digits and a unit.
pub(crate) fn readable(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}
