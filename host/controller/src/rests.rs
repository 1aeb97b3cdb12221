//! Pauses after actions on objects, so that two writers that undo each other's work do so rarely.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Keys that rest for a time after an action.
pub(crate) struct Rests<K> {
    pause: Duration,
    since: BTreeMap<K, Instant>,
}

impl<K: Ord> Rests<K> {
    /// Returns rests of this duration.
    pub(crate) fn new(pause: Duration) -> Self {
        Self { pause, since: BTreeMap::new() }
    }

    /// Lets keys rest from now on.
    pub(crate) fn begin(&mut self, keys: impl IntoIterator<Item = K>, now: Instant) {
        let pause = self.pause;
        self.since.retain(|_, since| now.duration_since(*since) < pause);
        self.since.extend(keys.into_iter().map(|key| (key, now)));
    }

    /// Returns the time until the end of a rest; `None` if the key does not rest.
    pub(crate) fn left(&self, key: &K, now: Instant) -> Option<Duration> {
        let left = (*self.since.get(key)? + self.pause).checked_duration_since(now)?;
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_rests_for_the_pause() {
        let (mut rests, now) = (Rests::new(Duration::from_secs(60)), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        rests.begin(["a"], now);
        assert_eq!((rests.left(&"a", after(50)), rests.left(&"b", after(50))), (Some(Duration::from_secs(10)), None));
        assert_eq!(rests.left(&"a", after(60)), None);
        rests.begin(["b"], after(61));
        assert_eq!(rests.since.len(), 1, "ended rests are forgotten");
    }
}
